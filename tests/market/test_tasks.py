"""The market's one job, run by a real worker."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from example_project.market.events import Event
from example_project.market.imports import Summary, import_events
from example_project.market.models import Market, Notification, Watch, Watcher
from leasejobs.models import Job
from leasejobs.states import State

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


@pytest.mark.crash
def test_each_watcher_of_the_market_is_told_once(worker_env: dict[str, str]) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    events = [
        Event("m1", "price_moved", "1", at, {"from": 40, "to": 45}, "Rain?"),
        Event("m1", "resolved", "2", at, {"outcome": "yes"}, "Rain?"),
        Event("m2", "halted_for_now", "1", at, [], ""),
        Event("m3", "resolved", "1", at, None, "Nobody watches"),
    ]
    import_events(enumerate(events, 1), lambda item: None, Summary())
    ann, bob = Watcher.objects.bulk_create([Watcher(name="ann"), Watcher(name="bob")])
    for ref, watcher in (("m1", ann), ("m1", bob), ("m2", ann)):
        Watch.objects.create(market=Market.objects.get(ref=ref), watcher=watcher)

    command = [sys.executable, str(MANAGE), "runleaseworker", "--drain", "--poll", "0.1"]
    subprocess.run(command, env=worker_env, check=True, timeout=60)

    told = Notification.objects.order_by("market__ref", "event_ref", "watcher__name")
    assert list(told.values_list("watcher__name", "text")) == [
        ("ann", "Rain?: the price moved from 40 to 45"),
        ("bob", "Rain?: the price moved from 40 to 45"),
        ("ann", "Rain?: resolved as yes"),
        ("bob", "Rain?: resolved as yes"),
        ("ann", "m2: halted for now"),
    ]
    assert set(Job.objects.values_list("state", flat=True)) == {State.SUCCEEDED}
    assert json.dumps(sorted(Job.objects.values_list("result__notified", flat=True))) == (
        "[0, 1, 2, 2]"
    )
