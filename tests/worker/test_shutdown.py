"""SIGTERM, SIGINT, once and twice, to whom ever: what runs, what goes back, what is charged."""

import os
import signal
import time

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import (
    holder_of,
    is_alive,
    outcomes,
    state_of,
    until,
    until_all,
    until_noted,
    until_state,
)

# Far below the 25 seconds that SHUTDOWN_SECONDS grants.
AT_ONCE = 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.field_case("B054")
def test_idle_worker_exits_0_at_once(fleet, number):
    worker = fleet.start_ready("--poll=30", "--processes=2")

    worker.signal(number)

    assert worker.wait(AT_ONCE) == 0
    assert fleet.processes() == []


@pytest.mark.field_case("B054")
def test_worker_signalled_while_it_starts_exits_0(fleet):
    worker = fleet.start()
    until(worker.children)

    worker.signal(signal.SIGTERM)

    assert worker.wait(AT_ONCE) == 0


def test_busy_worker_finishes_what_it_began_and_releases_the_rest(fleet, tmp_path):
    worker = fleet.start("--threads=1")
    # Until it knows that jobs are short, a worker does not prefetch.
    enqueue_many([plain.noop.prepare() for _ in range(400)])
    until_all(State.SUCCEEDED)

    first = tasks.wait_for_file.using(priority=100)
    running, *rest = enqueue_many(
        [first.prepare(str(tmp_path), "finish"), *(plain.noop.prepare() for _ in range(30))]
    )
    until_noted(tmp_path, "begin", running.job_id)
    worker.signal(signal.SIGTERM)
    until_noted(tmp_path, "told", running.job_id)
    (tmp_path / "finish").touch()

    assert worker.wait(AT_ONCE) == 0
    assert outcomes(running.job_id) == ["succeeded"]
    waiting = Job.objects.filter(pk__in=[item.job_id for item in rest])
    assert set(waiting.values_list("state", "attempts", "crashes", "interruptions")) == {
        (State.PENDING, 0, 0, 0)
    }
    released = Attempt.objects.filter(job__in=waiting)
    assert released.count() > 0
    assert set(released.values_list("outcome", flat=True)) == {"released"}


def test_task_sees_that_the_worker_shuts_down(fleet, tmp_path):
    worker = fleet.start()
    job_id = plain.wait_for_stop.enqueue(str(tmp_path)).job_id
    until_noted(tmp_path, "begin", job_id)

    assert worker.stop() == 0

    job = Job.objects.get(pk=job_id)
    assert (job.state, job.result, job.attempts) == (State.SUCCEEDED, "stopped", 1)


@pytest.mark.crash
def test_work_beyond_the_grace_period_is_interrupted_by_its_own_policy(fleet, tmp_path):
    worker = fleet.start("--lease=60", shutdown=1)
    retried = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    parked = tasks.park_for_file.enqueue(str(tmp_path), "finish").job_id
    for job_id in (retried, parked):
        until_noted(tmp_path, "begin", job_id)

    assert worker.stop() == 0

    assert fleet.processes() == []
    job = Job.objects.get(pk=retried)
    assert (job.state, job.attempts, job.crashes, job.interruptions) == (State.PENDING, 0, 0, 1)
    assert outcomes(retried) == ["interrupted"]
    job = Job.objects.get(pk=parked)
    assert (job.state, job.failure_code) == (State.PARKED, "interrupted")
    assert (job.crashes, job.interruptions) == (0, 1)
    assert outcomes(parked) == ["interrupted"]
    (tmp_path / "finish").touch()
    fleet.start()
    assert until_state(retried, State.SUCCEEDED).attempts == 1
    assert state_of(parked) is State.PARKED


@pytest.mark.crash
@pytest.mark.field_case("B054")
def test_second_signal_ends_the_worker_at_once_and_settles_its_rows(fleet, tmp_path):
    worker = fleet.start("--lease=60", "--processes=2", "--threads=1")
    jobs = [tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id for _ in range(2)]
    for job_id in jobs:
        until_noted(tmp_path, "begin", job_id)

    worker.signal(signal.SIGTERM)
    for job_id in jobs:
        until_noted(tmp_path, "told", job_id)
    assert worker.process.poll() is None
    worker.signal(signal.SIGTERM)

    assert worker.wait(AT_ONCE) == 0
    assert fleet.processes() == []
    for job in Job.objects.all():
        assert (job.state, job.attempts, job.crashes) == (State.PENDING, 0, 0)
        assert job.interruptions == 1
        assert outcomes(job.pk) == ["interrupted"]


def test_interrupt_of_the_whole_process_group_is_one_signal(fleet, tmp_path):
    worker = fleet.start("--processes=2", "--threads=1")
    jobs = [tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id for _ in range(2)]
    for job_id in jobs:
        until_noted(tmp_path, "begin", job_id)

    os.killpg(worker.pid, signal.SIGINT)
    for job_id in jobs:
        until_noted(tmp_path, "told", job_id)
    (tmp_path / "finish").touch()

    assert worker.wait(AT_ONCE) == 0
    assert [outcomes(job_id) for job_id in jobs] == [["succeeded"], ["succeeded"]]
    assert "Traceback" not in worker.output()


def test_child_told_to_stop_finishes_and_is_replaced(fleet, tmp_path):
    worker = fleet.start("--threads=1")
    running = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", running)
    child = worker.child()

    child.terminate()
    until_noted(tmp_path, "told", running)
    after = plain.noop.enqueue().job_id
    (tmp_path / "finish").touch()
    until_state(after, State.SUCCEEDED)

    assert outcomes(running) == ["succeeded"]
    assert not is_alive(child)
    replaced = worker.child()
    assert replaced.pid != child.pid
    assert Attempt.objects.get(job_id=after).worker == holder_of(replaced)


@pytest.mark.crash
def test_frozen_child_is_killed_at_the_end_of_a_shutdown(fleet, tmp_path):
    worker = fleet.start("--lease=60", shutdown=0.5)
    job_id = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", job_id)
    worker.child().suspend()

    began = time.monotonic()
    assert worker.stop() == 0

    assert time.monotonic() - began < AT_ONCE * 2
    assert fleet.processes() == []
    assert outcomes(job_id) == ["interrupted"]
