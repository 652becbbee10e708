"""A child frozen past its lease: another worker takes over, and the thawed one is refused."""

import os
import signal

import pytest

from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import holder_of, is_alive, outcomes, until, until_all, until_state

pytestmark = pytest.mark.crash

LEASE = "--lease=1.5"


def freeze_take_over_and_thaw(fleet, point, task, *arguments):
    """Let a child freeze itself at `point`, another finish its job, and the first one go on.

    Return the job, and the first worker, which is alone again.
    """
    frozen = fleet.start(LEASE, points=f"{point}=stop")
    job_id = task.enqueue(*arguments).job_id
    stopped = frozen.point_process(point)
    try:
        other = fleet.start(LEASE)
        until_state(job_id, State.SUCCEEDED)
        succeeded = Attempt.objects.get(job_id=job_id, outcome="succeeded")
        assert f":{other.pid}." in succeeded.worker
        assert other.stop() == 0
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert frozen.child().pid == stopped
    return Job.objects.get(pk=job_id), frozen


def assert_still_works(worker) -> None:
    child = worker.child()

    job_ids = [plain.noop.enqueue().job_id for _ in range(10)]
    until_all(State.SUCCEEDED, job_ids)

    holders = set(Attempt.objects.filter(job_id__in=job_ids).values_list("worker", flat=True))
    assert holders == {holder_of(child)}
    assert is_alive(child)


def late_outcome(job: Job) -> str:
    return until(
        lambda: Attempt.objects.filter(job=job, epoch=1).exclude(late_outcome="").first()
    ).late_outcome


@pytest.mark.parametrize("point", ["begun", "fenced_locked", "fenced_body", "fenced_written"])
@pytest.mark.field_case("B003")
def test_fenced_write_of_a_child_frozen_past_its_lease_is_refused(fleet, tmp_path, point):
    job, worker = freeze_take_over_and_thaw(
        fleet, point, tasks.tell_fenced, str(tmp_path), "effect"
    )

    assert late_outcome(job) == "failed"
    assert tasks.told("effect") == 1
    assert outcomes(job.pk) == ["lost", "succeeded"]
    assert Attempt.objects.get(job=job, epoch=1).failure_code == "lease_expired"
    assert Job.objects.get(pk=job.pk).revision == job.revision
    assert_still_works(worker)


def test_outcome_of_a_child_frozen_past_its_lease_is_refused_and_recorded(fleet, tmp_path):
    job, worker = freeze_take_over_and_thaw(fleet, "returned", plain.run_and_note, str(tmp_path))

    assert late_outcome(job) == "succeeded"
    assert outcomes(job.pk) == ["lost", "succeeded"]
    assert Job.objects.get(pk=job.pk).result == 2
    assert_still_works(worker)


def test_child_frozen_with_a_claimed_batch_begins_none_of_it(fleet, tmp_path):
    job, worker = freeze_take_over_and_thaw(fleet, "slotted", plain.run_and_note, str(tmp_path))

    assert_still_works(worker)
    lines = (tmp_path / "runs").read_text().splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["begin", str(job.pk), "2"],
        ["end", str(job.pk), "2"],
    ]
    assert outcomes(job.pk) == ["lost", "succeeded"]


def test_task_whose_lease_was_lost_is_told_to_stop(fleet, tmp_path):
    frozen = fleet.start(LEASE)
    job_id = plain.wait_for_stop.enqueue(str(tmp_path)).job_id
    child = frozen.child()
    until(lambda: (tmp_path / "runs").exists())
    child.suspend()
    try:
        fleet.start(LEASE)
        until(lambda: Job.objects.get(pk=job_id).epoch == 2)
    finally:
        child.resume()

    until(lambda: f"end {job_id} 1 {child.pid}" in (tmp_path / "runs").read_text())

    attempt = until(lambda: Attempt.objects.filter(job_id=job_id).exclude(late_outcome="").first())
    assert (attempt.epoch, attempt.outcome, attempt.late_outcome) == (1, "lost", "succeeded")
    assert Job.objects.get(pk=job_id).epoch == 2


def test_row_that_a_frozen_child_has_locked_is_free_again_after_a_lease(fleet):
    job_id = plain.retry_once.enqueue().job_id
    frozen = fleet.start(LEASE, points="moving=stop")
    stopped = frozen.point_process("moving")

    try:
        fleet.start(LEASE)
        until_state(job_id, State.SUCCEEDED)
    finally:
        os.kill(stopped, signal.SIGCONT)

    assert outcomes(job_id) == ["lost", "succeeded"]
    until(lambda: Attempt.objects.get(job=job_id, epoch=1).late_outcome == "failed")
