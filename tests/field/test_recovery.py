"""Rows of workers that are gone: found whatever lies in front of them or is deleted beside them."""

import pytest

from leasejobs import recovery
from leasejobs.models import Attempt, Job, Worker
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests.factories import JobFactory
from tests.field import tasks
from tests.two_connections import second_session
from tests.worker.fleet import notes, outcomes, until, until_noted, until_state
from tests.worker.tasks import wait_for_file

BATCH = 5


def expired_jobs(count: int) -> list[Job]:
    jobs = JobFactory.create_batch(count, running=True)
    for job in jobs:
        expire_lease(job)
    return jobs


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B041")
def test_locked_rows_in_front_do_not_starve_those_behind():
    stuck, behind = expired_jobs(BATCH + 1), expired_jobs(4)

    with second_session() as other:
        other.execute(
            "SELECT FROM leasejobs_job WHERE id = ANY(%s) FOR UPDATE", [[job.pk for job in stuck]]
        )
        for _ in range(2):
            recovery.recover_expired(BATCH)

    assert not Job.objects.filter(pk__in=[job.pk for job in behind], state=State.RUNNING).exists()
    assert Job.objects.filter(pk__in=[job.pk for job in stuck], state=State.RUNNING).count() == 6


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B041")
def test_rows_that_always_fail_do_not_starve_those_behind():
    stuck, behind = expired_jobs(BATCH + 1), expired_jobs(4)
    for job in stuck:  # whose attempt somebody wrote by hand: it cannot be written again
        Attempt.objects.create(
            job=job, epoch=job.epoch, number=1, worker="x", outcome="lost",
            claimed_at=job.claimed_at, ended_at=job.claimed_at,
        )  # fmt: skip

    for _ in range(2):
        recovery.recover_expired(BATCH)

    assert not Job.objects.filter(pk__in=[job.pk for job in behind], state=State.RUNNING).exists()


@pytest.mark.crash
@pytest.mark.field_case("B116")
def test_rows_of_a_dead_host_are_recovered_though_its_registration_was_deleted(fleet, tmp_path):
    worker = fleet.start("--lease=2")
    job_id = wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", job_id)
    until(Worker.objects.exists)

    worker.kill_host()
    Worker.objects.all().delete()
    (tmp_path / "finish").touch()
    fleet.start("--lease=2")

    until_state(job_id, State.SUCCEEDED)
    assert outcomes(job_id) == ["lost", "succeeded"]


@pytest.mark.crash
@pytest.mark.field_case("B085")
def test_progress_goes_on_from_the_checkpoint_and_never_back(fleet, tmp_path):
    fleet.start("--lease=60", "--threads=1")
    seen: list[int] = []

    job_id = tasks.advance_and_die.enqueue(str(tmp_path)).job_id

    def is_done() -> bool:
        state, done = Job.objects.values_list("state", "progress_done").get(pk=job_id)
        seen.append(done or 0)
        return state == State.SUCCEEDED

    until(is_done)
    job = Job.objects.get(pk=job_id)
    assert notes(tmp_path) == [
        ["start", str(job_id), "1", "0"],
        ["start", str(job_id), "2", "70"],
    ]
    assert seen == sorted(seen)
    assert (job.progress_done, job.checkpoint, job.result) == (100, 100, 70)
    assert outcomes(job_id) == ["lost", "succeeded"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B083")
def test_job_that_outlives_every_lease_is_begun_as_often_as_it_may_be_and_no_more():
    from leasejobs import claiming
    from tests.factories import HOLDER, LEASE

    job = JobFactory(max_attempts=3, max_crashes=10)
    starts = 0
    for _ in range(10):
        for stream in claiming.Stream:
            starts += len(
                claiming.claim_jobs(
                    "default", holder=HOLDER, duration=LEASE, limit=1, stream=stream
                )
            )
        if Job.objects.get(pk=job.pk).state == State.RUNNING:
            expire_lease(job)
            recovery.recover_expired()
        Job.objects.filter(pk=job.pk, state=State.RETRYABLE).update(state=State.PENDING)

    found = Job.objects.get(pk=job.pk)
    assert (starts, found.state, found.attempts) == (3, State.FAILED, 3)
