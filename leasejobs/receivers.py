"""The one place where signals become events and metrics.

Events go to structlog where the project configured it, else to `logging`; they are past-tense
names with fields, listed in `events.EVENTS`. The library never configures logging. What only an
operator must decide on is ERROR; the everyday is DEBUG.
"""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

import structlog
from django.dispatch import receiver

from leasejobs import metrics, signals
from leasejobs.redaction import redact, say
from leasejobs.states import AttemptOutcome, State

_logger = logging.getLogger("leasejobs")
# key='value' for each field: Django's usual formatters show the message and no extra.
_in_words = structlog.processors.KeyValueRenderer(drop_missing=True)
_LEVELS: Final = {
    State.FAILED: logging.ERROR,
    State.PARKED: logging.ERROR,
    State.RETRYABLE: logging.WARNING,
}
_SUCCEEDED: Final = AttemptOutcome.SUCCEEDED
_SUCCEEDED_VALUE: Final = _SUCCEEDED.value
_MAY_BE_RETRIED: Final = {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST}


def emit(level: int, event: str, **fields: Any) -> None:
    """Send one event with its fields."""
    if structlog.is_configured():
        # By the method of the level: not every structlog logger has a `log`.
        log = getattr(structlog.get_logger("leasejobs"), logging.getLevelName(level).lower())
        log(event, **fields)
    elif _logger.isEnabledFor(level):
        # One message template per event: that is what groups them in an error tracker.
        template = f"{event} %s"
        _logger.log(level, template, _in_words(None, event, fields), extra=fields)


def is_wanted(level: int) -> bool:
    """Whether anybody may see an event of this level: asked once for a batch of them."""
    if not structlog.is_configured():
        return _logger.isEnabledFor(level)
    bound = structlog.get_logger("leasejobs").bind()
    # Of the class: structlog's generic logger hands any name of an instance on to what it wraps.
    for name in ("is_enabled_for", "isEnabledFor"):
        if ask := getattr(type(bound), name, None):
            return bool(ask(bound, level))
    return True


def attempt_context(job: Any) -> contextlib.AbstractContextManager[None]:
    """Bind job id, task, attempt, epoch and correlation id for what a task logs by structlog.

    At the end these names have their values of before again; no other is touched. Without
    structlog configured nothing is bound, which would cost 5 us a job.
    """
    if not structlog.is_configured():
        return contextlib.nullcontext()
    fields = {"job_id": job.pk, "task": job.task, "attempt": job.attempts, "epoch": job.epoch}
    # Past the descriptor: a deferred column is not worth a query.
    if correlation_id := job.__dict__.get("correlation_id"):
        fields["correlation_id"] = correlation_id
    return structlog.contextvars.bound_contextvars(**fields)


@receiver(signals.attempts_ended, dispatch_uid="leasejobs.receivers")
def attempts_ended(attempts: Sequence[Any], **_: Any) -> None:
    """Count the attempts that ended, and log each; the everyday only where DEBUG is wanted."""
    runs: dict[tuple[str, str, str], int] = {}
    wants_debug = is_wanted(logging.DEBUG)
    for attempt in attempts:
        # Every job of a drain comes by here: looking an enum's member or value up costs as much
        # as the rest of a turn.
        outcome = _SUCCEEDED_VALUE if attempt.outcome is _SUCCEEDED else attempt.outcome.value
        key = attempt.queue, attempt.task, outcome
        runs[key] = runs.get(key, 0) + 1
        if outcome is not _SUCCEEDED_VALUE or wants_debug:
            _tell_attempt(attempt, wants_debug)
    for key, count in runs.items():
        metrics.RUNS.of(*key).inc(count)


def _tell_attempt(attempt: Any, wants_debug: bool) -> None:
    is_retried = attempt.state in (State.RETRYABLE, State.PENDING)
    if is_retried and attempt.outcome in _MAY_BE_RETRIED:
        metrics.RETRIES.of(attempt.queue, attempt.task).inc()
    level = _LEVELS.get(attempt.state, logging.DEBUG)
    if level == logging.DEBUG and not wants_debug:
        return
    emit(
        level, f"job_{attempt.outcome.value}", job_id=attempt.job_id, task=attempt.task,
        queue=attempt.queue, epoch=attempt.epoch, attempt=attempt.number,
        state=State(attempt.state).name.lower(), failure_code=attempt.failure_code,
    )  # fmt: skip


