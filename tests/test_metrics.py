"""What is counted and timed, and that no label can grow without bound."""

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from leasejobs import leases, metrics, recovery, registry, signals
from leasejobs.leases import Ended
from leasejobs.outcomes import Failed, Failure, Succeeded
from leasejobs.recovery import Cause
from leasejobs.states import AttemptOutcome, State
from tests import tasks
from tests.factories import HOLDER, JobFactory, forged_lease, lease_of
from tests.running import run_next

NOOP = "tests.tasks.noop"
# Read from the database by a worker's own port, and by nothing else.
SAMPLED = {
    name
    for name, line in metrics.METRICS.items()
    if line.type == "gauge" and name != "leasejobs_listeners_connected"
}


class Change:
    """By how much a sample has changed since this was made."""

    def __init__(self, name: str, **labels: str) -> None:
        self._name, self._labels = name, labels
        self._before = self._value()

    def _value(self) -> float:
        return REGISTRY.get_sample_value(self._name, self._labels) or 0.0

    def __float__(self) -> float:
        return self._value() - self._before


def runs(outcome: str, task: str = NOOP) -> Change:
    return Change("leasejobs_runs_total", queue="default", task=task, outcome=outcome)


@pytest.fixture
def names() -> metrics.Names:
    return metrics.Names(2)


def test_names_beyond_the_limit_count_as_other(names):
    assert [names.admit(name) for name in ("a", "b", "c", "a", "d")] == [
        "a", "b", "other", "a", "other",
    ]  # fmt: skip


def test_known_names_spend_nothing_of_the_limit(names):
    names.knows = lambda name: name.startswith("known")

    admitted = [names.admit(name) for name in ("known 1", "x", "y", "known 2", "z", "known 3")]

    assert admitted == ["known 1", "x", "y", "known 2", "other", "known 3"]


def test_long_name_counts_as_other(names):
    assert names.admit("x" * 201) == "other"


def test_registered_task_is_a_known_name():
    assert metrics.TASKS.knows(tasks.noop.module_path)
    assert not metrics.TASKS.knows("nobody.has.this")


def test_names_that_are_refused_are_not_remembered(monkeypatch, names):
    monkeypatch.setitem(metrics._SETS, "task", names)
    counter = Counter("garbage", "G.", ["task"], registry=CollectorRegistry())
    children = metrics.Children(counter, ("task",))

    for number in range(1_000):
        children.of(f"garbage {number}").inc()

    assert len(children._known) == 2
    assert {sample.labels["task"] for sample in counter.collect()[0].samples} == {
        "garbage 0", "garbage 1", "other",
    }  # fmt: skip


def test_observing_many_equals_observing_each():
    amounts = [0.0, 0.1, 0.1, 0.10001, 0.5, 3.0, 7_000.0]

    def samples(kind: Any, observe: Any) -> Any:
        histogram = kind("h", "H.", registry=CollectorRegistry(), buckets=(0.1, 1, 5))
        observe(histogram)
        return [s for s in histogram.collect()[0].samples if not s.name.endswith("_created")]

    def each(histogram: Histogram) -> None:
        for amount in amounts:
            histogram.observe(amount)

    assert samples(
        metrics.BatchHistogram, lambda histogram: histogram.observe_many(amounts)
    ) == samples(Histogram, each)


def test_every_metric_of_the_registry_is_in_the_table():
    found = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in REGISTRY.collect()
        if family.name.startswith("leasejobs_")
    }

    in_process = {line for line in metrics.METRICS.values() if line.name not in SAMPLED}
    assert found == {(line.name, line.type) for line in in_process}


def test_labels_in_the_table_come_from_closed_sets():
    used = {label for line in metrics.METRICS.values() for label in line.labels}

    assert used <= {"queue", "task", "outcome", "cause", "kind", "channel", "state"}


@pytest.mark.django_db(transaction=True)
def test_success_and_its_wait_are_counted():
    succeeded = runs("succeeded")
    waits = Change("leasejobs_queue_wait_seconds_count", queue="default")
    tasks.noop.enqueue()

    run_next()

    assert float(succeeded) == 1
    assert float(waits) == 1


@pytest.mark.django_db(transaction=True)
def test_wait_is_never_negative_and_counts_from_when_the_job_was_due():
    total = Change("leasejobs_queue_wait_seconds_sum", queue="default")
    JobFactory(due_at=timezone.now() - timedelta(seconds=100))
    JobFactory(due_at=timezone.now() + timedelta(seconds=1_000))  # hand-made: pending, not due

    run_next()
    run_next()

    assert 100 <= float(total) < 130


