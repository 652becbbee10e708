"""Tasks that die, freeze, dawdle and misbehave, for the tests of real workers.

`tell` is the effect that must happen once: a row in a table without any unique constraint.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from example_project.market.models import Market, Notification, Watcher
from leasejobs import Backoff, JobContext, Retry, Snooze, task
from tests.fenced_app.models import Account
from tests.tasks import QUICK, note


def tell(label: str) -> None:
    """Write one row that says so."""
    watcher, _ = Watcher.objects.get_or_create(name="watcher")
    market, _ = Market.objects.get_or_create(ref="market")
    Notification.objects.create(
        watcher=watcher, market=market, event_type="told", event_ref=label,
        occurred_at=timezone.now(), text=label,
    )  # fmt: skip


def told(label: str) -> int:
    """Count the rows that say so."""
    return Notification.objects.filter(event_ref=label).count()


@task(takes_context=True, backoff=QUICK)
def tell_fenced(context: JobContext, directory: str, label: str) -> None:
    """Tell, and complete in the same fenced transaction."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    with context.fenced():
        tell(label)
        context.complete("told")


@task(takes_context=True, backoff=QUICK)
def tell_in_statement(context: JobContext, directory: str, label: str, seconds: float) -> None:
    """Tell in a fenced transaction; at the first claim the server is busy for a while in it."""
    with context.fenced():
        tell(label)
        note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
        if context.epoch == 1:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(%s)", [seconds])
        context.complete("told")


@task(takes_context=True, backoff=QUICK)
def die_once(context: JobContext) -> int:
    """SIGKILL the process at the first claim."""
    if context.epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return context.epoch


@task(takes_context=True, backoff=QUICK)
def exit_once(context: JobContext, status: int) -> None:
    """End the process with a status of the task's own at the first claim."""
    if context.epoch == 1:
        os._exit(status)


@task(takes_context=True, backoff=QUICK)
def die(context: JobContext, directory: str) -> None:
    """SIGKILL the process at every claim."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def wait_for_file(context: JobContext, directory: str, name: str, seconds: float = 120) -> int:
    """Run until a file appears, whatever the worker wants; note when it wants a stop."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    deadline = time.monotonic() + seconds
    was_told = False
    while not (Path(directory) / name).exists() and time.monotonic() < deadline:
        if context.should_stop and not was_told:
            was_told = True
            note(directory, f"told {context.job.pk} {context.epoch} {os.getpid()}")
        time.sleep(0.01)
    note(directory, f"end {context.job.pk} {context.epoch} {os.getpid()}")
    return context.epoch


@task(takes_context=True, on_crash="park")
def park_for_file(context: JobContext, directory: str, name: str) -> None:
    """As `wait_for_file`, but nobody may begin again what was stopped midway."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    while not (Path(directory) / name).exists():
        time.sleep(0.01)


@task(takes_context=True)
def compute(context: JobContext, seconds: float) -> int:
    """Keep the interpreter busy."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sum(range(10_000))
    return context.epoch


@task(takes_context=True)
def many_blocks(context: JobContext, seconds: float) -> int:
    """Enter short fenced blocks one after another."""
    blocks, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        with context.fenced():
            time.sleep(0.02)
        blocks += 1
    return blocks


@task(takes_context=True)
def long_block(context: JobContext, seconds: float, label: str) -> None:
    """Stay in one fenced block, with a statement now and then, and complete in it."""
    with context.fenced():
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            told(label)
            time.sleep(0.02)
        tell(label)
        context.complete()


@task(takes_context=True, max_attempts=1)
def stall_in_block(context: JobContext, seconds: float, label: str, where: str) -> None:
    """Be longer in one statement, or between two, than a lease lasts."""
    with context.fenced():
        tell(label)
        if where == "statement":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(%s)", [seconds])
        else:
            time.sleep(seconds)
        context.complete()


@task(backoff=Backoff(base=timedelta(seconds=1), cap=timedelta(seconds=1), jitter=0))
def fail_then_wait() -> None:
    """Fail, to be retried after a second."""
    raise Retry


@task(max_attempts=1)
def leave_dirty(how: str) -> str:
    """Leave the thread's session in a state no task should find it in."""
    match how:
        case "aborted":
            transaction.atomic().__enter__()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 / 0")
            except DatabaseError:
                return how
        case "manual":
            transaction.set_autocommit(False)
            tell("dirty")
        case "open":
            transaction.atomic().__enter__()
            tell("dirty")
        case "raised":
            transaction.atomic().__enter__()
            tell("dirty")
            raise RuntimeError(how)
        case "raw":
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT 1")
        case "closed":
            connection.ensure_connection()
            connection.connection.close()
        case "terminated":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        case "timeout":
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = '1ms'")
    return how


@task(max_attempts=1)
def describe_session() -> dict[str, Any]:
    """Return what a task finds its session to be."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT txid_current_if_assigned(), current_setting('statement_timeout')")
        assigned, timeout = cursor.fetchone()
    return {
        "in_atomic_block": connection.in_atomic_block,
        "autocommit": connection.get_autocommit(),
        "assigned": assigned,
        "timeout": timeout,
    }


@task
def watch_accounts(seconds: float) -> int:
    """Return how many accounts somebody held at once, at most, while this ran."""
    most, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, Account.objects.leased().count())
    return most


@task
def count_markets() -> int:
    """Use the ORM for a moment."""
    return Market.objects.count()


class Unprintable(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Exiting(Exception):
    """Ends the interpreter when asked what is wrong."""

    def __str__(self) -> str:
        sys.exit(3)


class TwoArguments(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__()


class NotAnException(BaseException):
    """Passes every `except Exception`."""


def _endless(depth: int = 0) -> int:
    return _endless(depth + 1)


@task(max_attempts=1)
def misbehave(how: str) -> Any:
    """Raise or return what is hard to write down."""
    match how:
        case "exit":
            sys.exit("enough")
        case "exit_code":
            raise SystemExit(0)
        case "unprintable":
            raise Unprintable
        case "exiting":
            raise Exiting
        case "two_arguments":
            raise TwoArguments(1, 2)
        case "unstorable":
            raise ValueError("nul \x00 and surrogate \ud800")
        case "huge":
            raise ValueError("x" * 5_000_000)
        case "recursion":
            return _endless()
        case "chain":
            error = ValueError("again")
            error.__cause__ = KeyError("first")
            error.__cause__.__cause__ = error
            raise error
        case "local_class":
            raise type("Lo\x00cal", (Exception,), {})("made here")
        case "group":
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
        case "stop_iteration":
            raise StopIteration
        case "memory":
            raise MemoryError
        case "long_snooze":
            return Snooze(timedelta.max)
        case "long_retry":
            raise Retry(timedelta.max)
        case "not_a_number":
            return float("nan")
        case "object":
            return object()
        case "deep":
            value: list[Any] = []
            for _ in range(50_000):
                value = [value]
            return value
        case "endless":
            value = []
            value.append(value)
            return value
        case "base_exception":
            raise NotAnException("passes")
        case "cancelled":
            import asyncio

            raise asyncio.CancelledError
        case "interrupt":
            raise KeyboardInterrupt
        case "generator_exit":
            raise GeneratorExit
    raise AssertionError(how)


@task(max_attempts=1)
def return_unstorable() -> Any:
    """Return strings PostgreSQL has no place for."""
    return {"nul \x00": ["surrogate \ud800", {"plain": "text"}]}