@receiver(signals.jobs_claimed, dispatch_uid="leasejobs.receivers")
def jobs_claimed(queue: str, waits: Sequence[float], **_: Any) -> None:
    """Measure how long the jobs of a claim had been due."""
    metrics.QUEUE_WAIT_SECONDS.of(queue).observe_many(waits)


@receiver(signals.bodies_returned, dispatch_uid="leasejobs.receivers")
def bodies_returned(runs: Sequence[tuple[str, str, float]], **_: Any) -> None:
    """Measure how long task bodies ran."""
    seconds_by: dict[tuple[str, str], list[float]] = {}
    for queue, task, seconds in runs:
        seconds_by.setdefault((queue, task), []).append(seconds)
    for key, many in seconds_by.items():
        metrics.RUN_SECONDS.of(*key).observe_many(many)


@receiver(signals.lease_lost, dispatch_uid="leasejobs.receivers")
def lease_lost(lease: Any, outcome: Any, **_: Any) -> None:
    """Count and log a holder that came too late: with a renewal, or with an outcome."""
    (metrics.STALE_COMMITS_REJECTED if outcome else metrics.LEASE_CONFLICTS).inc()
    emit(logging.WARNING, "lease_lost", job_id=lease.pk, epoch=lease.epoch, holder=lease.holder,
         refused=str(outcome or ""))  # fmt: skip


@receiver(signals.jobs_recovered, dispatch_uid="leasejobs.receivers")
def job_recovered(
    pk: int, holder: str, cause: Any, state: Any, seconds: float | None = None, **_: Any
) -> None:
    """Count and log a row taken back from a dead or silent holder."""
    metrics.RECOVERIES.of(str(cause)).inc()
    if seconds is not None:
        metrics.RECOVERY_SECONDS.of(str(cause)).observe(seconds)
    emit(logging.WARNING, "job_recovered", job_id=pk, holder=holder, cause=str(cause),
         state=State(state).name.lower())  # fmt: skip


@receiver(signals.recovery_failed, dispatch_uid="leasejobs.receivers")
def recovery_failed(pk: int, error: Exception, **_: Any) -> None:
    """Log a row that could not be taken back this time."""
    emit(logging.ERROR, "recovery_failed", job_id=pk, reason=say(error))


@receiver(signals.jobs_expired, dispatch_uid="leasejobs.receivers")
def jobs_expired(pks: Sequence[int], **_: Any) -> None:
    """Log the jobs that were cancelled for being too late."""
    emit(logging.INFO, "jobs_expired", job_ids=list(pks))


@receiver(signals.jobs_operated, dispatch_uid="leasejobs.receivers")
def jobs_operated(
    sender: Any, verb: str, pks: Sequence[Any], actor: str, reason: str, **_: Any
) -> None:
    """Log what an operator did."""
    emit(logging.INFO, "jobs_operated", verb=verb, target=sender._meta.label, targets=list(pks),
         actor=actor, reason=redact(reason, 300))  # fmt: skip


@receiver(signals.raised_after_completion, dispatch_uid="leasejobs.receivers")
def raised_after_completion(job: Any, failure: Any, **_: Any) -> None:
    """Log what a task raised after it had completed itself; the job stays succeeded."""
    emit(logging.ERROR, "raised_after_completion", job_id=job.pk, task=job.task,
         exception_path=failure.exception_path, detail=failure.detail)  # fmt: skip


@receiver(signals.worker_changed, dispatch_uid="leasejobs.receivers")
def worker_changed(event: str, fields: dict[str, Any], level: int = logging.INFO, **_: Any) -> None:
    """Log what happened to a worker process."""
    if event == "listener_connected":
        metrics.LISTENERS_CONNECTED.set(1)
    elif event == "listener_lost":
        metrics.LISTENERS_CONNECTED.set(0)
        metrics.LISTENER_RECONNECTS.inc()
    emit(level, event, **fields)
