"""One attempt as a pipeline: find the task, call it, turn whatever happens into an outcome.

Nothing here touches the job's row. No content of a task, however hostile, escapes as anything
but an `Outcome` that can be written.
"""

import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.db import Error

from leasejobs import current, receivers, registry, signals, task_signals
from leasejobs.claiming import Unreadable
from leasejobs.context import JobContext, to_json
from leasejobs.exceptions import LeaseLost, UnknownTask
from leasejobs.heartbeat import Held
from leasejobs.models import Job
from leasejobs.outcomes import (
    Continue,
    Continued,
    Discard,
    Failed,
    Failure,
    Outcome,
    Retry,
    Snooze,
    Snoozed,
    Succeeded,
)
from leasejobs.redaction import describe

# A task this process does not know may be one that a newer version brings.
UNKNOWN_TASK_DELAY: Final = timedelta(seconds=30)


def run(job: Job, held: Held, stopping: Callable[[], bool]) -> Outcome | None:
    """Run one attempt and return its outcome; None if the task completed itself in `fenced()`."""
    with receivers.attempt_context(job):
        return _run(job, held, stopping)


def _run(job: Job, held: Held, stopping: Callable[[], bool]) -> Outcome | None:
    try:
        task: Any = registry.find(job.task)
    except UnknownTask as error:
        signals.worker_changed.send_robust(
            sender=Job,
            event="task_unknown",
            level=logging.WARNING,
            fields={"task": job.task, "reason": str(error)},
        )
        return Snoozed(UNKNOWN_TASK_DELAY)
    if any(isinstance(value, Unreadable) for value in (job.args, job.kwargs, job.checkpoint)):
        return Failed(Failure("unreadable"), terminal=True)
    context = JobContext(job, held, stopping)
    has_returned = False
    task_signals.started(job)
    running = current.running_job.set(current.Running(job))
    try:
        arguments = [context, *job.args] if task.takes_context else job.args
        returned = task.call(*arguments, **job.kwargs)
        has_returned = True
        return None if context.is_completed else _answered(returned)
    except BaseException as error:  # noqa: BLE001 - the one place: around the user's task
        # SystemExit and CancelledError too: out of a worker's thread they would lead nowhere, and
        # the job would be renewed for ever. Signals reach the main thread, which runs no task.
        outcome = _failed(error, getattr(task, "terminal", ()), has_returned)
        if context.is_completed:
            signals.raised_after_completion.send_robust(
                sender=Job, job=job, failure=outcome.failure
            )
            return None
        return outcome
    finally:
        current.running_job.reset(running)
        # Progress is for people to see: if it cannot be written, the outcome stands all the same.
        with contextlib.suppress(Error, LeaseLost):
            context.flush_progress()


def _answered(returned: Any) -> Outcome:
    match returned:
        case Snooze(delay):
            return Snoozed(delay)
        case Continue(checkpoint):
            return Continued(to_json(checkpoint))
    return Succeeded(to_json(returned))


def _failed(
    error: BaseException, terminal: tuple[type[BaseException], ...], has_returned: bool
) -> Failed:
    path, detail, trace = describe(error)
    match error:
        case LeaseLost():
            return Failed(Failure("lease_lost", path, detail, trace))
        case _ if has_returned:
            # Terminal: what the body returned is no JSON, and would be none again.
            return Failed(Failure("result_not_json", path, detail, trace), terminal=True)
        case Discard():
            return Failed(Failure(error.code, path, "", trace), terminal=True)
        case Retry():
            return Failed(Failure("retry_requested", path, detail, trace), delay=error.delay)
        case SystemExit():
            return Failed(Failure("task_exited", path, detail, trace))
    return Failed(Failure("task_raised", path, detail, trace), terminal=isinstance(error, terminal))
