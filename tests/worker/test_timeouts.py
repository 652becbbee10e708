"""Jobs that run over their `timeout_seconds`: told to stop, then their child is killed."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import limited_tasks as tasks
from tests.worker.fleet import is_alive, notes, outcomes, until, until_noted, until_state
from tests.worker.tasks import wait_for_file

TIMEOUT = 1.0
GRACE = 2.0


def enqueue_limited(task, *arguments, timeout: float = TIMEOUT) -> int:
    [item] = enqueue_many([replace(task.prepare(*arguments), timeout_seconds=timeout)])
    return item.job_id


def test_task_that_heeds_its_timeout_is_not_killed(fleet, tmp_path):
    worker = fleet.start_ready("--lease=60")
    child = worker.child()

    job_id = enqueue_limited(tasks.heed, str(tmp_path), 30)
    job = until_state(job_id, State.SUCCEEDED)

    assert job.result == "told"
    assert (job.attempts, job.crashes, outcomes(job_id)) == (1, 0, ["succeeded"])
    [told] = [line for line in notes(tmp_path) if line[0] == "told"]
    assert TIMEOUT <= float(told[3]) < TIMEOUT + GRACE
    assert worker.child().pid == child.pid


def test_task_within_its_timeout_is_not_told(fleet, tmp_path):
    fleet.start("--lease=60")

    job_id = enqueue_limited(tasks.heed, str(tmp_path), 0.3, timeout=60)

    assert until_state(job_id, State.SUCCEEDED).result == "not told"


@pytest.mark.crash
def test_child_of_a_task_that_heeds_nothing_is_killed_and_its_neighbours_are_refunded(
    fleet, tmp_path
):
    worker = fleet.start_ready("--lease=60", "--threads=3", LOG_LEVEL="INFO")
    child = worker.child()
    neighbours = [wait_for_file.enqueue(str(tmp_path), "finish").job_id for _ in range(2)]
    for neighbour in neighbours:
        until_noted(tmp_path, "begin", neighbour)

    job_id = enqueue_limited(tasks.overrun_once, str(tmp_path))
    until(lambda: not is_alive(child))
    (tmp_path / "finish").touch()

    job = until_state(job_id, State.SUCCEEDED)
    assert (job.attempts, job.crashes, job.result) == (2, 1, 2)
    assert outcomes(job_id) == ["timed_out", "succeeded"]
    lost = Attempt.objects.get(job_id=job_id, epoch=1)
    assert lost.failure_code == "timed_out"
    lasted = lost.ended_at - lost.claimed_at
    assert timedelta(seconds=TIMEOUT + GRACE) <= lasted < timedelta(seconds=TIMEOUT + GRACE + 5)
    for neighbour in neighbours:
        job = until_state(neighbour, State.SUCCEEDED)
        assert (job.attempts, job.crashes, job.interruptions) == (1, 0, 1)
        assert outcomes(neighbour) == ["interrupted", "succeeded"]
    assert "child_killed" in worker.output()
    assert "child_died" not in worker.output()


@pytest.mark.crash
def test_task_that_runs_over_its_time_and_must_not_be_repeated_is_parked(fleet, tmp_path):
    fleet.start("--lease=60")

    job_id = enqueue_limited(tasks.overrun_and_park, str(tmp_path), timeout=0.2)
    job = until_state(job_id, State.PARKED)

    assert (job.failure_code, job.crashes, job.epoch) == ("timed_out", 1, 1)
    assert outcomes(job_id) == ["timed_out"]
    # The next child is there at once.
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    assert Job.objects.get(pk=job_id).epoch == 1


@pytest.mark.crash
def test_timeout_counts_from_the_start_of_the_body_and_not_from_the_claim(fleet, tmp_path):
    worker = fleet.start_ready("--lease=60", "--threads=1")
    enqueue_many([plain.noop.prepare() for _ in range(400)])
    until(lambda: not Job.objects.exclude(state=State.SUCCEEDED).exists())
    child = worker.child()

    # Prefetched behind the first, which takes longer than the second may.
    first = plain.run_and_note.prepare(str(tmp_path), 0.9)
    second = replace(tasks.heed.prepare(str(tmp_path), 0.3), timeout_seconds=0.6)
    found = enqueue_many([first, second])
    job = until_state(found[1].job_id, State.SUCCEEDED)

    assert job.result == "not told"
    assert worker.child().pid == child.pid


def test_alone_a_timeout_tells_the_task_and_then_renews_no_longer(fleet, tmp_path):
    worker = fleet.start("--processes=0", "--lease=1.5", "--threads=2")
    heeding = enqueue_limited(tasks.heed, str(tmp_path), 30)

    assert until_state(heeding, State.SUCCEEDED).result == "told"

    deaf = enqueue_limited(wait_for_file, str(tmp_path), "finish", timeout=0.2)
    began = time.monotonic()
    until(lambda: outcomes(deaf) == ["lost"])
    assert time.monotonic() - began < 10
    assert Job.objects.get(pk=deaf).crashes == 1
    (tmp_path / "finish").touch()
    assert until_state(deaf, State.SUCCEEDED).epoch == 2
    assert worker.stop() == 0
