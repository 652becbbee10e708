"""Database sessions: whether one is gone, and how long a transaction of one may last."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

from django.db import (
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)

# Read-only; ended for idling in a transaction, or for the length of one.
_OURS_IS_GONE: Final = frozenset({"25006", "25P03", "25P04"})
_LARGEST_TIMEOUT: Final = 2**31 - 1  # milliseconds, an int of the server


def is_session_lost(raw: Any, error: Error) -> bool:
    """Whether `error` means that the driver's connection `raw` is gone, not that it refused.

    `raw` must be the one the statement ran on: Django's atomic() connects anew as it leaves a
    block whose connection died, so the wrapper's current one tells nothing.
    """
    if isinstance(error, InterfaceError) or raw.closed or raw.broken:
        return True
    state = _state(error)
    # 57P0x: an administrator, a crash, a shutdown; 25P0x: a timeout of ours; 08: the link
    return state in {"57P01", "57P02", "57P03", "25P03", "25P04"} or state.startswith("08")


def is_database_away(error: Error) -> bool:
    """Whether any statement would fail now: no server, no session, read-only, tables missing.

    Asked without the connection that failed, so an error without a SQLSTATE counts as the link's.
    """
    state = _state(error)
    if not state:
        return isinstance(error, OperationalError | InterfaceError)
    return state.startswith(("08", "42", "53", "57P", "58")) or state in _OURS_IS_GONE


def is_content_refused(error: Error) -> bool:
    """Whether the server refused what a statement says: data, a constraint, a limit."""
    return _state(error)[:2] in {"22", "23", "54"}


def after_commit(send: Callable[[], object], alias: str) -> None:
    """Call `send` once the current transaction on `alias`, if any, has committed.

    Not at all where the caller manages transactions by hand (`set_autocommit(False)`): Django
    does not see that commit, and what is announced this way is found by polling, too.
    """
    connection = connections[alias]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(send, using=alias, robust=True)


def is_inside_transaction(alias: str) -> bool:
    """Whether this thread is in a transaction on `alias` that is not a TestCase's."""
    connection = connections[alias]
    blocks = connection.atomic_blocks
    if connection.in_atomic_block:
        return not all(getattr(block, "_from_testcase", False) for block in blocks)
    return connection.connection is not None and not connection.get_autocommit()


def is_inside_test_case(connection: Any) -> bool:
    """Whether the transaction around the innermost `atomic()` is a TestCase's."""
    blocks = connection.atomic_blocks
    return len(blocks) > 1 and bool(blocks[-2]._from_testcase)


def bound_transaction(connection: Any, duration: timedelta) -> None:
    """Let the server end this transaction if a statement or a pause in it outlasts `duration`.

    A frozen or vanished client then keeps its row locks no longer than that.
    """
    milliseconds = str(min(max(1, int(duration.total_seconds() * 1000)), _LARGEST_TIMEOUT))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true),"
            " set_config('statement_timeout', %s, true)",
            [milliseconds, milliseconds],
        )


@contextlib.contextmanager
def bounded_wait(alias: str, seconds: float) -> Iterator[None]:
    """A transaction, or savepoint, that waits no longer than that for any lock."""
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout')")
        (before,) = cursor.fetchone() or ("0",)
        setting = "SELECT set_config('lock_timeout', %s, true)"
        cursor.execute(setting, [f"{seconds * 1000:.0f}ms"])
        yield
        # A savepoint that ends well would leave it to the rest of the caller's transaction.
        cursor.execute(setting, [before])


def is_wait_over(error: Error) -> bool:
    """Whether a lock was waited for as long as `bounded_wait` allows."""
    return _state(error) == "55P03"


def _state(error: Error) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""
