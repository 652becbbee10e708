"""The rows nobody works on though somebody should: promote what came due, take back the dead's.

Liveness is the row's own lease and nothing else: no registry of workers is asked. Each row is
judged under its lock, after it was read again, in a transaction of its own where it must not
hurt its neighbours; what is locked or fails is found again by the next sweep.
"""

import contextlib
import enum
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from django.db import DatabaseError, transaction
from django.db.models import DurationField, ExpressionWrapper, F, Value
from django.db.models.functions import Greatest, Now

from leasejobs import conf, policy, signals
from leasejobs.enqueue import announce_claimable
from leasejobs.fencing import UNLEASED
from leasejobs.leases import announce, ended, write_end
from leasejobs.models import Attempt, Job
from leasejobs.outcomes import Released
from leasejobs.sessions import after_commit, is_content_refused
from leasejobs.states import UNSTARTED, WAITING, AttemptOutcome, State

BATCH: Final = 500


class Cause(enum.StrEnum):
    """Why a row was taken from its holder."""

    CRASHED = "crashed"  # its supervisor saw the child die
    INTERRUPTED = "interrupted"  # its supervisor stopped the child on purpose
    TIMED_OUT = "timed_out"  # it ran over its time, and its supervisor killed the child for it
    LEASE_EXPIRED = "lease_expired"  # nobody renewed it


def promote(limit: int = BATCH) -> int:
    """Make up to `limit` waiting rows that came due claimable; return how many."""
    alias = conf.database()
    with transaction.atomic(using=alias):
        due = Job.objects.using(alias).waiting_and_due()
        locked = due.select_for_update(skip_locked=True, no_key=True)
        pks = list(locked.values_list("pk", flat=True)[:limit])
        if not pks:
            return 0
        ready = Job.objects.using(alias).filter(pk__in=pks, state__in=sorted(WAITING))
        return ready.update(state=State.PENDING, revision=F("revision") + 1)


def recover_expired(limit: int = 100) -> int:
    """Take back up to `limit` rows whose lease ran out; return how many.

    Whether their bodies began is unknown, so every one counts as begun: `crashes` + 1, and its
    `on_crash` policy decides. A row whose lease was renewed, written or claimed since it was
    selected is left alone.

    Rows that are locked or cannot be written starve none behind them: they do not count.
    """
    alias = conf.database()
    expired = Job.objects.using(alias).running().expired().order_by("id")
    recovered, last = 0, 0
    while (wanted := limit - recovered) > 0:
        pks = list(expired.filter(pk__gt=last).values_list("pk", flat=True)[:wanted])
        recovered += sum(_recover(pk, Cause.LEASE_EXPIRED) for pk in pks)
        if len(pks) < wanted:
            break
        last = pks[-1]
    return recovered


def expire(limit: int = BATCH) -> int:
    """Cancel up to `limit` waiting rows past their `deadline_at`; return how many.

    One that was claimed meanwhile is left alone: the deadline is for the start.
    """
    alias = conf.database()
    with transaction.atomic(using=alias):
        late = Job.objects.using(alias).past_deadline()
        locked = late.select_for_update(skip_locked=True, no_key=True)
        pks = list(locked.values_list("pk", flat=True)[:limit])
        if not pks:
            return 0
        still = Job.objects.using(alias).filter(pk__in=pks, state__in=sorted(UNSTARTED))
        expired = still.update(
            state=State.CANCELLED, finished_at=Now(), failure_code="expired", failure_detail="",
            revision=F("revision") + 1,
        )  # fmt: skip
        after_commit(partial(signals.jobs_expired.send_robust, sender=Job, pks=pks), alias)
        return expired


def release_forgotten(holder: str, tokens: Sequence[uuid.UUID]) -> int:
    """Put back, uncharged, the rows of claims whose reply never came; return how many.

    The reply to a claim can be lost without the claim: nobody would work on its rows until their
    lease ran out. `tokens` are those of such claims only, so no body of theirs has begun.
    """
    alias = conf.database()
    held = Job.objects.using(alias).running().filter(leased_by=holder, lease_token__in=tokens)
    forgotten = list(held.values_list("pk", flat=True))
    _release_all(forgotten, holder)
    return len(forgotten)


