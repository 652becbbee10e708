"""`JobContext`: what a running task may ask and do about its own job."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from operator import index
from typing import Any, Final

from asgiref.sync import sync_to_async

from leasejobs import conf, leases, policy
from leasejobs.compat import TaskContext
from leasejobs.exceptions import LeaseLost, OutcomeNotAllowed
from leasejobs.fencing import fenced, local_clock
from leasejobs.heartbeat import Held
from leasejobs.models import Job
from leasejobs.outcomes import Succeeded
from leasejobs.redaction import storable_json
from leasejobs.results import TaskResult, result_of_job
from leasejobs.sessions import is_inside_transaction
from leasejobs.states import AttemptOutcome

# Of idempotency keys; any fixed uuid would do, this one must never change.
_NAMESPACE: Final = uuid.UUID("6f6a1f6e-2f0b-5c1e-9a53-6d1f0a4d7c11")
_PROGRESS_SECONDS: Final = 0.5
_NOTHING: Final = object()


class JobContext(TaskContext):
    """The first argument of a task declared with `takes_context=True`."""

    # The base is a frozen dataclass; its __setattr__ does not survive being subclassed.
    __setattr__ = object.__setattr__

    def __init__(self, job: Job, held: Held, stopping: Callable[[], bool]) -> None:
        # Not the dataclass's: its TaskResult is built only when somebody asks for it.
        self.job = job
        self._held = held
        self._stopping = stopping
        self._in_block = False
        self._result: Any = _NOTHING
        self._checkpoint: Any = _NOTHING
        self._progress: tuple[int, int | None] | None = None
        self._progress_at = 0.0
        self.is_completed = False

    @property
    def task_result(self) -> TaskResult[..., Any]:  # type: ignore[override]
        """The django.tasks result of this job, as of the claim."""
        return result_of_job(self.job)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; refunded ones are not counted."""
        return self.job.attempts

    @property
    def epoch(self) -> int:
        """The fencing number of this claim: larger than that of any claim before it."""
        return self.job.epoch

    @property
    def should_stop(self) -> bool:
        """Whether to come to an end: the worker shuts down, the job was cancelled or is out of
        time, or the lease is or may be lost.

        A cancel is seen within a third of the lease. A task that sees it returns `Snooze` or
        `Continue`, raises `Retry`, or just finishes. After a lost lease whatever it still writes
        behind the fence is refused.
        """
        return self._held.should_stop or self._stopping()

    @property
    def idempotency_key(self) -> uuid.UUID:
        """A uuid5 of the job's id and creation: stable over retries, different for any two jobs.

        The creation time keeps it different from a job of the same id in a database that was
        dropped and made again.
        """
        return uuid.uuid5(_NAMESPACE, f"{self.job.pk}:{self.job.created_at.isoformat()}")

    @contextlib.contextmanager
    def fenced(self) -> Iterator[Job]:
        """Write behind the fence: one transaction, committed only if the lease is still ours.

        Yields the job's row, locked. `complete()` and `checkpoint()` called inside are its last
        statements and commit with the body's own writes: that is what makes database effects
        exactly once. If the body raises, nothing is written. Raises `LeaseLost` if the lease is
        gone, before or after the body; see `leasejobs.fencing.fenced` for the bounds on time and
        for what happens to other databases. Blocks do not nest.
        """
        if _is_in_event_loop():
            raise RuntimeError(
                "fenced() is a transaction, and Django has none in a coroutine: put the block into "
                "a function and `await sync_to_async(function)()`"
            )
        if self._in_block:
            raise RuntimeError("fenced() blocks do not nest")
        if self.is_completed:
            raise OutcomeNotAllowed("the job is complete: nothing more is written behind its fence")
        self._result = self._checkpoint = _NOTHING
        with fenced(self._held.lease, finish=self._finish, was_finished=self._was_completed) as row:
            self._in_block = True
            try:
                yield row
            finally:
                self._in_block = False
        if self._result is not _NOTHING:
            self.is_completed = True
        else:
            self._held.lease = row.lease
            if self._checkpoint is not _NOTHING:
                self.job.checkpoint = self._checkpoint

    def complete(self, result: Any = None) -> None:
        """End the job as succeeded with a JSON `result`, in the commit of the `fenced()` around.

        Outside `fenced()`, and a second time, it raises `OutcomeNotAllowed`. Once the block has
        committed, what the task returns is ignored and what it raises is logged.
        """
        if not self._in_block:
            raise OutcomeNotAllowed("complete() belongs inside `with context.fenced():`")
        if self._result is not _NOTHING:
            raise OutcomeNotAllowed("complete() was already called in this block")
        self._result = to_json(result)

    def checkpoint(self, value: Any) -> None:
        """Store where the work stands, a JSON value; the next attempt finds it in `job.checkpoint`.

        Inside `fenced()` it commits with the block; outside it is a fenced transaction of its
        own. A value that differs from the stored one is durable progress: the attempt, crash and
        interruption budgets start afresh. Raises `LeaseLost` if the lease is gone.
        """
        normal = to_json(value)
        if self._in_block:
            self._checkpoint = normal
            return
        with self.fenced():
            self._checkpoint = normal

    def progress(self, done: int, total: int | None = None) -> None:
        """Tell how far the work is, for people to see; written at most twice a second.

        The last value is written when the attempt ends. Inside a transaction of the task's own it
        is kept until then too: the write would lock the job's row to the end of that transaction,
        and a locked row is not renewed. Raises `LeaseLost` if the lease is gone.
        """
        counts = (index(done), None if total is None else index(total))
        if not all(count is None or 0 <= count < 2**63 for count in counts):
            raise ValueError("progress counts from 0, and to no more than a bigint holds")
        self._progress = counts
        is_time = time.monotonic() - self._progress_at >= _PROGRESS_SECONDS
        if is_time and (self._in_block or not is_inside_transaction(conf.database())):
            self.flush_progress()

    async def acheckpoint(self, value: Any) -> None:
        """Store where the work stands, from a coroutine; see `checkpoint`."""
        await sync_to_async(self.checkpoint)(value)

    async def aprogress(self, done: int, total: int | None = None) -> None:
        """Tell how far the work is, from a coroutine; see `progress`."""
        await sync_to_async(self.progress)(done, total)

    def ensure_lease(self, margin: timedelta) -> None:
        """Make sure that the lease lasts for `margin` from now; renew it if it would not.

        Before a call that cannot be taken back, give the longest it may take. Raises `LeaseLost`
        if the lease is gone, or ValueError if `margin` is longer than a lease lasts at all.
        """
        lease = self._held.lease
        if margin > lease.duration:
            raise ValueError(f"a lease lasts {lease.duration}: it cannot be ensured for {margin}")
        if self._held.is_lost:
            raise LeaseLost(f"job {self.job.pk} is no longer held under epoch {self.epoch}")
        if lease.deadline - local_clock() < margin.total_seconds():
            with self.fenced():
                pass  # its last statement re-arms the lease

    async def aensure_lease(self, margin: timedelta) -> None:
        """Make sure that the lease lasts for `margin`, from a coroutine; see `ensure_lease`."""
        await sync_to_async(self.ensure_lease)(margin)

    def flush_progress(self) -> None:
        """Write the progress told last, if it is not written yet."""
        if self._progress is None or self.is_completed:
            return
        (done, total), self._progress = self._progress, None
        self._progress_at = time.monotonic()
        if not leases.record_progress(self._held.lease, done, total):
            raise LeaseLost(f"job {self.job.pk} is no longer held under epoch {self.epoch}")

    def _finish(self, row: Job) -> bool:
        if self._checkpoint is not _NOTHING:
            leases.record_checkpoint(row, self._checkpoint)
        if self._result is _NOTHING:
            return False
        self.flush_progress()
        leases.write_end(row, policy.after(Succeeded(self._result), row, 0))
        return True

    def _was_completed(self) -> bool:
        return leases.is_recorded(self._held.lease, AttemptOutcome.SUCCEEDED)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def to_json(value: Any) -> Any:
    """Return `value` as JSON has it and PostgreSQL holds it, or raise TypeError or ValueError."""
    if value is None:
        return None
    try:
        return storable_json(json.loads(json.dumps(value, allow_nan=False)))
    except RecursionError as error:
        raise ValueError("the value is nested too deeply for JSON") from error
