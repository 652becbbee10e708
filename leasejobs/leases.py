"""The holder's verbs: write how an attempt ended, or how far it is, each behind the fence.

Every verb needs the `Lease` of a claim (see `claiming`) and compares pk, token and state in the
statement that writes. A holder that is too late changes nothing but its own attempt's
`late_outcome`.
"""

import contextlib
import enum
import json
import random
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from leasejobs import conf, policy, signals
from leasejobs.enqueue import insert_on_dead
from leasejobs.fencing import UNLEASED, Lease
from leasejobs.models import Attempt, Job
from leasejobs.outcomes import Outcome
from leasejobs.points import reached
from leasejobs.sessions import after_commit
from leasejobs.states import TERMINAL, AttemptOutcome, State


class Written(enum.Enum):
    """What became of an outcome."""

    WRITTEN = enum.auto()
    BUSY = enum.auto()  # the row is locked; it is still ours, try again later
    LOST = enum.auto()  # refused; recorded as late where an attempt row tells of our run


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt that ended, as `signals.attempts_ended` tells it."""

    job_id: int
    task: str
    queue: str
    epoch: int
    number: int
    outcome: AttemptOutcome
    state: State
    failure_code: str = ""


def end(lease: Lease, outcome: Outcome) -> Written:
    """Write one outcome: the row moves and the attempt is recorded, or neither; never waits.

    A transaction of its own: inside another it raises RuntimeError. A row that is locked comes
    back BUSY. On LOST the refused outcome is recorded on the attempt row of whoever ended our run.
    """
    alias = conf.database()
    with transaction.atomic(using=alias, durable=True):
        row = (
            Job.objects.using(alias)
            .held_under(lease)
            .deciding()
            .select_for_update(no_key=True, skip_locked=True)
            .first()
        )
        if row is not None:
            write_end(row, policy.after(outcome, row, random.random()))
            return Written.WRITTEN
    return _unwritten([lease], outcome.outcome)[lease.pk]


def complete_many(
    held: Sequence[tuple[Job, Lease]], results: Mapping[int, Any]
) -> dict[int, Written]:
    """Complete a batch that shares one token; return what became of each row, by pk.

    `results` holds the results that are not None. One statement locks the rows in id order
    (skipping locked ones), moves them and inserts their attempts: a row whose lease is gone
    does not come back and nothing is written for it.
    """
    alias, first = conf.database(), held[0][1]
    connection = connections[alias]
    pks = {job.pk for job, _ in held}
    with transaction.atomic(using=alias, durable=True) if results else contextlib.nullcontext():
        if results:
            # Before the move, in the same transaction: after it the token is gone.
            pks -= results.keys() - _write_results(connection, first.token, results)
        with connection.cursor() as cursor:
            cursor.execute(_COMPLETE_MANY, [
                State.SUCCEEDED, list(pks), first.token, State.RUNNING,
                first.holder, AttemptOutcome.SUCCEEDED.value,
            ])  # fmt: skip
            moved = {row[0] for row in cursor.fetchall()}
        announce(
            [
                ended(job, AttemptOutcome.SUCCEEDED, State.SUCCEEDED)
                for job, _ in held
                if job.pk in moved
            ],
            alias,
        )
    missing = [lease for job, lease in held if job.pk not in moved]
    return dict.fromkeys(moved, Written.WRITTEN) | _unwritten(missing, AttemptOutcome.SUCCEEDED)


def write_end(row: Job, move: policy.Move) -> None:
    """Move a running row that the caller's transaction has locked, and record its attempt.

    The one place, beside the batch statement of `complete_many`, where an attempt ends. The row
    is compared once more: the number of rows changed must be one.
    """
    reached("moving")
    failure = move.failure
    changes: dict[str, Any] = {
        "state": move.state,
        "attempts": move.attempts,
        "crashes": move.crashes,
        "interruptions": move.interruptions,
        "failure_code": failure.code if failure else "",
        "failure_detail": failure.detail if failure else "",
        **move.columns,
        **UNLEASED,
    }
    if move.state in TERMINAL:
        changes["finished_at"] = Now()
    elif move.state != State.PARKED:
        changes["due_at"] = Now() + move.delay
    alias = conf.database()
    mine = Job.objects.using(alias).filter(
        pk=row.pk, lease_token=row.lease_token, state=State.RUNNING
    )
    if mine.update(revision=F("revision") + 1, **changes) != 1:
        raise AssertionError(f"{row!r} moved although it was locked")
    Attempt.objects.using(alias).create(
        job_id=row.pk,
        epoch=row.epoch,
        number=row.attempts,
        worker=row.leased_by,
        claimed_at=row.claimed_at,
        ended_at=Now(),
        outcome=move.outcome,
        failure_code=failure.code if failure else "",
        exception_path=failure.exception_path if failure else "",
        detail=failure.detail if failure else "",
        traceback=failure.traceback if failure else "",
    )
    if move.state in (State.FAILED, State.PARKED):
        insert_on_dead(row, failure.code if failure else "")
    announce([ended(row, move.outcome, move.state, failure.code if failure else "")], alias)


def announce(attempts: Sequence[Ended], alias: str) -> None:
    """Tell `signals.attempts_ended` once the current transaction, if any, has committed."""
    if attempts:
        after_commit(
            partial(signals.attempts_ended.send_robust, sender=Job, attempts=attempts), alias
        )


def is_recorded(lease: Lease, outcome: AttemptOutcome) -> bool:
    """Whether the attempt of this lease stands with this very outcome, by this holder.

    Asked after a connection error: the reply to a COMMIT can be lost without the COMMIT.
    """
    return (
        Attempt.objects.using(conf.database())
        .filter(job_id=lease.pk, epoch=lease.epoch, worker=lease.holder, outcome=outcome)
        .exists()
    )


def cancel_requested(pks: Collection[int]) -> list[int]:
    """Return which of these running jobs somebody asked to cancel."""
    running = Job.objects.using(conf.database()).running()
    asked = running.filter(pk__in=list(pks), cancel_requested_at__isnull=False)
    return list(asked.values_list("pk", flat=True))


def record_progress(lease: Lease, done: int, total: int | None) -> bool:
    """Store progress for people to read; False when the lease is gone. Spends no revision."""
    held = Job.objects.using(conf.database()).held_under(lease)
    return bool(held.update(progress_done=done, progress_total=total))


def record_checkpoint(row: Job, checkpoint: Any) -> None:
    """Store a checkpoint on a row that `fenced()` has locked; joins its transaction.

    One that differs from the stored one is durable progress: the budgets start afresh, with the
    running attempt counted.
    """
    changes: dict[str, Any] = {"checkpoint": checkpoint}
    if checkpoint != row.checkpoint:
        changes |= {"attempts": 1, "crashes": 0, "interruptions": 0}
    held = Job.objects.using(conf.database()).filter(pk=row.pk, lease_token=row.lease_token)
    held.update(**changes)


def record_late(lease: Lease, outcome: AttemptOutcome) -> None:
    """Note on the attempt that somebody else ended what its holder reported too late."""
    Attempt.objects.using(conf.database()).filter(
        job_id=lease.pk, epoch=lease.epoch, late_outcome=""
    ).update(late_outcome=outcome, late_at=Now())
    signals.lease_lost.send_robust(sender=Job, lease=lease, outcome=outcome)


def ended(job: Job, outcome: AttemptOutcome, state: State, failure_code: str = "") -> Ended:
    return Ended(job.pk, job.task, job.queue, job.epoch, job.attempts, outcome, state, failure_code)


def _unwritten(leases: Sequence[Lease], outcome: AttemptOutcome) -> dict[int, Written]:
    """Tell apart, by reads without locks, rows that are busy, lost, and written after all."""
    if not leases:
        return {}
    held = Job.objects.using(conf.database()).running().filter(lease_token=leases[0].token)
    busy = set(held.filter(pk__in=[lease.pk for lease in leases]).values_list("pk", flat=True))
    found: dict[int, Written] = {}
    for lease in leases:
        if lease.pk in busy:
            found[lease.pk] = Written.BUSY
        elif is_recorded(lease, outcome):
            found[lease.pk] = Written.WRITTEN
        else:
            found[lease.pk] = Written.LOST
            if outcome != AttemptOutcome.RELEASED:  # a body that never began is late for nothing
                record_late(lease, outcome)
    return found


# Both statements skip locked rows: one in somebody's transaction must not hold up its batch.
_WRITE_RESULTS: Final = f"""
UPDATE "{Job._meta.db_table}" AS job SET result = input.result::jsonb
FROM unnest(%s::bigint[], %s::text[]) AS input (id, result)
WHERE job.id = input.id AND job.id = ANY(ARRAY(
    SELECT id FROM "{Job._meta.db_table}"
    WHERE id = ANY(%s::bigint[]) AND lease_token = %s AND state = %s
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
RETURNING job.id
"""

# One statement, because three cost 20 to 40 % of a drain.
_COMPLETE_MANY: Final = f"""
WITH moved AS (
    UPDATE "{Job._meta.db_table}" SET
        state = %s, finished_at = STATEMENT_TIMESTAMP(), revision = revision + 1,
        lease_token = NULL, leased_by = '', lease_expires_at = NULL,
        failure_code = '', failure_detail = ''
    WHERE id = ANY(ARRAY(
        SELECT id FROM "{Job._meta.db_table}"
        WHERE id = ANY(%s::bigint[]) AND lease_token = %s AND state = %s
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, epoch, attempts, claimed_at
)
INSERT INTO "{Attempt._meta.db_table}"
    (job_id, epoch, number, worker, claimed_at, ended_at, outcome)
SELECT id, epoch, attempts, %s, claimed_at, STATEMENT_TIMESTAMP(), %s FROM moved
RETURNING job_id
"""


def _write_results(connection: Any, token: uuid.UUID, results: Mapping[int, Any]) -> set[int]:
    pks = list(results)
    texts = [json.dumps(results[pk], ensure_ascii=False, allow_nan=False) for pk in pks]
    with connection.cursor() as cursor:
        cursor.execute(_WRITE_RESULTS, [pks, texts, pks, token, State.RUNNING])
        return {row[0] for row in cursor.fetchall()}
