"""Tasks that do to a test's session and context what tasks do."""

import subprocess
from datetime import timedelta
from typing import Any

import psycopg
import structlog
from django.db import IntegrityError, connection, transaction
from django.utils import translation

from leasejobs import JobContext, Snooze, task
from leasejobs.testing import expire_lease
from tests.fenced_app.models import Receipt

seen: list[Any] = []
sessions: list[psycopg.Connection[Any]] = []


@task(takes_context=True)
def inspect(context: JobContext, *values: Any) -> dict[str, Any]:
    """Tell what the context says."""
    seen.append(list(values))
    result = context.task_result
    return {
        "job": context.job.pk, "attempt": context.attempt, "epoch": context.epoch,
        "stop": context.should_stop, "args": result.args, "key": str(context.idempotency_key),
    }  # fmt: skip


@task(takes_context=True)
def complete_in_fence(context: JobContext, text: str) -> None:
    """Write a receipt behind the fence and complete."""
    with context.fenced():
        Receipt.objects.create(job_id=context.job.pk, text=text)
        context.checkpoint("written")
        context.complete(text)


@task(takes_context=True)
def write_then_raise(context: JobContext) -> None:
    """Raise inside the fence, after a write."""
    with context.fenced():
        Receipt.objects.create(job_id=context.job.pk, text="gone")
        raise ValueError("inside")


@task
def snooze() -> None:
    """Snooze for an hour."""
    return Snooze(timedelta(hours=1))  # type: ignore[return-value]


@task
def clear_context() -> dict[str, Any]:
    """Do to the context what no task should."""
    found = structlog.contextvars.get_contextvars()
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(left="behind")
    translation.activate("de")
    return found


@task
def spawn(times: int) -> int:
    """Enqueue oneself, `times` times in a row; below 0 for ever."""
    result = spawn.enqueue(times - 1) if times else None
    return 0 if result is None else int(result.is_finished)


@task(takes_context=True)
def spawn_in_fence(context: JobContext, fails: bool) -> None:
    """Enqueue another behind the fence."""
    with context.fenced():
        spawn.enqueue(0)
        if fails:
            raise ValueError("rolled back")


@task
def forget_everything() -> None:
    """Interrupt, as from the keyboard."""
    raise KeyboardInterrupt


@task
def break_the_transaction(is_careful: bool) -> str:
    """Run a statement that fails, and go on."""
    try:
        with transaction.atomic() if is_careful else connection.cursor():
            connection.cursor().execute("SELECT 1 / 0")
    except Exception:  # noqa: BLE001 - what tasks do
        return "went on"
    return "no error"


@task
def violate_by_the_orm() -> None:
    """Let an IntegrityError out."""
    receipt = Receipt.objects.create(text="one")
    try:
        Receipt.objects.create(pk=receipt.pk, text="two")
    except IntegrityError:
        return


@task
def leave_a_transaction_open() -> None:
    """Begin a transaction by hand and forget it."""
    connection.set_autocommit(False)


@task(takes_context=True)
def be_recovered(context: JobContext) -> None:
    """Let the lease run out and have another sweep take the row."""
    from leasejobs import recovery

    expire_lease(context.job)
    recovery.recover_expired()


@task
async def answer() -> int:
    """Answer from a coroutine."""
    return 42


@task
def snooze_past_the_end_of_time() -> None:
    """Snooze for longer than a timestamp can tell."""
    return Snooze(timedelta(days=500_000_000))  # type: ignore[return-value]


@task(takes_context=True)
def lock_own_row(context: JobContext) -> None:
    """Lock the job's row from another session, and leave it so."""
    known = connection.get_connection_params()
    target = {key: value for key, value in known.items() if isinstance(value, str | int)}
    sessions.append(psycopg.connect(**target))
    table = context.job._meta.db_table
    sessions[0].execute(f'SELECT FROM "{table}" WHERE id = %s FOR UPDATE', [context.job.pk])


@task
def leave_a_process() -> int:
    """Start a process and do not wait for it."""
    return subprocess.Popen(["sleep", "60"]).pid
