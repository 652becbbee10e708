"""Backends for `TASKS` in tests: one runs a task as it is enqueued, one only records the call."""

import contextlib
from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

from django.db import connections, transaction
from django.utils import timezone

from leasejobs import conf
from leasejobs.backend import LeaseBackend
from leasejobs.compat import TaskResultDoesNotExist, task_enqueued
from leasejobs.enqueue import Enqueued, NewJob
from leasejobs.exceptions import InvalidArguments
from leasejobs.results import TaskResult, result_of
from leasejobs.sessions import is_inside_transaction
from leasejobs.states import State
from leasejobs.testing.running import run_job

AnyResult: TypeAlias = TaskResult[..., Any]

_MOST_RUNS: Final = 1_000

# What was enqueued by the job that is running: it has to wait until that one is through.
_waiting: ContextVar[deque[AnyResult] | None] = ContextVar("leasejobs_eager", default=None)


class EagerBackend(LeaseBackend):
    """Enqueues a job like `LeaseBackend`, and runs it before `enqueue` returns.

    The row, its key, its lease and its attempts are real, and so is the context of the task:
    the test's own connection and thread take the part of the worker. The result that `enqueue`
    returns tells how the run ended, with `return_value` or `errors`; what the task raises is not
    raised by `enqueue`. A job that snoozes, continues or is to be retried is left waiting, for
    `run_due`; so is one with `run_after`, of a paused queue, or enqueued by `enqueue_many`.

    What a running job enqueues is run right after that job. Inside `atomic()` the job is run when
    the block commits, and never if it rolls back: a TestCase, which never commits, has to say
    `captureOnCommitCallbacks(execute=True)` (pytest-django:
    `django_capture_on_commit_callbacks`), or to call `run_due()` after the block. The result that
    `enqueue` returned is brought up to date then. Raises AssertionError where jobs enqueue one
    another for ever.
    """

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue one call and run it; raises what `LeaseBackend.enqueue` raises."""
        alias = conf.database()
        result: AnyResult = super().enqueue(task, args, kwargs)
        waiting = _waiting.get()
        if not result.created:
            _refresh(result)
        elif waiting is not None:
            waiting.append(result)
        elif connections[alias].in_atomic_block and is_inside_transaction(alias):
            transaction.on_commit(partial(_run_all, result), using=alias)
        elif not is_inside_transaction(alias):
            _run_all(result)
        return result


class DummyBackend(LeaseBackend):
    """Records calls in `results`, newest last, and runs and stores nothing.

    Arguments, options and keys are checked as by `LeaseBackend`; a key that a recorded call has
    is taken, whatever its scope, since nothing ever runs. `job_id` is negative: no row has it.
    Only what goes through the backend is recorded: `enqueue_many` writes rows.
    """

    supports_get_result = False  # like django.tasks' own: they are this process's alone

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.results: list[AnyResult] = []
        self._prepared: dict[int, NewJob] = {}

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Record one call; raises what `LeaseBackend.enqueue` raises about the call."""
        self.validate_task(task)
        new: NewJob = task.prepare(*args, **kwargs)
        if conf.load().REQUIRE_TENANT and not new.tenant:
            raise InvalidArguments("REQUIRE_TENANT is set, and a job names no tenant")
        for earlier in self.results:
            if new.key and _identity(self._prepared[earlier.job_id]) == _identity(new):
                return self._result(task, args, kwargs, earlier.job_id, False)
        number = -1 - len(self._prepared)
        self._prepared[number] = new
        recorded = self._result(task, args, kwargs, number, True)
        self.results.append(recorded)
        task_enqueued.send(type(self), task_result=recorded)
        return self._result(task, args, kwargs, number, True)  # nobody may change the record

    def prepared(self) -> list[tuple[int, NewJob]]:
        """Return each recorded call with its number, as the job it would have become."""
        return [(result.job_id, self._prepared[result.job_id]) for result in self.results]

    def get_result(self, result_id: str) -> AnyResult:
        """Return a recorded result; raise `TaskResultDoesNotExist` if there is none."""
        for result in self.results:
            if result.id == result_id:
                return result
        raise TaskResultDoesNotExist(f"nothing was recorded as {result_id!r}")

    def clear(self) -> None:
        """Forget every recorded call."""
        self.results.clear()

    def _result(self, task: Any, args: Any, kwargs: Any, number: int, created: bool) -> AnyResult:
        enqueued = Enqueued(number, created, State.PENDING, timezone.now())
        return result_of(task, list(args), dict(kwargs), enqueued)


def _run_all(first: AnyResult) -> None:
    """Run a job, and then one by one what was enqueued meanwhile."""
    waiting = deque([first])
    token = _waiting.set(waiting)
    try:
        for _ in range(_MOST_RUNS):
            if not waiting:
                return
            result = waiting.popleft()
            run_job(result.job_id)
            _refresh(result)
        raise AssertionError(
            f"{first.task.module_path} and what it enqueued were {_MOST_RUNS} runs without an"
            " end: do tasks enqueue one another for ever? Test them with LeaseBackend and run_due()"
        )
    finally:
        _waiting.reset(token)


def _refresh(result: AnyResult) -> None:
    # Enqueued behind a fence that rolled back, it has no row: the result stays as it is.
    with contextlib.suppress(TaskResultDoesNotExist):
        result.refresh()


def _identity(new: NewJob) -> tuple[str, str, str, str]:
    return new.key_scope, new.tenant, new.task, new.key
