"""The operator's verbs: cancel, retry and park jobs, pause and resume queues.

Each needs an actor and a reason, and writes both in an `OperatorAction` in the transaction of the
move itself. Locks are taken in id order, `FOR NO KEY UPDATE`, in batches of `BATCH` rows; each
batch is a transaction, or joins the caller's.
"""

import enum
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Now
from psycopg.errors import LockNotAvailable, UniqueViolation

from leasejobs import conf
from leasejobs.arguments import check_text
from leasejobs.enqueue import announce_claimable, insert_on_dead
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import Job, Queue
from leasejobs.orders import Order
from leasejobs.pruning import Pruned as Pruned
from leasejobs.pruning import prune as prune
from leasejobs.sessions import bounded_wait
from leasejobs.states import TRANSITIONS, State

BATCH: Final = 500
WAIT_SECONDS: Final = 5.0
_LEAST_WAIT_SECONDS: Final = 0.01
# Before the server looks for deadlocks (1 s): a batch holds keys and waits for others.
_GLANCE_SECONDS: Final = 0.1
_LARGEST_ID: Final = 2**63 - 1
_MOST_URGENT: Final = -100


class Verdict(enum.Enum):
    """What became of one job that an operator wanted moved."""

    MOVED = "moved"
    REQUESTED = "requested"  # it runs: its cancel flag is set
    REFUSED = "refused"  # its state allows no such move
    STALE = "stale"  # it was moved since the operator looked
    KEY_TAKEN = "key_taken"  # another job has its key by now
    MISSING = "missing"
    BUSY = "busy"  # its row was locked for as long as we wait


_CHANGES: Final[Mapping[str, dict[str, Any]]] = {
    "cancel": {
        "state": State.CANCELLED, "finished_at": Now(),
        "failure_code": "cancelled", "failure_detail": "",
    },
    # Without its deadline, by which it would expire at once.
    "retry": {
        "state": State.PENDING, "due_at": Now(), "deadline_at": None, "finished_at": None,
        "attempts": 0, "crashes": 0, "interruptions": 0, "cancel_requested_at": None,
        "failure_code": "", "failure_detail": "",
    },
    "park": {"state": State.PARKED, "failure_code": "operator", "failure_detail": ""},
}  # fmt: skip


def cancel(
    pks: Iterable[int], *, actor: str, reason: str, revisions: Mapping[int, int] | None = None
) -> dict[int, Verdict]:
    """Cancel jobs that wait or are parked, and ask those that run to end; return the verdicts.

    A running job only gets its flag, and `REQUESTED`: whatever ends its run without success then
    leaves it cancelled; a success stays one. Asking again changes nothing. `revisions` are the
    ones the operator saw: a job that has another by now is `STALE` and left alone. A row that
    somebody's transaction holds for more than `WAIT_SECONDS` in all is `BUSY`. Raises
    `InvalidArguments` without an actor or a reason.
    """
    return _operate(Order("cancel", actor, reason, revisions or {}), pks)


def retry(
    pks: Iterable[int], *, actor: str, reason: str, revisions: Mapping[int, int] | None = None
) -> dict[int, Verdict]:
    """Give failed, cancelled and parked jobs another start, due now; return the verdicts.

    Budgets begin at zero; flag, deadline and failure are cleared; the checkpoint stays. A job
    whose key another one took meanwhile is `KEY_TAKEN`, and the others move. Else as `cancel`.
    """
    return _operate(Order("retry", actor, reason, revisions or {}), pks)


def park(
    pks: Iterable[int], *, actor: str, reason: str, revisions: Mapping[int, int] | None = None
) -> dict[int, Verdict]:
    """Put waiting jobs aside until somebody retries or cancels them; return the verdicts.

    Never a running one: cancel it. Its `on_dead` job is enqueued with the move. Else as `cancel`.
    """
    return _operate(Order("park", actor, reason, revisions or {}), pks)


def pause(queue: str, *, actor: str, reason: str) -> bool:
    """Let no worker claim from `queue`; return False if it was paused already.

    What runs goes on. The queue need not have a job yet.
    """
    order = _order_for_queue("pause", queue, actor, reason)
    alias = conf.database()
    with transaction.atomic(using=alias):
        Queue.objects.using(alias).get_or_create(name=queue)
        running = Queue.objects.using(alias).filter(name=queue, paused_at__isnull=True)
        is_changed = bool(running.update(paused_at=Now()))
        if is_changed:
            order.record(Queue, {queue: None}, alias)
    return is_changed


def resume(queue: str, *, actor: str, reason: str) -> bool:
    """Let workers claim from `queue` again, and wake them; False if it was not paused."""
    order = _order_for_queue("resume", queue, actor, reason)
    alias = conf.database()
    with transaction.atomic(using=alias):
        paused = Queue.objects.using(alias).filter(name=queue, paused_at__isnull=False)
        is_changed = bool(paused.update(paused_at=None))
        if is_changed:
            order.record(Queue, {queue: None}, alias)
            announce_claimable({queue: _MOST_URGENT}, alias)
    return is_changed


