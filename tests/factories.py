"""Rows for tests: jobs in any state, leased rows, and the receipts of their leases."""

import uuid
from datetime import timedelta
from typing import Any

import factory
from django.utils import timezone

from leasejobs.fencing import Lease, local_clock
from leasejobs.models import Attempt, Job
from leasejobs.policy import Backoff
from leasejobs.states import State
from tests.fenced_app.models import Account

HOLDER = "test-host:1:abc"
LEASE = timedelta(seconds=30)


class _Leasable(factory.django.DjangoModelFactory):
    class Meta:
        abstract = True

    class Params:
        leased = factory.Trait(
            epoch=1,
            lease_token=factory.LazyFunction(uuid.uuid4),
            leased_by=HOLDER,
            lease_expires_at=factory.LazyFunction(lambda: timezone.now() + LEASE),
        )


class AccountFactory(_Leasable):
    """A leased row that is no job."""

    class Meta:
        model = Account

    balance = 100


class JobFactory(_Leasable):
    """A job, pending unless told otherwise; `running=True` brings its lease."""

    class Meta:
        model = Job

    class Params:
        running = factory.Trait(
            leased=True,
            state=State.RUNNING,
            attempts=1,
            claimed_at=factory.LazyFunction(timezone.now),
            started_at=factory.LazyFunction(timezone.now),
        )

    task = "tests.tasks.noop"
    queue = "default"
    priority = 0
    args = factory.LazyFunction(list)
    kwargs = factory.LazyFunction(dict)
    state = State.PENDING
    due_at = factory.LazyFunction(timezone.now)
    created_at = factory.LazyFunction(timezone.now)
    max_attempts = 8
    max_crashes = 3
    on_crash = "retry"
    backoff = factory.LazyFunction(
        lambda: Backoff(timedelta(seconds=10), timedelta(hours=1), 0).to_json()
    )


def job_in(state: State, **fields: Any) -> Job:
    """Make a job that stands in `state`, leased if that is running."""
    if state == State.RUNNING:
        return JobFactory(running=True, **fields)
    if state == State.SCHEDULED:
        fields.setdefault("due_at", timezone.now() + timedelta(hours=1))
    return JobFactory(state=state, **fields)


def lease_of(row: Any, duration: timedelta = LEASE) -> Lease:
    """Return the receipt of the lease that `row` carries."""
    return forged_lease(
        row,
        token=row.lease_token,
        holder=row.leased_by,
        expires_at=row.lease_expires_at,
        duration=duration,
        deadline=local_clock() + duration.total_seconds(),
    )


def forged_lease(row: Any, **changes: Any) -> Lease:
    """Return a receipt for `row` that no claim has given out, unless `changes` say otherwise."""
    fields: dict[str, Any] = {
        "model": type(row),
        "pk": row.pk,
        "epoch": row.epoch,
        "token": uuid.uuid4(),
        "holder": HOLDER,
        "expires_at": timezone.now() + LEASE,
        "duration": LEASE,
        "deadline": local_clock() + LEASE.total_seconds(),
    }
    return Lease(**(fields | changes))


def whole(row: Any) -> dict[str, Any]:
    """Return every column of a row as the database has it now."""
    return dict(type(row)._base_manager.filter(pk=row.pk).values().get())


def attempts_of(job: Job) -> list[dict[str, Any]]:
    """Return every column of the attempts of a job, in their order."""
    return list(Attempt.objects.filter(job_id=job.pk).order_by("epoch").values())
