"""Tasks the suite runs in real workers. Each run leaves a line in `RunLog`-like tables or files."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connections

from leasejobs import Backoff, Continue, Discard, JobContext, Retry, Snooze, task

QUICK = Backoff(base=timedelta(0), cap=timedelta(0), jitter=0)


def note(directory: str, line: str) -> None:
    """Append a line to the run log of a test; one write, so lines of processes do not mix."""
    with open(Path(directory) / "runs", "a") as runs:
        runs.write(f"{line}\n")


@task
def noop() -> None:
    """Do nothing."""


@task
def echo(value: Any) -> Any:
    """Return the argument."""
    return value


@task(backoff=QUICK, max_attempts=3)
def explode(text: str = "no reason") -> None:
    """Raise."""
    raise RuntimeError(text)


@task
def discard(code: str) -> None:
    """Fail for good."""
    raise Discard(code)


@task(takes_context=True)
def run_and_note(context: JobContext, directory: str, seconds: float = 0) -> int:
    """Note begin and end, with the epoch; in between sleep."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    time.sleep(seconds)
    note(directory, f"end {context.job.pk} {context.epoch} {os.getpid()}")
    return context.epoch


@task
def run_and_sleep(seconds: float) -> None:
    """Sleep, and write nothing."""
    time.sleep(seconds)


@task(takes_context=True)
def wait_for_stop(context: JobContext, directory: str, seconds: float = 30) -> str:
    """Run until told to stop."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    deadline = time.monotonic() + seconds
    while not context.should_stop and time.monotonic() < deadline:
        time.sleep(0.01)
    note(directory, f"end {context.job.pk} {context.epoch} {os.getpid()}")
    return "stopped" if context.should_stop else "ran out"


@task(takes_context=True, backoff=QUICK)
def retry_once(context: JobContext) -> int:
    """Ask for a retry at the first attempt."""
    if context.attempt == 1:
        raise Retry(timedelta(0))
    return context.attempt


@task(takes_context=True)
def snooze_until(context: JobContext, epoch: int) -> int:
    """Snooze, at no delay, until the job was claimed `epoch` times."""
    if context.epoch < epoch:
        return Snooze(timedelta(0))  # type: ignore[return-value]
    return context.attempt


@task(takes_context=True)
def count_slices(context: JobContext, slices: int) -> int:
    """Continue with a checkpoint until `slices` are done."""
    done = (context.job.checkpoint or 0) + 1
    if done < slices:
        return Continue(done)  # type: ignore[return-value]
    return done


@task
def exit_process(status: int) -> None:
    """End the process, past every finally."""
    os._exit(status)


@task
def leave_a_second_session_dirty() -> None:
    """Open a connection beside Django's own, begin a transaction on it, and forget it."""
    for _ in range(2):
        connection = connections.create_connection("default")
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        kept.append(connection)


kept: list[Any] = []  # or the collector would close them
