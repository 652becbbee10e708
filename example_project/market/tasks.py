"""The one job of the market: tell every watcher of a market what happened to it, exactly once."""

import os
import time
from datetime import datetime
from typing import Any

import leasejobs
from example_project.market.models import Market, Notification, Watch

# So that a demo has something to watch: seconds every notice takes to compose, and seconds that
# every n-th job takes instead.
PACE_VARIABLE = "MARKET_PACE_SECONDS"
SLOW_VARIABLE = "MARKET_SLOW_SECONDS"
SLOW_EVERY_VARIABLE = "MARKET_SLOW_EVERY"


@leasejobs.task(takes_context=True, queue_name="market", max_crashes=10)
def notify_watchers(
    context: leasejobs.JobContext,
    market: str,
    event_type: str,
    event_ref: str,
    occurred_at: str,
    payload: Any,
) -> None:
    """Record one notification for each watcher of the event's market, and complete, in one commit.

    A worker that dies before the commit has written nothing; one that lost its lease meanwhile is
    refused at the fence. Either way another worker runs the job again.
    """
    _compose(context)
    with context.fenced():
        subject = Market.objects.get(ref=market)
        watchers = Watch.objects.filter(market=subject).values_list("watcher_id", flat=True)
        told = Notification.objects.bulk_create(
            [
                Notification(
                    watcher_id=watcher,
                    market=subject,
                    event_type=event_type,
                    event_ref=event_ref,
                    occurred_at=datetime.fromisoformat(occurred_at),
                    text=_text(subject, event_type, payload),
                )
                for watcher in watchers.order_by("watcher_id")
            ],
            batch_size=1_000,
        )
        context.complete(result={"notified": len(told)})


def _compose(context: leasejobs.JobContext) -> None:
    """Take the time that the environment asks for."""
    seconds = float(os.environ.get(PACE_VARIABLE, 0))
    every = int(os.environ.get(SLOW_EVERY_VARIABLE, 0))
    if every and context.job.pk % every == 0:
        # Tells whoever reads the table that the body of this claim, and not of an earlier one,
        # has begun.
        context.progress(context.epoch)
        seconds = float(os.environ.get(SLOW_VARIABLE, 0))
    if seconds:
        time.sleep(seconds)


def _text(market: Market, event_type: str, payload: Any) -> str:
    facts = payload if isinstance(payload, dict) else {}
    match event_type, facts:
        case "price_moved", {"from": before, "to": after}:
            return f"{market}: the price moved from {before} to {after}"
        case "resolved", {"outcome": outcome}:
            return f"{market}: resolved as {outcome}"
    return f"{market}: {event_type.replace('_', ' ')}"