@pytest.mark.django_db(transaction=True)
def test_batch_is_counted_by_its_size():
    succeeded = runs("succeeded")
    token = uuid.uuid4()
    rows = [JobFactory(running=True, lease_token=token) for _ in range(3)]

    leases.complete_many([(row, lease_of(row)) for row in rows], {})

    assert float(succeeded) == 3


@pytest.mark.django_db(transaction=True)
def test_failure_that_will_be_retried_is_a_retry_and_the_last_one_is_not():
    failed = runs("failed")
    retried = Change("leasejobs_retries_total", queue="default", task=NOOP)
    again = JobFactory(running=True)
    last = JobFactory(running=True, max_attempts=1)

    for row in (again, last):
        leases.end(lease_of(row), Failed(Failure("task_raised")))

    assert float(failed) == 2
    assert float(retried) == 1


@pytest.mark.django_db(transaction=True)
def test_refused_outcome_is_a_stale_commit():
    stale = Change("leasejobs_stale_commits_rejected_total")
    row = JobFactory(running=True)

    leases.end(forged_lease(row), Succeeded(None))

    assert float(stale) == 1


@pytest.mark.django_db(transaction=True)
def test_recovery_at_expiry_is_counted_with_the_time_since_the_expiry():
    count = Change("leasejobs_recoveries_total", cause="lease_expired")
    seconds = Change("leasejobs_recovery_seconds_sum", cause="lease_expired")
    JobFactory(running=True, lease_expires_at=timezone.now() - timedelta(seconds=50))

    recovery.recover_expired()

    assert float(count) == 1
    assert 50 <= float(seconds) < 80


@pytest.mark.django_db(transaction=True)
def test_recovery_from_a_dead_child_is_counted_with_the_time_since_it_was_seen():
    count = Change("leasejobs_recoveries_total", cause="crashed")
    seconds = Change("leasejobs_recovery_seconds_sum", cause="crashed")
    row = JobFactory(running=True)

    recovery.settle_dead(HOLDER, {(row.pk, row.epoch): Cause.CRASHED}, died_at=time.monotonic() - 5)

    assert float(count) == 1
    assert 5 <= float(seconds) < 35


def test_task_nobody_has_is_counted_without_end_under_one_name(monkeypatch):
    monkeypatch.setattr(metrics.TASKS, "_room", 0)
    others = runs("snoozed", task="other")
    gone = [
        Ended(n, f"gone.task_{n}", "default", 1, 1, AttemptOutcome.SNOOZED, State.SCHEDULED)
        for n in range(1_000)
    ]
    assert not {row.task for row in gone} & {task.module_path for task in registry.tasks()}

    signals.attempts_ended.send(sender=None, attempts=gone)

    assert float(others) == 1_000


@pytest.mark.django_db
@pytest.mark.skipif(
    not apps.is_installed("django_prometheus"), reason="django-prometheus is not installed"
)
def test_django_prometheus_exports_what_this_process_counts(client):
    metrics.RUNS.of("default", NOOP, "succeeded").inc()

    text = client.get("/metrics").content.decode()

    assert f'leasejobs_runs_total{{outcome="succeeded",queue="default",task="{NOOP}"}}' in text
    for line in metrics.METRICS.values():
        assert (f"# TYPE {line.name} {line.type}" in text) is (line.name not in SAMPLED)


@pytest.mark.django_db
@pytest.mark.skipif(apps.is_installed("django_prometheus"), reason="django-prometheus is installed")
def test_example_project_has_no_metrics_page_without_django_prometheus(client):
    assert client.get("/metrics").status_code == 404


def test_renewal_that_came_too_late_is_a_lease_conflict():
    conflicts = Change("leasejobs_lease_conflicts_total")
    stale = Change("leasejobs_stale_commits_rejected_total")

    signals.lease_lost.send(
        sender=None, lease=forged_lease(JobFactory.build(pk=1, epoch=1)), outcome=None
    )

    assert (float(conflicts), float(stale)) == (1, 0)


def test_lost_listener_is_counted_and_no_longer_connected():
    metrics.LISTENERS_CONNECTED.set(0)  # whatever listened in this process before
    reconnects = Change("leasejobs_listener_reconnects_total")
    connected = Change("leasejobs_listeners_connected")

    for event, now in (("listener_connected", 1), ("listener_lost", 0)):
        signals.worker_changed.send(sender=None, event=event, fields={})
        assert float(connected) == now

    assert float(reconnects) == 1