def settle_dead(
    holder: str, begun: Mapping[tuple[int, int], Cause], died_at: float | None = None
) -> int:
    """Take back every row of a holder that is certainly dead; return how many it still holds.

    `begun` names, by (pk, epoch), the rows whose body began and what is to be said of each: they
    are recovered, or interrupted if that is the cause. All others go back uncharged. A row that is
    still locked, by a statement the dead holder left running on the server, is counted in the
    result; call again until it is 0. `died_at` is when it was seen dead, by `time.monotonic()`.
    """
    alias = conf.database()
    held = Job.objects.using(alias).running().filter(leased_by=holder).order_by("id")
    rows = list(held.values_list("pk", "epoch"))
    for pk, epoch in rows:
        if (pk, epoch) in begun:
            _recover(pk, begun[pk, epoch], holder, died_at)
    _release_all([pk for pk, epoch in rows if (pk, epoch) not in begun], holder)
    return held.count() if rows else 0


def _release_all(pks: Sequence[int], holder: str) -> None:
    for start in range(0, len(pks), BATCH):
        batch = list(pks[start : start + BATCH])
        try:
            _release(batch, holder)
        except DatabaseError as error:
            if not is_content_refused(error):
                raise
            for pk in batch:  # one bad row must not hold up its neighbours
                with _reporting(pk):
                    _release([pk], holder)


def _recover(
    pk: int, cause: Cause, holder: str | None = None, died_at: float | None = None
) -> bool:
    """End one lost run under its row's lock; False where the row is busy or no longer lost."""
    alias = conf.database()
    lost = Job.objects.using(alias).running().filter(pk=pk)
    lost = lost.expired() if holder is None else lost.filter(leased_by=holder)
    is_recovered = False
    with _reporting(pk), transaction.atomic(using=alias):
        # By the database's clock, as the expiry is.
        overdue = ExpressionWrapper(Now() - F("lease_expires_at"), DurationField())
        judged = lost.deciding().annotate(overdue=overdue)
        row = judged.select_for_update(no_key=True, skip_locked=True).first()
        if row is None:
            return False
        draw = random.random()
        if cause is Cause.INTERRUPTED:
            move = policy.after_interrupt(row, conf.load().MAX_INTERRUPTIONS, draw)
        elif cause is Cause.TIMED_OUT:
            move = policy.after_crash(row, cause, draw, AttemptOutcome.TIMED_OUT)
        else:
            move = policy.after_crash(row, cause, draw)
        write_end(row, move)
        if holder is None:
            seconds: float | None = row.overdue.total_seconds()
        else:
            seconds = None if died_at is None else time.monotonic() - died_at
        recovered = partial(
            signals.jobs_recovered.send_robust, sender=Job, pk=pk, holder=row.leased_by,
            cause=cause, state=move.state, seconds=seconds,
        )  # fmt: skip
        after_commit(recovered, alias)
        if move.state == State.PENDING:
            announce_claimable({row.queue: row.priority}, alias)
        is_recovered = True
    return is_recovered  # noqa: RET504 - the block may have swallowed an error


@contextlib.contextmanager
def _reporting(pk: int) -> Iterator[None]:
    """Let one bad row not stop a sweep: report it; the next sweep finds it again.

    Anything but content (a session that is gone, a deadlock) is the caller's to retry.
    """
    try:
        yield
    except DatabaseError as error:
        if not is_content_refused(error):
            raise
        signals.recovery_failed.send_robust(sender=Job, pk=pk, error=error)


def _release(pks: list[int], holder: str) -> None:
    """Put rows whose body never began back in one go: a dead child may have prefetched hundreds."""
    alias = conf.database()
    with transaction.atomic(using=alias):
        held = Job.objects.using(alias).running().filter(pk__in=pks, leased_by=holder)
        free = held.deciding().select_for_update(no_key=True, skip_locked=True)
        rows = list(free.order_by("id"))
        for row in [row for row in rows if row.cancel_requested_at is not None]:
            write_end(row, policy.after(Released(), row, 0))
            rows.remove(row)
        if not rows:
            return
        mine = (
            Job.objects.using(alias)
            .running()
            .filter(pk__in=[row.pk for row in rows], leased_by=holder)
        )
        changed = mine.update(
            state=State.PENDING,
            due_at=Now(),
            attempts=Greatest(F("attempts") - 1, Value(0)),
            revision=F("revision") + 1,
            **UNLEASED,
        )
        if changed != len(rows):
            raise AssertionError("rows moved although they were locked")
        Attempt.objects.using(alias).bulk_create(
            Attempt(
                job_id=row.pk, epoch=row.epoch, number=row.attempts, worker=holder,
                claimed_at=row.claimed_at, ended_at=Now(), outcome=AttemptOutcome.RELEASED,
            )
            for row in rows
        )  # fmt: skip
        announce([ended(row, AttemptOutcome.RELEASED, State.PENDING) for row in rows], alias)
        announce_claimable({row.queue: row.priority for row in rows}, alias)
