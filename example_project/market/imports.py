"""The import: records to events to jobs, in bounded batches, each a transaction.

Nothing is remembered between batches: the keys in the table tell what was imported before, so an
import that was killed is completed by running it again, and a repeated one changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from django.db import reset_queries, transaction

import leasejobs
from example_project.market.events import Event
from example_project.market.mapping import EventMapping
from example_project.market.models import Market
from example_project.market.records import Record, Refused
from example_project.market.tasks import notify_watchers
from leasejobs import conf

BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An event that the table, or an earlier line, already has."""

    line: int
    job_id: int
    first_line: int | None  # where it was seen first, if in the same batch


@dataclass(slots=True)
class Summary:
    """What became of the records."""

    events: int = 0
    enqueued: int = 0
    duplicates: int = 0
    refused: int = 0
    skipped: int = 0


def read_events(
    items: Iterable[Record | Refused], mapping: EventMapping
) -> Iterator[tuple[int, Event | Refused | None]]:
    """Yield the line of each record and its event, what is wrong with it, or None if skipped."""
    for item in items:
        yield item.line, item if isinstance(item, Refused) else mapping.event(item)


def import_events(
    found: Iterable[tuple[int, Event | Refused | None]],
    tell: Callable[[Refused | Duplicate], None],
    summary: Summary,
    batch_size: int = BATCH,
) -> None:
    """Enqueue one job per event; tell of each refused record and each duplicate as it is met.

    `summary` counts along, so that it holds what was committed if the database goes away.
    """
    batch: list[_Prepared] = []

    def refuse(refused: Refused) -> None:
        summary.refused += 1
        tell(refused)

    for line, item in found:
        match item:
            case None:
                summary.skipped += 1
            case Refused():
                refuse(item)
            case Event():
                prepared = _prepare(line, item)
                if isinstance(prepared, Refused):
                    refuse(prepared)
                else:
                    batch.append(prepared)
        if len(batch) >= batch_size:
            _write(batch, tell, summary)
            batch.clear()
    _write(batch, tell, summary)


@dataclass(frozen=True, slots=True)
class _Prepared:
    line: int
    event: Event
    job: leasejobs.NewJob


def _prepare(line: int, event: Event) -> _Prepared | Refused:
    try:
        job = notify_watchers.using(key=event.key, key_scope="always").prepare(
            market=event.market,
            event_type=event.event_type,
            event_ref=event.event_ref,
            occurred_at=event.occurred_at.isoformat(),
            payload=event.payload,
        )
    except leasejobs.InvalidArguments as error:
        return Refused(line, f"cannot be stored: {error}")
    return _Prepared(line, event, job)


def _write(
    batch: list[_Prepared], tell: Callable[[Refused | Duplicate], None], summary: Summary
) -> None:
    if not batch:
        return
    written = _enqueue(batch)
    reset_queries()  # with DEBUG, Django keeps the text of every statement: that of whole batches
    first_lines: dict[int, int] = {}
    summary.events += len(batch)
    for prepared, enqueued in zip(batch, written, strict=True):
        if enqueued.created:
            summary.enqueued += 1
        else:
            summary.duplicates += 1
            tell(Duplicate(prepared.line, enqueued.job_id, first_lines.get(enqueued.job_id)))
        first_lines.setdefault(enqueued.job_id, prepared.line)


def _enqueue(batch: list[_Prepared]) -> list[leasejobs.Enqueued]:
    titles: dict[str, str] = {}
    for prepared in batch:
        titles.setdefault(prepared.event.market, prepared.event.title)
    with transaction.atomic(using=conf.database()):
        # In the order of their names: two imports that cross do not deadlock.
        Market.objects.bulk_create(
            [Market(ref=ref, title=title) for ref, title in sorted(titles.items())],
            ignore_conflicts=True,
        )
        return leasejobs.enqueue_many([prepared.job for prepared in batch])
