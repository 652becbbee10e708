"""What a worker must not start: paused queues, expired jobs, tasks it does not know."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job, Queue
from leasejobs.states import State
from tests import tasks as plain
from tests.two_connections import second_session
from tests.worker.fleet import outcomes, until, until_all, until_noted, until_state
from tests.worker.tasks import wait_for_file

POLL = 0.3


def pause(name: str) -> None:
    Queue.objects.update_or_create(name=name, defaults={"paused_at": Now()})


def test_nothing_of_a_paused_queue_is_claimed_until_it_is_resumed(fleet):
    fleet.start_ready(f"--poll={POLL}")
    pause("held")
    stopped = [plain.noop.using(queue_name="held").enqueue().job_id for _ in range(5)]
    later = plain.noop.using(queue_name="held", run_after=timedelta(seconds=0.1)).enqueue().job_id

    # Others go on, for longer than any claim that was under way when the queue was paused.
    for _ in range(3):
        until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    until_state(later, State.PENDING)  # promoted, and held back all the same

    held = Job.objects.filter(queue="held")
    assert set(held.values_list("state", "epoch", "attempts")) == {(State.PENDING, 0, 0)}
    resumed_at = time.monotonic()
    Queue.objects.filter(name="held").update(paused_at=None)
    until_all(State.SUCCEEDED, [*stopped, later])
    assert time.monotonic() - resumed_at < POLL + 5


def test_pause_lets_what_runs_finish(fleet, tmp_path):
    fleet.start("--threads=1")
    running = wait_for_file.using(queue_name="held").enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", running)
    pause("held")
    after = plain.noop.using(queue_name="held").enqueue().job_id

    (tmp_path / "finish").touch()
    until_state(running, State.SUCCEEDED)
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)

    assert Job.objects.get(pk=after).epoch == 0


def test_drain_ends_beside_a_paused_queue_of_every_kind(fleet):
    pause("held")
    held = plain.noop.using(queue_name="held")
    enqueue_many([held.prepare(), replace(held.prepare(), lock_key="a")])
    suspect = held.enqueue().job_id
    Job.objects.filter(pk=suspect).update(crashes=1)
    wanted = plain.noop.enqueue().job_id

    fleet.drain()

    assert outcomes(wanted) == ["succeeded"]
    assert set(Job.objects.filter(queue="held").values_list("state", "epoch")) == {
        (State.PENDING, 0)
    }


def test_job_that_expires_while_it_waits_is_cancelled_and_never_started(fleet, tmp_path):
    fleet.start("--threads=1")
    running = wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", running)
    short = replace(plain.noop.prepare(), expires_after=timedelta(seconds=0.5))
    scheduled = replace(short, delay=timedelta(hours=1))
    locked = replace(short, lock_key="a")
    long = replace(plain.noop.prepare(), expires_after=timedelta(hours=1))
    *expiring, surviving = enqueue_many([short, scheduled, locked, long])

    for item in expiring:
        job = until_state(item.job_id, State.CANCELLED)
        assert (job.failure_code, job.epoch, job.attempts) == ("expired", 0, 0)
        assert job.finished_at >= job.deadline_at
        assert outcomes(job.pk) == []
    (tmp_path / "finish").touch()
    until_state(surviving.job_id, State.SUCCEEDED)


def test_job_past_its_deadline_is_not_claimed_before_anybody_has_cancelled_it(fleet):
    expired = replace(plain.noop.prepare(), expires_after=timedelta(0))
    found = enqueue_many([expired] * 3 + [plain.noop.prepare()] * 3)

    fleet.drain()

    states = Job.objects.in_bulk([item.job_id for item in found])
    assert [states[item.job_id].epoch for item in found] == [0, 0, 0, 1, 1, 1]


VERSIONED = """
import os
from leasejobs import task

@task
def known():
    return "known"

if os.environ["VERSION"] == "2":
    @task(max_attempts=1)
    def fresh():
        return "fresh"
"""


@pytest.fixture
def versions(fleet, tmp_path):
    """Start workers of version 1 or 2 of a module of tasks."""
    (tmp_path / "versioned.py").write_text(VERSIONED)
    path = f"{tmp_path}:{fleet.environment['PYTHONPATH']}"

    def start(version: int, *options: str):
        return fleet.start(*options, VERSION=str(version), PYTHONPATH=path)

    return start


def versioned(name: str, **more):
    prepared = replace(plain.noop.prepare(), task=f"versioned.{name}", max_attempts=1)
    return replace(prepared, **more)


@pytest.mark.field_case("B013")
def test_task_of_a_newer_version_is_put_back_uncharged_and_run_by_the_newer_worker(versions):
    old = versions(1, "--poll=0.2")
    fresh = enqueue_many([versioned("fresh") for _ in range(50)])
    jobs = Job.objects.filter(pk__in=[item.job_id for item in fresh])
    until(lambda: set(jobs.values_list("state", flat=True)) == {State.SCHEDULED})

    # Behind fifty it does not know, the old one runs what it does know.
    known = enqueue_many([versioned("known") for _ in range(5)])
    until_all(State.SUCCEEDED, [item.job_id for item in known])
    assert set(jobs.values_list("state", "attempts", "epoch", "crashes", "failure_code")) == {
        (State.SCHEDULED, 0, 0, 0, "unknown_task")
    }
    assert not Attempt.objects.filter(job__in=jobs).exists()
    assert old.output().count("task_unknown") <= 2  # told once, not for every row

    new = versions(2, "--poll=0.2")
    until(new.children)
    jobs.update(due_at=Now())
    # Whoever promotes them, the old one may look at them again before the new one does.
    until(lambda: _hastened(jobs) and not jobs.exclude(state=State.SUCCEEDED).exists())
    assert set(jobs.values_list("attempts", "epoch")) == {(1, 1)}
    assert Attempt.objects.filter(job__in=jobs, outcome="succeeded").count() == 50
    assert Attempt.objects.filter(job__in=jobs).count() == 50


@pytest.mark.field_case("B013")
def test_worker_that_knows_nothing_in_a_queue_does_not_spin(versions):
    old = versions(1, "--poll=0.2")
    enqueue_many([versioned("fresh") for _ in range(50)])
    until(lambda: not Job.objects.exclude(state=State.SCHEDULED).exists())
    before = _updates()

    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2)

    assert _updates() - before == 0
    assert old.children()


def test_unknown_row_that_somebody_has_locked_holds_up_no_other_queue(versions):
    worker = versions(1, "--poll=0.2")
    until(worker.is_listening)
    [unknown] = enqueue_many([versioned("fresh", queue="first", delay=timedelta(hours=1))])

    with second_session() as other:
        other.execute("SELECT FROM leasejobs_job WHERE id = %s FOR UPDATE", [unknown.job_id])
        other.execute("UPDATE leasejobs_job SET state = 2 WHERE id = %s", [unknown.job_id])
        other.commit()
        other.execute("SELECT FROM leasejobs_job WHERE id = %s FOR UPDATE", [unknown.job_id])
        for _ in range(5):
            [known] = enqueue_many([versioned("known", queue="second")])
            until_state(known.job_id, State.SUCCEEDED)
        child = worker.child()
        before, began = child.cpu_times().user, time.monotonic()
        until(lambda: time.monotonic() - began > 1.5)
        spent = child.cpu_times().user - before

    assert spent < 0.7


def _hastened(jobs) -> bool:
    jobs.filter(state=State.SCHEDULED).update(due_at=Now())
    return True


def _updates() -> int:
    """Return how many rows of jobs anybody has written so far."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(revision + epoch) FROM leasejobs_job")
        return cursor.fetchone()[0]
