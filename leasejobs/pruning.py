"""Pruning: delete finished jobs once their retention has passed, a bounded batch at a time.

There is no index on `finished_at`, which would cost every job on the hot path: a batch is a
window of ids, and the windows are walked upwards. A job is never older than its row, so the walk
ends where rows are newer than every retention.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import IntegrityError, connections, transaction
from django.db.models import (
    F,
    Max,
    OuterRef,
    ProtectedError,
    Q,
    QuerySet,
    RestrictedError,
    Subquery,
    TextField,
)
from django.db.models.functions import Cast, Greatest

from leasejobs import conf
from leasejobs.models import Attempt, Job, OperatorAction, Worker
from leasejobs.states import State

# One pruner at a time in a database: the advisory lock's number.
_TURN: Final = int.from_bytes(b"leasepru", "big")
_WORKER_SEEN: Final = timedelta(days=1)
_STATES: Final = {
    "succeeded": State.SUCCEEDED,
    "cancelled": State.CANCELLED,
    "failed": State.FAILED,
    "parked": State.PARKED,
}


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch did. `cursor` is where the next one begins; None: this walk is done.

    `protected` jobs are due, but another model's foreign key keeps them. `is_turn` is False where
    another pruner is at work: nothing was done.
    """

    jobs: int = 0
    tracebacks: int = 0
    workers: int = 0
    protected: int = 0
    cursor: int | None = None
    is_turn: bool = True


def prune(limit: int = 1000, *, after: int = 0, dry_run: bool = False) -> Pruned:
    """Look at the next `limit` jobs above the id `after`, and delete those past their retention.

    With their attempts, in one transaction; rows somebody has locked are left for the next walk.
    Finished jobs age from `finished_at`; parked ones from when they were parked: by their newest
    attempt's end or the newest operator's `park`, else from `created_at`. Tracebacks on attempts
    are blanked after a retention of their own, and workers not seen for a day are forgotten. With
    `dry_run` it only counts.
    """
    if limit < 1:
        raise ValueError(f"limit must be positive, not {limit}")
    alias = conf.database()
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s), STATEMENT_TIMESTAMP()", [_TURN])
            [(is_turn, now)] = cursor.fetchall()
        if not is_turn:
            return Pruned(is_turn=False)
        unseen = Worker.objects.using(alias).filter(seen_at__lt=now - _WORKER_SEEN)
        workers = unseen.count() if dry_run else unseen.delete()[0]
        cutoffs = {
            name: now - timedelta(days=days)
            for name, days in conf.load().retention.items()
            if days is not None
        }
        newest = max(cutoffs.values(), default=None)
        rows = Job.objects.using(alias).filter(pk__gt=after).order_by("pk")
        window = list(rows.values_list("pk", "created_at")[:limit])
        # All of them, not the first: one row with a date of its own must not end every walk.
        if newest is None or all(created_at > newest for _, created_at in window):
            return Pruned(workers=workers)
        pks = [pk for pk, _ in window]
        jobs, protected = _prune_jobs(pks, cutoffs, alias, dry_run)
        return Pruned(
            jobs=jobs,
            tracebacks=_prune_tracebacks(pks, cutoffs.get("tracebacks"), alias, dry_run),
            workers=workers,
            protected=protected,
            cursor=pks[-1] if len(pks) == limit else None,
        )


def _prune_jobs(
    pks: list[int], cutoffs: Mapping[str, datetime], alias: str, dry_run: bool
) -> tuple[int, int]:
    """Delete the jobs past their retention; return how many, and how many are protected."""
    old = Q(pk__in=[])
    for name, state in _STATES.items():
        if name in cutoffs:
            ended = "parked_at" if state == State.PARKED else "finished_at"
            old |= Q(state=state, **{f"{ended}__lt": cutoffs[name]})
    due = _with_parked_at(Job.objects.using(alias).filter(pk__in=pks), alias).filter(old)
    if dry_run:
        return due.count(), 0
    # Judged anew under the lock: an operator may have retried one since. FOR UPDATE in full, so
    # that a row another transaction references is skipped too, not waited for by the DELETE.
    unlocked = due.order_by("pk").select_for_update(skip_locked=True)
    locked = list(unlocked.values_list("pk", flat=True))
    try:
        return _delete(locked, alias), 0
    except (ProtectedError, RestrictedError, IntegrityError):
        deleted = sum(_delete_if_free(pk, alias) for pk in locked)
        return deleted, len(locked) - deleted


def _with_parked_at(rows: QuerySet[Job], alias: str) -> QuerySet[Job]:
    attempts = Attempt.objects.using(alias).filter(job_id=OuterRef("pk")).order_by()
    parks = OperatorAction.objects.using(alias).filter(
        target=Job._meta.label, target_pk=Cast(OuterRef("pk"), TextField()), verb="park"
    )
    ended = attempts.values("job_id").annotate(at=Max("ended_at")).values("at")
    parked = parks.order_by().values("target_pk").annotate(last=Max("at")).values("last")
    # PostgreSQL's GREATEST passes over nulls.
    return rows.annotate(parked_at=Greatest(F("created_at"), Subquery(ended), Subquery(parked)))


def _delete(pks: list[int], alias: str) -> int:
    """Delete jobs and, by their cascade, attempts and what a project's own models say."""
    with transaction.atomic(using=alias):
        _, by_model = Job.objects.using(alias).filter(pk__in=pks).only("pk").delete()
        # Deferred ones too: at the commit they would undo the whole batch, each time.
        connections[alias].check_constraints()
    return by_model.get(Job._meta.label, 0)


def _delete_if_free(pk: int, alias: str) -> int:
    try:
        return _delete([pk], alias)
    except (ProtectedError, RestrictedError, IntegrityError):
        return 0


def _prune_tracebacks(pks: list[int], cutoff: datetime | None, alias: str, dry_run: bool) -> int:
    if cutoff is None:
        return 0
    kept = Attempt.objects.using(alias).filter(job_id__in=pks, ended_at__lt=cutoff)
    kept = kept.exclude(traceback="")
    return kept.count() if dry_run else kept.update(traceback="")
