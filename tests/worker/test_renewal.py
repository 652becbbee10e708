"""What must not cost a healthy worker its lease, and what a lease bounds."""

from datetime import timedelta

import pytest

from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests.worker import tasks
from tests.worker.fleet import outcomes, until_all, until_state

LEASE = "--lease=1"
LEASES = 4


@pytest.mark.field_case("B065")
def test_work_of_many_leases_is_claimed_once(fleet):
    fleet.start(LEASE, "--processes=2", "--threads=3")

    jobs = [
        tasks.many_blocks.enqueue(LEASES).job_id,
        tasks.compute.enqueue(LEASES).job_id,
        tasks.compute.enqueue(LEASES).job_id,
        # Its row is locked all the time: renewal is skipped, and the end of the block re-arms it.
        tasks.long_block.enqueue(LEASES, "effect").job_id,
    ]
    until_all(State.SUCCEEDED)

    assert [outcomes(job_id) for job_id in jobs] == [["succeeded"]] * len(jobs)
    assert {job.epoch for job in Job.objects.all()} == {1}
    assert Job.objects.get(pk=jobs[0]).result > 10
    assert tasks.told("effect") == 1


def test_statement_longer_than_the_lease_is_cancelled_and_nothing_is_written(fleet):
    fleet.start(LEASE)

    job_id = tasks.stall_in_block.enqueue(20, "effect", "statement").job_id
    job = until_state(job_id, State.FAILED)

    attempt = Attempt.objects.get(job_id=job_id)
    assert attempt.ended_at - attempt.claimed_at < timedelta(seconds=15)
    assert tasks.told("effect") == 0
    assert job.epoch == 1


def test_pause_in_a_block_longer_than_the_lease_is_cut_off_and_nothing_is_written(fleet):
    fleet.start(LEASE)

    job_id = tasks.stall_in_block.enqueue(3, "effect", "pause").job_id
    job = until_state(job_id, State.FAILED)

    assert tasks.told("effect") == 0
    assert job.epoch == 1
    after = tasks.count_markets.enqueue().job_id
    until_state(after, State.SUCCEEDED)
    assert outcomes(after) == ["succeeded"]
