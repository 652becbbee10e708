"""Two runs of one row: the later one counts, whoever holds it and whatever the first one does."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from leasejobs import claiming, leases
from leasejobs.exceptions import LeaseLost
from leasejobs.fencing import UNLEASED, fenced
from leasejobs.leases import Written
from leasejobs.models import Attempt, Job
from leasejobs.outcomes import Failed, Failure, Succeeded
from leasejobs.recovery import recover_expired
from leasejobs.renewal import renew
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests import tasks as plain
from tests.factories import HOLDER, JobFactory, whole
from tests.field import tasks
from tests.worker import limited_tasks
from tests.worker.fleet import outcomes, until, until_noted, until_state

HOUR = timedelta(hours=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B003")
def test_first_run_cannot_touch_the_second_of_the_same_holder():
    def claim():
        [found] = claiming.claim_jobs("default", holder=HOLDER, duration=HOUR, limit=1)
        return found

    job = JobFactory()
    _, first = claim()
    expire_lease(job)
    recover_expired()
    Job.objects.filter(pk=job.pk).update(crashes=0)  # out of the stream of suspects
    _, second = claim()
    before = whole(job)

    assert (first.holder, first.pk) == (second.holder, second.pk)
    assert renew([first])[2] == [first]
    assert leases.end(first, Succeeded("late")) is Written.LOST
    assert leases.end(first, Failed(Failure("late"))) is Written.LOST
    assert leases.complete_many([(job, first)], {job.pk: "late"}) == {job.pk: Written.LOST}
    assert leases.record_progress(first, 1, None) is False
    with pytest.raises(LeaseLost), fenced(first):
        raise AssertionError("entered")
    assert whole(job) == before
    assert leases.end(second, Succeeded("in time")) is Written.WRITTEN
    assert leases.end(first, Succeeded("late")) is Written.LOST
    assert Job.objects.get(pk=job.pk).result == "in time"


@pytest.mark.field_case("B003")
def test_stalled_run_of_one_worker_ends_nothing_of_the_next_run_there(fleet, tmp_path):
    # A child that still has the stalled run in hand keeps the turn to run suspects for a lease.
    worker = fleet.start("--lease=2", "--processes=2", "--threads=1", LOG_LEVEL="INFO")
    job_id = tasks.stall_once.enqueue(str(tmp_path), "gate").job_id
    until_noted(tmp_path, "begin", job_id, 1)

    expire_lease(Job.objects.get(pk=job_id))
    job = until_state(job_id, State.SUCCEEDED)
    (tmp_path / "gate").touch()
    until_noted(tmp_path, "end", job_id, 1)
    late = until(lambda: Attempt.objects.filter(job=job).exclude(late_outcome="").first())

    after = Job.objects.get(pk=job_id)
    assert (after.result, after.finished_at, after.revision) == (2, job.finished_at, job.revision)
    assert outcomes(job_id) == ["lost", "succeeded"]
    assert (late.epoch, late.late_outcome) == (1, "succeeded")
    assert "lease_lost" in worker.output()


@pytest.mark.field_case("B110")
def test_run_that_was_failed_by_force_stops_and_a_retry_makes_one_new_run(fleet, tmp_path):
    worker = fleet.start("--lease=1.5")
    child = worker.child()
    job_id = limited_tasks.heed.enqueue(str(tmp_path), 60).job_id
    until_noted(tmp_path, "begin", job_id)

    Job.objects.filter(pk=job_id).update(
        state=State.FAILED, finished_at=Now(), failure_code="by_force", **UNLEASED
    )
    until_noted(tmp_path, "told", job_id, 1)
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    assert Job.objects.get(pk=job_id).state == State.FAILED

    Job.objects.filter(pk=job_id).update(state=State.PENDING, due_at=Now(), finished_at=None)
    until_noted(tmp_path, "begin", job_id, 2)
    Job.objects.filter(pk=job_id).update(cancel_requested_at=Now())
    assert until_state(job_id, State.SUCCEEDED).epoch == 2
    assert worker.child().pid == child.pid
