"""The job that tells of a job's end: enqueued by every path, in the transaction of the end."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from leasejobs import leases, operations, recovery
from leasejobs.models import Job
from leasejobs.outcomes import Failed, Failure, Parked, Succeeded
from leasejobs.policy import Backoff
from leasejobs.recovery import Cause
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests.factories import HOLDER, JobFactory, lease_of

POLICY = {
    "task": "tests.tasks.note", "queue": "mail", "priority": 5, "max_attempts": 4,
    "max_crashes": 2, "on_crash": "park", "backoff": Backoff(timedelta(seconds=3)).to_json(),
    "timeout_seconds": 9.0,
}  # fmt: skip
FAILURE = Failure("task_raised")


def dying(**fields):
    return JobFactory(running=True, on_dead=POLICY, tenant="acme", **fields)


def told() -> list[Job]:
    return list(Job.objects.filter(task="tests.tasks.note"))


def fail(job):
    leases.end(lease_of(job), Failed(FAILURE, terminal=True))


def recover(job):
    expire_lease(job)
    recovery.recover_expired()


PATHS = {
    "failed for good": (fail, {}, "task_raised"),
    "failed at its bound": (
        lambda job: leases.end(lease_of(job), Failed(FAILURE)), {"max_attempts": 1}, "task_raised",
    ),
    "parked by its holder": (
        lambda job: leases.end(lease_of(job), Parked(Failure("effect_unknown"))), {},
        "effect_unknown",
    ),
    "crashed once too often": (recover, {"max_crashes": 1}, "lease_expired"),
    "parked by a crash": (recover, {"on_crash": "park"}, "lease_expired"),
    "parked by a shutdown": (
        lambda job: recovery.settle_dead(HOLDER, {(job.pk, job.epoch): Cause.INTERRUPTED}),
        {"on_crash": "park"}, "interrupted",
    ),
    "out of time": (
        lambda job: recovery.settle_dead(HOLDER, {(job.pk, job.epoch): Cause.TIMED_OUT}),
        {"max_crashes": 1}, "timed_out",
    ),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.field_case("B020")
def test_every_way_to_die_enqueues_the_handler_once(path):
    die, fields, reason = PATHS[path]
    job = dying(**fields)

    die(job)

    [handler] = told()
    assert handler.kwargs == {"job_id": job.pk, "reason": reason}
    assert handler.key.startswith(f"dead:{job.pk}:1:")
    assert (handler.tenant, handler.queue, handler.priority) == ("acme", "mail", -5)
    assert (handler.max_attempts, handler.max_crashes, handler.on_crash) == (4, 2, "park")
    assert (handler.backoff, handler.timeout_seconds) == (POLICY["backoff"], 9.0)
    assert handler.on_dead is None
    assert (handler.parent_id, handler.state) == (job.pk, State.PENDING)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "live",
    [
        lambda job: leases.end(lease_of(job), Succeeded()),
        lambda job: leases.end(lease_of(job), Failed(FAILURE)),
        recover,
    ],
)
def test_job_that_lives_on_tells_nobody(live):
    live(dying())

    assert told() == []


@pytest.mark.django_db
def test_cancelled_job_tells_nobody():
    job = dying(cancel_requested_at="2026-01-01T00:00:00Z")

    fail(job)

    assert Job.objects.get(pk=job.pk).state == State.CANCELLED
    assert told() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "damage",
    [
        {"task": "x"},
        ["no", "policy"],
        {**POLICY, "max_attempts": "many"},
        "text",
        7,
        {**POLICY, "timeout_seconds": -1},
        {**POLICY, "timeout_seconds": "x"},
    ],
)
def test_damaged_policy_does_not_hold_up_the_end(damage, caplog):
    job = dying()
    Job.objects.filter(pk=job.pk).update(on_dead=damage)

    fail(job)

    assert Job.objects.get(pk=job.pk).state == State.FAILED
    assert told() == []
    assert "on_dead_unreadable" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_end_that_is_rolled_back_tells_nobody():
    job = dying()

    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        fail(job)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM leasejobs_job WHERE task = 'tests.tasks.note'")
        assert cursor.fetchone() == (0,)


@pytest.mark.django_db
def test_job_parked_again_without_a_run_in_between_tells_again():
    job = JobFactory(on_dead=POLICY)

    for _ in range(2):
        operations.park([job.pk], actor="ann", reason="wait")
        operations.retry([job.pk], actor="ann", reason="go on")

    assert len(told()) == 2
