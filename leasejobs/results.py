"""`TaskResult`: what a producer may know of its job, read from the job's row and its attempts."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Self

from asgiref.sync import sync_to_async

from leasejobs import conf, registry
from leasejobs.compat import (
    P,
    R,
    ResultBase,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from leasejobs.declare import Task, lease_alias
from leasejobs.enqueue import Enqueued
from leasejobs.exceptions import UnknownTask
from leasejobs.models import Attempt, Job
from leasejobs.sessions import is_inside_transaction
from leasejobs.states import TERMINAL, AttemptOutcome, State

MAX_ERRORS: Final = 20
MAX_WORKERS: Final = 100

_STATUS: Final = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.RETRYABLE: TaskResultStatus.READY,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
    State.PARKED: TaskResultStatus.READY,
}
# Nothing moves such a job again by itself.
_AT_REST: Final = TERMINAL | {State.PARKED}
_FAILING: Final = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST)
# What stands for the exception of a run that raised none: its process ended first.
_STAND_INS: Final = {
    AttemptOutcome.TIMED_OUT: "builtins.TimeoutError",
    AttemptOutcome.LOST: "leasejobs.exceptions.LeaseLost",
}
_JSON: Final = ("args", "kwargs", "result")
_COLUMNS: Final = (
    "id", "task", "state", "created_at", "started_at", "finished_at", "claimed_at", "epoch",
    "attempts", "leased_by", "failure_code",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskResult(ResultBase[P, R]):  # type: ignore[misc]  # the stubs do not say frozen
    """A django.tasks result that names its row. As of when it was made or last refreshed.

    `created` is False where `enqueue` found the key taken; the result is then the other job's.
    It is also False on a result that was looked up. `state` tells apart what `status` has one
    word for, and `failure_code` says why a job failed, was cancelled or is parked.
    """

    job_id: int
    created: bool
    state: State
    failure_code: str = ""
    charged: int = 0
    # Again: without slots the base's default would be lost.
    _return_value: R | None = field(init=False, default=None)

    @property
    def attempts(self) -> int:
        """How many attempts are charged to the job; refunded ones are not counted."""
        return self.charged

    def refresh(self) -> None:
        """Read the row again; raise `TaskResultDoesNotExist` if it is gone (pruned)."""
        fresh = load(self.id, self.backend)
        for column in fields(fresh):
            if column.name not in ("task", "args", "kwargs", "created"):
                object.__setattr__(self, column.name, getattr(fresh, column.name))

    async def arefresh(self) -> None:
        """See `refresh`."""
        await sync_to_async(self.refresh)()

    def wait(
        self, timeout: timedelta | float | None = None, *, poll: timedelta | float = 0.1
    ) -> Self:
        """Wait until the job is succeeded, failed, cancelled or parked; return the result itself.

        `timeout` and `poll` are timedeltas or seconds; the row is read every `poll`. Raises
        `TimeoutError` when the job is still under way, `TaskResultDoesNotExist` if the row is
        gone, and RuntimeError inside a transaction: a job enqueued in it is not visible to any
        worker before the commit, so such a wait would never end.
        """
        pauses = _pauses(timeout, poll, self.job_id)
        while not self._is_at_rest():
            time.sleep(next(pauses))
        self.refresh()
        return self

    async def await_(
        self, timeout: timedelta | float | None = None, *, poll: timedelta | float = 0.1
    ) -> Self:
        """Wait as `wait` does, without blocking the event loop."""
        pauses = _pauses(timeout, poll, self.job_id)
        while not await sync_to_async(self._is_at_rest)():
            await asyncio.sleep(next(pauses))
        await self.arefresh()
        return self

    def _is_at_rest(self) -> bool:
        alias = conf.database()
        states = Job.objects.using(alias).filter(pk=self.job_id).values_list("state", flat=True)
        state = states.first()
        if state is None:
            raise _does_not_exist(self.id)
        if state in _AT_REST:
            return True
        if is_inside_transaction(alias):
            raise RuntimeError(
                "wait() inside a transaction would never end: workers see a job once it is "
                "committed. Wait after the `atomic()` block."
            )
        return False


def result_of(
    task: Any, args: list[Any], kwargs: dict[str, Any], enqueued: Enqueued
) -> TaskResult[..., Any]:
    """Return the result of a call that was just enqueued, or met the job that has its key."""
    return TaskResult(
        task=task, id=str(enqueued.job_id), status=_STATUS[enqueued.state],
        enqueued_at=enqueued.created_at, started_at=None, finished_at=None,
        last_attempted_at=None, args=args, kwargs=kwargs, backend=task.backend, errors=[],
        worker_ids=[], job_id=enqueued.job_id, created=enqueued.created, state=enqueued.state,
    )  # fmt: skip


def result_of_job(job: Job) -> TaskResult[..., Any]:
    """Return the result of the attempt that is running `job`, for its context."""
    task: Any = registry.find(job.task)
    return TaskResult(
        task=task, id=str(job.pk), status=TaskResultStatus.RUNNING, enqueued_at=job.created_at,
        started_at=job.started_at, finished_at=None, last_attempted_at=job.claimed_at,
        args=job.args, kwargs=job.kwargs, backend=task.backend, errors=[],
        worker_ids=[job.leased_by] * job.attempts, job_id=job.pk, created=False,
        state=State.RUNNING, charged=job.attempts,
    )  # fmt: skip


def load(result_id: str, backend: str = "") -> TaskResult[..., Any]:
    """Return the result of the job with this id; raise `TaskResultDoesNotExist` if there is none.

    `backend` is the alias it is looked up through, by default its task's.

    Errors and workers are those of the last 20 failed and 100 ended attempts. A job whose task
    the project no longer has comes with a stand-in of that name, which cannot be enqueued.
    """
    job = _read(result_id)
    task = _task_called(job.task)
    attempts = Attempt.objects.using(conf.database()).filter(job_id=job.pk).order_by("-epoch")
    ended = job.epoch > 0
    workers = list(attempts.values_list("worker", flat=True)[:MAX_WORKERS])[::-1] if ended else []
    if job.state == State.RUNNING:
        workers.append(job.leased_by)
    failed = attempts.filter(outcome__in=_FAILING)[:MAX_ERRORS] if ended else []
    state = State(job.state)
    result: TaskResult[..., Any] = TaskResult(
        task=task, id=str(job.pk), status=_STATUS[state],
        enqueued_at=job.created_at, started_at=job.started_at, finished_at=job.finished_at,
        last_attempted_at=job.claimed_at, args=job.args, kwargs=job.kwargs,
        backend=backend or task.backend,
        errors=[_error_of(attempt) for attempt in failed][::-1], worker_ids=workers,
        job_id=job.pk, created=False, state=state, failure_code=job.failure_code,
        charged=job.attempts,
    )  # fmt: skip
    object.__setattr__(result, "_return_value", job.result)
    return result


def _read(result_id: Any) -> Job:
    if isinstance(result_id, int) and not isinstance(result_id, bool):
        result_id = str(result_id)  # a job_id is as good
    # Only what str() makes of an id: "007" is nobody's.
    if not (isinstance(result_id, str) and result_id.isascii() and result_id.isdigit()):
        raise _does_not_exist(result_id)
    if len(result_id) > 19 or str(int(result_id)) != result_id:
        raise _does_not_exist(result_id)
    rows = Job.objects.using(conf.database()).filter(pk=int(result_id))
    try:
        job = rows.only(*_COLUMNS, *_JSON).first()
    except (ValueError, RecursionError):
        # JSON that PostgreSQL holds and Python does not: too many digits, too deep.
        job = rows.only(*_COLUMNS).first()
        if job is not None:
            job.args, job.kwargs, job.result = [], {}, None
    if job is None:
        raise _does_not_exist(result_id)
    found: Job = job
    return found


def _does_not_exist(result_id: Any) -> TaskResultDoesNotExist:
    return TaskResultDoesNotExist(f"there is no job with the id {result_id!r:.50}")


def _error_of(attempt: Attempt) -> TaskError:
    stand_in = _STAND_INS.get(AttemptOutcome(attempt.outcome), "")
    return TaskError(
        exception_class_path=attempt.exception_path or stand_in,
        traceback=attempt.traceback or f"{attempt.failure_code}: {attempt.detail}".rstrip(": "),
    )


class _GoneTask(Task[..., Any]):
    """Stands for a task the project has no more: it has the name and nothing else."""

    def __post_init__(self) -> None:
        """Validate nothing: there is no function."""

    def _refuse_unconfigured(self) -> None:
        self.func()


def _task_called(name: str) -> Any:
    try:
        return registry.find(name)
    except UnknownTask as error:
        why = str(error)

    def gone(*args: Any, **kwargs: Any) -> None:
        raise UnknownTask(why)

    gone.__module__, _, gone.__qualname__ = name.rpartition(".")
    gone.__name__ = gone.__qualname__
    return _GoneTask(
        func=gone, backend=lease_alias(), priority=0, queue_name="default", run_after=None
    )


def _pauses(
    timeout: timedelta | float | None, poll: timedelta | float, job_id: int
) -> Iterator[float]:
    """Yield how long to sleep, again and again; raise `TimeoutError` when the time is up."""
    pause = _seconds(poll)
    if pause <= 0:
        raise ValueError(f"poll must be over 0, not {poll!r}")
    deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
    while True:
        if deadline is None:
            yield pause
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"job {job_id} was still under way after {timeout}")
        yield min(pause, left)


def _seconds(value: timedelta | float) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
