"""Run jobs on the test's own connection and thread, by the real executor under a real lease.

No transaction is opened around a job: `fenced()` and the writing of outcomes have their own, and
those are exempt inside the transaction of a TestCase (or of pytest-django's `db`) only as long as
nothing else is between.
"""

import contextvars
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.db import Error, connections
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce, Now
from psycopg.pq import TransactionStatus

from leasejobs import conf, executor, leases, recovery
from leasejobs.fencing import Lease, claim
from leasejobs.heartbeat import Held
from leasejobs.leases import Written
from leasejobs.models import Job, Queue
from leasejobs.models.job import URGENCY, JobQuerySet
from leasejobs.outcomes import Failed, Failure, Outcome
from leasejobs.sessions import is_content_refused, is_inside_transaction
from leasejobs.states import State

# Nothing renews it: long enough for a debugger.
_LEASE: Final = timedelta(hours=1)


def run_due(queue: str | None = None, *, limit: int = 100, until_empty: bool = True) -> list[Job]:
    """Run what is due, in this thread and on this connection; return one `Job` for each run.

    Does what a worker's tick does: takes back rows whose lease ran out, cancels those past their
    deadline, promotes what came due, then claims and runs the most urgent job, of `queue` only if
    that is given, until nothing is due: also what those jobs enqueue, continue or retry without a
    delay. Works inside TestCase. No timeout is enforced, and no lane but the jobs' is run.

    Each `Job` returned is the row as its run left it, in the order of the runs; one that
    continued twice and then succeeded is there three times. What the jobs raise is on their rows
    (`failure_code`, `failure_detail`) and attempts, as in a worker, and not raised here.

    Raises AssertionError if `limit` runs were not enough: a job that for ever continues, or
    enqueues itself, never leaves the table empty. With `until_empty=False` only what is due now
    is run, each job once and `limit` of them at most, and nothing is raised. Raises RuntimeError
    inside an `atomic()` of the test's own, where no worker would see the jobs, and if a task
    leaves the session in a transaction, open or failed.
    """
    _refuse_transaction("run_due()")
    return list(_run_until_empty(queue, limit) if until_empty else _run_once(queue, limit))


def run_job(pk: int) -> Job | None:
    """Claim one pending job and run it; return its row, None if no worker could start it now."""
    _refuse_transaction("a job")
    claimed = claim(
        _startable().filter(pk=pk),
        holder=f"testing@{socket.gethostname()}:{os.getpid()}",
        duration=_LEASE,
        limit=1,
        changes={
            "state": State.RUNNING,
            "attempts": F("attempts") + 1,
            "claimed_at": Now(),
            "started_at": Coalesce(F("started_at"), Now()),
        },
    )
    for job, lease in claimed:
        _run(job, lease)
        left: Job | None = Job.objects.using(conf.database()).filter(pk=pk).first()
        return left or job  # a task may delete its own row
    return None


def _run_until_empty(queue: str | None, limit: int) -> Iterator[Job]:
    busy: list[int] = []
    runs = 0
    while True:
        _tick()
        due = _startable(queue).exclude(pk__in=busy).first()
        if due is None:
            return
        if runs >= limit:
            raise AssertionError(
                f"run_due() ran {runs} jobs and {due} is due still: does a task continue, or"
                " enqueue itself, for ever? Otherwise pass a larger limit"
            )
        job = run_job(due.pk)
        if job is None:
            busy.append(due.pk)  # somebody else has it locked
            continue
        runs += 1
        yield job


def _run_once(queue: str | None, limit: int) -> Iterator[Job]:
    _tick()
    for pk in list(_startable(queue).values_list("pk", flat=True)[:limit]):
        job = run_job(pk)
        if job is not None:
            yield job


def _tick() -> None:
    recovery.recover_expired()
    while recovery.expire() or recovery.promote():
        pass


def _startable(queue: str | None = None) -> JobQuerySet:
    """Return the pending rows that a worker may claim, most urgent first."""
    alias = conf.database()
    jobs, queues = Job.objects.using(alias), Queue.objects.using(alias)
    paused = queues.filter(name=OuterRef("queue"), paused_at__isnull=False)
    holding = jobs.filter(
        state=State.RUNNING, tenant=OuterRef("tenant"), lock_key=OuterRef("lock_key")
    )
    rows: JobQuerySet = jobs.filter(
        Q(deadline_at__isnull=True) | Q(deadline_at__gt=Now()),
        Q(lock_key="") | ~Exists(holding),
        ~Exists(paused),
        state=State.PENDING,
    ).order_by(*URGENCY)
    return rows if queue is None else rows.filter(queue=queue)


def _run(job: Job, lease: Lease) -> None:
    held = Held(lease)
    # In a copy of the context: what a task binds (structlog) or activates stays its own, and
    # what the caller has bound is still there afterwards.
    outcome = contextvars.copy_context().run(executor.run, job, held, lambda: False)
    _refuse_dirty(job)
    if outcome is not None:
        _write(job, held.lease, outcome)
    if isinstance(outcome, Failed) and outcome.failure.exception_path == _INTERRUPT:
        raise KeyboardInterrupt  # of the one who runs the tests, not of the task


_INTERRUPT: Final = "builtins.KeyboardInterrupt"


def _write(job: Job, lease: Lease, outcome: Outcome) -> None:
    try:
        written = leases.end(lease, outcome)
    except Error as error:
        if not is_content_refused(error):
            raise
        written = leases.end(lease, Failed(Failure("unrecordable_outcome"), terminal=True))
    if written is Written.BUSY:
        raise AssertionError(f"another connection has {job} locked: its outcome is not written")


def _refuse_transaction(what: str) -> None:
    if is_inside_transaction(conf.database()):
        raise RuntimeError(
            f"{what} cannot run inside atomic(): no worker would see rows that are not committed."
            " Leave the block first; the transaction of a TestCase is no obstacle"
        )


def _refuse_dirty(job: Job) -> None:
    alias = conf.database()
    connection: Any = connections[alias]
    raw = connection.connection
    is_failed = raw is not None and raw.info.transaction_status == TransactionStatus.INERROR
    if connection.in_atomic_block and (connection.needs_rollback or is_failed):
        raise RuntimeError(
            f"{job} met a database error that failed the test's own transaction. In a worker each"
            " statement commits by itself: use TransactionTestCase (`transactional_db`) for this"
            " test, or atomic() around the statement in the task"
        )
    if is_inside_transaction(alias):
        raise RuntimeError(f"{job} left a transaction open; a worker would roll it back")
