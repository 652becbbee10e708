"""Idle workers are woken by a notification, and find by polling what no notification told."""

import contextlib
import random
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from leasejobs.models import Attempt
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import (
    backends,
    is_alive,
    listening_backends,
    outcomes,
    terminate,
    until,
    until_state,
)

# A poll would make a job wait for half of it, on average.
POLL = "--poll=30"
WELL_BEFORE_THE_POLL = timedelta(seconds=10)
TIMES = 20


def waited(job_id: int) -> timedelta:
    job = until_state(job_id, State.SUCCEEDED)
    return job.claimed_at - max(job.created_at, job.due_at)


def wait_of_one_after_the_other() -> timedelta:
    """Return for how long jobs waited in all, each enqueued when the worker had gone idle."""
    total = timedelta(0)
    for _ in range(TIMES):
        total += waited(plain.noop.enqueue().job_id)
        time.sleep(random.random() * 0.03)  # the worker goes back to sleep meanwhile, or not
    return total


def test_idle_worker_is_woken_by_an_enqueue(fleet):
    fleet.start_ready(POLL)
    waited(plain.noop.enqueue().job_id)

    assert wait_of_one_after_the_other() < timedelta(seconds=6)


@pytest.mark.crash
@pytest.mark.field_case("B008")
def test_listener_whose_session_was_ended_listens_again(fleet):
    worker = fleet.start_ready(POLL)
    waited(plain.noop.enqueue().job_id)
    child = worker.child()

    terminate(listening_backends())
    until(listening_backends)

    assert wait_of_one_after_the_other() < timedelta(seconds=6)
    assert worker.child().pid == child.pid


@pytest.mark.crash
@pytest.mark.field_case("B035")
def test_idle_worker_whose_sessions_were_all_ended_runs_the_next_job_at_its_first_attempt(fleet):
    worker = fleet.start_ready(POLL)
    for _ in range(8):
        waited(tasks.count_markets.enqueue().job_id)
    child = worker.child()

    for _ in range(3):
        terminate(backends())
        until(listening_backends)
        job_id = tasks.count_markets.enqueue().job_id
        job = until_state(job_id, State.SUCCEEDED)
        assert (job.attempts, job.epoch) == (1, 1)
        assert outcomes(job_id) == ["succeeded"]

    assert worker.child().pid == child.pid
    assert is_alive(child)


def test_job_that_nobody_notified_of_is_found_by_polling(fleet):
    fleet.start_ready("--poll=0.5")
    known = plain.noop.enqueue().job_id
    until_state(known, State.SUCCEEDED)

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO leasejobs_job (task, queue, priority, args, kwargs, state, due_at,"
            " created_at, max_attempts, max_crashes, on_crash, backoff)"
            " SELECT task, queue, priority, args, kwargs, %s, clock_timestamp(),"
            " clock_timestamp(), max_attempts, max_crashes, on_crash, backoff"
            " FROM leasejobs_job WHERE id = %s RETURNING id",
            [State.PENDING, known],
        )
        (job_id,) = cursor.fetchone()

    assert waited(job_id) < WELL_BEFORE_THE_POLL


@pytest.mark.field_case("B096")
def test_scheduled_job_starts_when_it_is_due_and_not_at_the_next_poll(fleet):
    fleet.start_ready(POLL)

    job_id = plain.noop.using(run_after=timedelta(seconds=2)).enqueue().job_id
    retried = tasks.fail_then_wait.using(max_attempts=2).enqueue().job_id

    job = until_state(job_id, State.SUCCEEDED)
    assert job.due_at - job.created_at >= timedelta(seconds=2)
    assert timedelta(0) <= job.claimed_at - job.due_at < WELL_BEFORE_THE_POLL
    until_state(retried, State.FAILED)
    first, second = Attempt.objects.filter(job_id=retried).order_by("epoch")
    assert timedelta(seconds=1) <= second.claimed_at - first.ended_at < WELL_BEFORE_THE_POLL


@pytest.mark.crash
@pytest.mark.field_case("B096")
def test_job_enqueued_while_a_worker_starts_does_not_wait_for_the_poll(fleet):
    queues = [f"queue-{number}" for number in range(5)]
    for queue in queues:
        fleet.start(POLL, f"--queues={queue}", "--threads=1")

    jobs = []
    for queue in random.sample(queues * 3, len(queues) * 3):
        time.sleep(random.random() * 0.4)  # the race is what this is about
        jobs.append(plain.noop.using(queue_name=queue).enqueue().job_id)

    assert max(waited(job_id) for job_id in jobs) < timedelta(seconds=20)


@pytest.mark.crash
def test_database_that_refuses_sessions_for_a_while_is_survived(fleet):
    worker = fleet.start_ready(POLL)
    waited(tasks.count_markets.enqueue().job_id)
    child = worker.child()

    with refusing_sessions():
        terminate(backends())
        before = child.cpu_times().user
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2)  # it must not spin meanwhile
        spent = child.cpu_times().user - before
        assert backends() == []
    job_id = tasks.count_markets.enqueue().job_id
    job = until_state(job_id, State.SUCCEEDED)

    assert spent < 1
    assert outcomes(job_id) == ["succeeded"]
    assert job.attempts == 1
    assert worker.child().pid == child.pid


@contextlib.contextmanager
def refusing_sessions() -> Iterator[None]:
    """Let the server refuse new sessions of the test database; the test's own goes on."""
    target = connection.get_connection_params()
    name = target.pop("dbname")
    target = {key: value for key, value in target.items() if isinstance(value, str | int)}

    def allow(answer: str) -> None:
        with psycopg.connect(dbname="postgres", autocommit=True, **target) as administrator:
            administrator.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {answer}')

    allow("false")
    try:
        yield
    finally:
        allow("true")