def _order_for_queue(verb: str, queue: str, actor: str, reason: str) -> Order:
    if not check_text("queue", queue) or "," in queue or queue != queue.strip():
        raise InvalidArguments(f"a queue has a name without commas, not {queue!r}")
    return Order(verb, actor, reason)


def _operate(order: Order, pks: Iterable[int]) -> dict[int, Verdict]:
    wanted = set(pks)
    if not all(isinstance(pk, int) and not isinstance(pk, bool) for pk in wanted):
        raise InvalidArguments("jobs are named by their ids, which are integers")
    verdicts = dict.fromkeys(wanted, Verdict.MISSING)
    known = sorted(pk for pk in wanted if 0 <= pk <= _LARGEST_ID)
    for start in range(0, len(known), BATCH):
        batch = known[start : start + BATCH]
        verdicts |= _all_at_once(order, batch) or _one_by_one(order, batch)
    return verdicts


def _all_at_once(order: Order, pks: Collection[int]) -> dict[int, Verdict] | None:
    """Write a batch in one go; None, with nothing done, if a row is locked or its key taken.

    It waits for no row: the locks it has would meanwhile keep running jobs from being renewed.
    """
    alias = conf.database()
    try:
        with bounded_wait(alias, _GLANCE_SECONDS):
            rows = _lock(pks, alias, skip_locked=True)
            absent = set(pks) - {row.pk for row in rows}
            if absent and Job.objects.using(alias).filter(pk__in=absent).exists():
                raise _Contended
            return dict.fromkeys(absent, Verdict.MISSING) | _write(order, rows, alias)
    except (_Contended, OperationalError, IntegrityError) as error:
        if not isinstance(error, _Contended):
            _refusal(error)
        return None


class _Contended(Exception):
    pass


def _one_by_one(order: Order, pks: Sequence[int]) -> dict[int, Verdict]:
    """Write rows each in a transaction, or savepoint, of its own; wait for the locked ones."""
    alias = conf.database()
    verdicts = {}
    deadline = time.monotonic() + WAIT_SECONDS
    for pk in pks:
        patience = max(deadline - time.monotonic(), _LEAST_WAIT_SECONDS)
        try:
            with bounded_wait(alias, patience):
                written = _write(order, _lock([pk], alias), alias)
            verdicts[pk] = written.get(pk, Verdict.MISSING)
        except (OperationalError, IntegrityError) as error:
            verdicts[pk] = _refusal(error)
    return verdicts


def _refusal(error: OperationalError | IntegrityError) -> Verdict:
    """Return what an error says about its row; raise it if it says something else."""
    if isinstance(error.__cause__, LockNotAvailable):
        return Verdict.BUSY
    if isinstance(error.__cause__, UniqueViolation):
        return Verdict.KEY_TAKEN
    raise error


def _lock(pks: Collection[int], alias: str, *, skip_locked: bool = False) -> list[Job]:
    rows = Job.objects.using(alias).filter(pk__in=pks).deciding().order_by("pk")
    return list(rows.select_for_update(no_key=True, skip_locked=skip_locked))


def _write(order: Order, rows: Sequence[Job], alias: str) -> dict[int, Verdict]:
    """Judge and move rows that the caller's transaction has locked."""
    verdicts = {row.pk: _judge(order, row) for row in rows}
    moved = [row for row in rows if verdicts[row.pk] is Verdict.MOVED]
    flagged = [
        row
        for row in rows
        if verdicts[row.pk] is Verdict.REQUESTED and row.cancel_requested_at is None
    ]
    if moved:
        allowed, _ = TRANSITIONS[order.verb]
        movable = Job.objects.using(alias).filter(
            pk__in=[row.pk for row in moved], state__in=sorted(allowed)
        )
        if movable.update(revision=F("revision") + 1, **_CHANGES[order.verb]) != len(moved):
            raise AssertionError("rows moved although they were locked")
    if flagged:
        running = Job.objects.using(alias).running().filter(pk__in=[row.pk for row in flagged])
        running.update(cancel_requested_at=Now())
    if order.verb == "park":
        for row in moved:
            insert_on_dead(row, "operator")
    if order.verb == "retry":
        urgent: dict[str, int] = {}
        for row in moved:
            urgent[row.queue] = min(urgent.get(row.queue, row.priority), row.priority)
        announce_claimable(urgent, alias)
    order.record(Job, {row.pk: row.revision for row in [*moved, *flagged]}, alias)
    return verdicts


def _judge(order: Order, row: Job) -> Verdict:
    if order.revisions.get(row.pk, row.revision) != row.revision:
        return Verdict.STALE
    if row.state in TRANSITIONS[order.verb][0]:
        return Verdict.MOVED
    if order.verb == "cancel" and row.state == State.RUNNING:
        return Verdict.REQUESTED
    return Verdict.REFUSED
