"""The verdict as a function of the tables: each line holds, and fails when its guard did."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone

import leasejobs
from example_project.market.demo import verdict
from example_project.market.events import Event
from example_project.market.models import Market, Notification, Watch, Watcher
from example_project.market.tasks import notify_watchers
from leasejobs.models import Attempt, Job
from leasejobs.states import State

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = timedelta(seconds=2)


@pytest.fixture
def drained() -> list[Event]:
    """Two events of a market with two watchers, all of it done and told; one stale outcome."""
    market = Market.objects.create(ref="m1")
    watchers = Watcher.objects.bulk_create([Watcher(name="ann"), Watcher(name="bob")])
    Watch.objects.bulk_create(Watch(market=market, watcher=watcher) for watcher in watchers)
    events = [Event("m1", "resolved", ref, AT, {}) for ref in ("1", "2")]
    leasejobs.enqueue_many([_prepared(event) for event in events])
    Job.objects.update(state=State.SUCCEEDED)
    for event in events:
        for watcher in watchers:
            _notify(market, watcher, event.event_ref)
    _attempt(outcome="lost", late_outcome="succeeded")
    verdict.remember([*events, events[0]])
    return events


def test_every_line_holds_after_a_clean_drain(drained: list[Event]) -> None:
    lines = [verdict.jobs_line(), *verdict.notifications_lines(), verdict.stale_line()]

    assert [line.is_ok for line in lines] == [True] * 5
    assert lines[0].text == "2 events in, 2 jobs succeeded"


@pytest.mark.parametrize("state", [State.PENDING, State.FAILED, State.PARKED])
def test_a_job_that_did_not_succeed_fails_the_verdict(drained: list[Event], state: State) -> None:
    Job.objects.filter(key=drained[0].key).update(state=state)

    assert not verdict.jobs_line().is_ok


def test_an_event_without_a_job_fails_the_verdict(drained: list[Event]) -> None:
    Job.objects.filter(key=drained[0].key).delete()

    assert not verdict.jobs_line().is_ok


def test_a_job_without_an_event_fails_the_verdict(drained: list[Event]) -> None:
    leasejobs.enqueue_many([_prepared(Event("m1", "resolved", "3", AT, {}))])
    Job.objects.update(state=State.SUCCEEDED)

    assert not verdict.jobs_line().is_ok


def test_no_event_at_all_fails_the_verdict() -> None:
    verdict.remember([])

    assert not verdict.jobs_line().is_ok


def test_a_missing_notification_fails_the_verdict(drained: list[Event]) -> None:
    Notification.objects.first().delete()

    total, missing, twice = verdict.notifications_lines()

    assert (total.is_ok, missing.is_ok, twice.is_ok) == (False, False, True)
    assert missing.text == "1 missing"


def test_a_second_notification_fails_the_verdict(drained: list[Event]) -> None:
    told = Notification.objects.first()
    _notify(told.market, told.watcher, told.event_ref)

    total, missing, twice = verdict.notifications_lines()

    assert (total.is_ok, missing.is_ok, twice.is_ok) == (False, True, False)
    assert twice.text == "1 recorded more than once"


def test_one_missing_and_one_double_do_not_make_up_for_each_other(drained: list[Event]) -> None:
    told, gone = Notification.objects.all()[:2]
    _notify(told.market, told.watcher, told.event_ref)
    gone.delete()

    total, missing, twice = verdict.notifications_lines()

    assert (total.is_ok, missing.is_ok, twice.is_ok) == (True, False, False)


def test_a_notification_that_nobody_asked_for_fails_the_verdict(drained: list[Event]) -> None:
    _notify(Market.objects.get(), Watcher.objects.create(name="eve"), "1")

    assert not verdict.notifications_lines()[0].is_ok


def test_no_stale_outcome_fails_the_verdict(drained: list[Event]) -> None:
    Attempt.objects.update(late_outcome="")

    assert not verdict.stale_line().is_ok


@pytest.mark.parametrize(("seconds", "is_ok"), [(0.2, True), (2.5, False)])
def test_a_killed_childs_jobs_must_be_back_in_time(seconds: float, is_ok: bool) -> None:
    killed_at = timezone.now()
    _attempt(worker="w1", outcome="lost", ended_at=killed_at + timedelta(seconds=seconds))
    _attempt(worker="w2", outcome="lost", ended_at=killed_at + timedelta(seconds=9))

    assert verdict.killed_line("w1", killed_at, LIMIT).is_ok is is_ok


def test_the_last_of_a_killed_childs_jobs_counts() -> None:
    killed_at = timezone.now()
    _attempt(worker="w1", outcome="lost", ended_at=killed_at + timedelta(seconds=1))
    _attempt(worker="w1", outcome="released", ended_at=killed_at + timedelta(seconds=3))

    assert not verdict.killed_line("w1", killed_at, LIMIT).is_ok


def test_a_killed_child_without_a_lost_job_fails_the_verdict() -> None:
    killed_at = timezone.now()
    _attempt(worker="w1", outcome="succeeded", ended_at=killed_at - timedelta(seconds=1))

    assert not verdict.killed_line("w1", killed_at, LIMIT).is_ok


@pytest.mark.parametrize(("seconds", "is_ok"), [(1, True), (3, False)])
def test_a_frozen_childs_job_must_be_taken_over_in_time(seconds: float, is_ok: bool) -> None:
    frozen_at = timezone.now()
    ended_at = frozen_at + timedelta(seconds=seconds)
    lost = _attempt(outcome="lost", ended_at=ended_at)
    _attempt(job_id=lost.job_id, epoch=2, outcome="succeeded", claimed_at=ended_at)

    assert verdict.frozen_line(lost.job_id, 1, frozen_at, LIMIT).is_ok is is_ok


def test_a_frozen_childs_job_that_nobody_took_over_fails_the_verdict() -> None:
    lost = _attempt(outcome="lost")

    assert not verdict.frozen_line(lost.job_id, 1, timezone.now(), LIMIT).is_ok


def _prepared(event: Event) -> leasejobs.NewJob:
    return notify_watchers.using(key=event.key).prepare(
        market=event.market,
        event_type=event.event_type,
        event_ref=event.event_ref,
        occurred_at=event.occurred_at.isoformat(),
        payload=event.payload,
    )


def _notify(market: Market, watcher: Watcher, event_ref: str) -> None:
    Notification.objects.create(
        market=market,
        watcher=watcher,
        event_type="resolved",
        event_ref=event_ref,
        occurred_at=AT,
        text="resolved",
    )


def _attempt(**values: Any) -> Attempt:
    defaults = {
        "job_id": Attempt.objects.count() + 1_000_000,
        "epoch": 1,
        "number": 1,
        "worker": "w1",
        "ended_at": Now(),
    }
    return Attempt.objects.create(**defaults | values)
