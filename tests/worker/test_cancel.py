"""A running job that somebody asks to cancel."""

import time

import pytest
from django.db.models.functions import Now

from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import limited_tasks as tasks
from tests.worker.fleet import notes, outcomes, until_noted, until_state
from tests.worker.tasks import wait_for_file

LEASE = 3


def ask_to_cancel(job_id: int) -> None:
    Job.objects.filter(pk=job_id).update(cancel_requested_at=Now())


def test_running_job_is_told_of_its_cancel_within_a_heartbeat(fleet, tmp_path):
    fleet.start(f"--lease={LEASE}", "--threads=2")
    cancelled = tasks.heed.enqueue(str(tmp_path), 60).job_id
    other = wait_for_file.enqueue(str(tmp_path), "finish").job_id
    for job_id in (cancelled, other):
        until_noted(tmp_path, "begin", job_id)

    ask_to_cancel(cancelled)
    asked_at = time.monotonic()
    until_noted(tmp_path, "told", cancelled)

    assert time.monotonic() - asked_at < LEASE / 3 + 1
    # It ended in success all the same: what is done is done.
    assert until_state(cancelled, State.SUCCEEDED).result == "told"
    (tmp_path / "finish").touch()
    until_state(other, State.SUCCEEDED)
    assert ["told", str(other)] not in [line[:2] for line in notes(tmp_path)]


def test_cancelled_job_that_fails_is_cancelled_and_not_retried(fleet, tmp_path):
    fleet.start(f"--lease={LEASE}")
    job_id = plain.run_and_note.enqueue(str(tmp_path / "gone"), 0).job_id

    # It cannot note anything, so it fails, each time; the cancel comes while it waits or runs.
    until_state(job_id, State.RETRYABLE)
    Job.objects.filter(pk=job_id).update(due_at=Now(), cancel_requested_at=Now())

    job = until_state(job_id, State.CANCELLED)
    assert outcomes(job_id)[-1] == "failed"
    assert job.finished_at is not None


@pytest.mark.crash
def test_cancel_of_a_job_whose_child_is_killed_is_finished_by_its_supervisor(fleet, tmp_path):
    worker = fleet.start("--lease=60")
    job_id = wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", job_id)
    ask_to_cancel(job_id)

    worker.child().kill()

    job = until_state(job_id, State.CANCELLED)
    assert (job.epoch, job.crashes) == (1, 1)
    assert outcomes(job_id) == ["lost"]
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    assert Job.objects.get(pk=job_id).state == State.CANCELLED
