"""Signals in, events out: to structlog where the project configured it, else to `logging`.

Events are past-tense names with fields. The library never configures logging. What only an
operator must decide on is ERROR; the everyday is DEBUG.
"""

import logging
from typing import Any

import structlog
from django.dispatch import receiver

from leasejobs import signals
from leasejobs.redaction import say
from leasejobs.states import AttemptOutcome, State

_logger = logging.getLogger("leasejobs")
# key='value' for each field: Django's usual formatters show the message and no extra.
_in_words = structlog.processors.KeyValueRenderer(drop_missing=True)


def emit(level: int, event: str, **fields: Any) -> None:
    """Send one event with its fields."""
    if structlog.is_configured():
        structlog.get_logger("leasejobs").log(level, event, **fields)
    elif _logger.isEnabledFor(level):
        # One message template per event: that is what groups them in an error tracker.
        template = f"{event} %s"
        _logger.log(level, template, _in_words(None, event, fields), extra=fields)


@receiver(signals.attempts_ended, dispatch_uid="leasejobs.receivers")
def attempts_ended(attempts: Any, **_: Any) -> None:
    """Log each attempt that ended; the succeeded ones only where DEBUG is wanted."""
    wanted = structlog.is_configured() or _logger.isEnabledFor(logging.DEBUG)
    for attempt in attempts:
        if attempt.outcome == AttemptOutcome.SUCCEEDED and not wanted:
            continue
        level = {State.FAILED: logging.ERROR, State.PARKED: logging.ERROR,
                 State.RETRYABLE: logging.WARNING}.get(attempt.state, logging.DEBUG)  # fmt: skip
        emit(
            level, f"job_{attempt.outcome.value}", job_id=attempt.job_id, task=attempt.task,
            queue=attempt.queue, epoch=attempt.epoch, attempt=attempt.number,
            state=State(attempt.state).name.lower(), failure_code=attempt.failure_code,
        )  # fmt: skip


@receiver(signals.lease_lost, dispatch_uid="leasejobs.receivers")
def lease_lost(lease: Any, outcome: Any, **_: Any) -> None:
    """Log a holder that came too late."""
    emit(logging.WARNING, "lease_lost", job_id=lease.pk, epoch=lease.epoch, holder=lease.holder,
         refused=str(outcome or ""))  # fmt: skip


@receiver(signals.jobs_recovered, dispatch_uid="leasejobs.receivers")
def job_recovered(pk: int, holder: str, cause: Any, state: Any, **_: Any) -> None:
    """Log a row taken back from a dead or silent holder."""
    emit(logging.WARNING, "job_recovered", job_id=pk, holder=holder, cause=str(cause),
         state=State(state).name.lower())  # fmt: skip


@receiver(signals.recovery_failed, dispatch_uid="leasejobs.receivers")
def recovery_failed(pk: int, error: Exception, **_: Any) -> None:
    """Log a row that could not be taken back this time."""
    emit(logging.ERROR, "recovery_failed", job_id=pk, reason=say(error))


@receiver(signals.raised_after_completion, dispatch_uid="leasejobs.receivers")
def raised_after_completion(job: Any, failure: Any, **_: Any) -> None:
    """Log what a task raised after it had completed itself; the job stays succeeded."""
    emit(logging.ERROR, "raised_after_completion", job_id=job.pk, task=job.task,
         exception_path=failure.exception_path, detail=failure.detail)  # fmt: skip


@receiver(signals.worker_changed, dispatch_uid="leasejobs.receivers")
def worker_changed(event: str, fields: dict[str, Any], level: int = logging.INFO, **_: Any) -> None:
    """Log what happened to a worker process."""
    emit(level, event, **fields)
