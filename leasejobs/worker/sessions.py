"""The database sessions of a child's threads: made noticeable to the server, and kept clean.

A task may leave anything behind on its thread's connection; the next task must not see it.
"""

import contextlib
import os
import re
import select
import threading
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from weakref import WeakSet

from django.db import (
    DatabaseError,
    DataError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
)
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

# How soon a server notices that a session's client is gone: without the first, a killed child's
# running statement keeps its row locks until it ends. A server on macOS has not got the first.
_SETTINGS: Final = (
    ("client_connection_check_interval", "200ms"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "3"),
    ("tcp_keepalives_count", "3"),
)

_LONG_IDLE_SECONDS: Final = 10.0
_ENGINE: Final = frozenset({"MainThread", "leasejobs-settler", "leasejobs-heartbeat"})

# The wrappers this thread ever connected, weakly: what a task drops may go. Asking Django for
# them costs more than a no-op job.
_mine = threading.local()


def watch_connections() -> None:
    """Prepare every session this process opens from now on."""
    connection_created.connect(_opened, dispatch_uid="leasejobs.sessions")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_after_fork)


def bound_engine(lease: float) -> None:
    """Let the server end a transaction of our own threads that idles for longer than a lease.

    They idle in none unless their process is frozen, and then the rows they have locked are no
    worker's: neither claimed, nor promoted, nor recovered. Sessions of tasks are not touched, nor
    those of a pool, which tasks share.
    """

    def bound(connection: Any, **_: Any) -> None:
        is_ours = threading.current_thread().name in _ENGINE and connection.vendor == "postgresql"
        if is_ours and not getattr(connection, "pool", None):
            timeout = f"{max(1, round(lease * 1000))}ms"
            _configure(connection, (("idle_in_transaction_session_timeout", timeout),))

    connection_created.connect(bound, weak=False, dispatch_uid="leasejobs.engine")


def discard_dirty() -> None:
    """Drop every connection of this thread that the task left otherwise than it found it.

    Inside a transaction, in another autocommit mode, or after a statement that changes its session
    (`SET`, an advisory lock, a cursor WITH HOLD, a temporary table, …). Such statements are
    recognised by their text: those that a function of the database runs are not.
    """
    for connection in list(getattr(_mine, "wrappers", ())):
        raw = connection.connection
        if raw is None:
            continue
        is_idle = connection.vendor != "postgresql" or (
            not raw.closed and raw.info.transaction_status == TransactionStatus.IDLE
        )
        is_clean = is_idle and connection.get_autocommit() and not connection.in_atomic_block
        if not is_clean or raw in _changed:
            raw.close()
            if getattr(connection, "pool", None):
                connection.pool.putconn(raw)  # or the pool would wait for it for ever
            # The wrapper too: inside a broken block it would stay unusable for ever. Unless it is
            # a second one that the task made for itself.
            if any(known is connection for known in connections.all(initialized_only=True)):
                del connections[connection.alias]


# What lasts beyond a transaction. Django's own savepoints, SET CONSTRAINTS and local set_config
# do not; a function that sets a parameter for good is not seen.
_CHANGES_SESSION: Final = re.compile(
    r"""(?ix)
    (?: ^ | ; ) \s* (?:
        (?: SET | RESET ) \s+ (?! LOCAL \b | CONSTRAINTS \b | TRANSACTION \b )
        | LISTEN \b | PREPARE \s+ (?! TRANSACTION \b ) | LOAD \b | DO \b | DISCARD \b
        | DECLARE \b .* \b WITH \s+ HOLD \b
        | CREATE \s+ (?: (?: LOCAL | GLOBAL ) \s+ )? TEMP (?: ORARY )? \b
    )
    | \b pg_ (?: try_ )? advisory_lock (?: _shared )? \s* \(
    | \b set_config \s* \( (?! [^()]* , \s* true \s* \) )
    """,
    re.DOTALL,
)
_LONGEST_LOOK: Final = 10_000  # characters of a statement

_changed: "WeakSet[Any]" = WeakSet()


@lru_cache(maxsize=16)
def _watching(base: type) -> type:
    """Return the cursor class `base` with an eye on what changes the session."""

    class Watching(base):  # type: ignore[misc]
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            text = query if isinstance(query, str | bytes) else query.as_string(self)
            if isinstance(text, bytes):
                text = text.decode(errors="replace")
            if _CHANGES_SESSION.search(text[:_LONGEST_LOOK]):
                _changed.add(self.connection)
            return super().execute(query, *args, **kwargs)

    return Watching


def _forget_after_fork() -> None:
    """Let a process that a task forked open connections of its own; ours stay the parent's."""
    for connection in connections.all(initialized_only=True):
        connection.connection = None


def close_cut(idle_seconds: float) -> None:
    """Close connections of this thread that were cut while they were idle.

    A session its server ended has something to read, the farewell or the end of the stream: that
    costs microseconds to see, so it is looked for before every job. After a long idle time, when
    the link may be half open, the server is asked.
    """
    for connection in list(getattr(_mine, "wrappers", ())):
        raw = connection.connection
        if raw is None:
            continue
        if (
            raw.closed
            or _has_something_to_read(raw.fileno())
            or (idle_seconds > _LONG_IDLE_SECONDS and not connection.is_usable())
        ):
            connection.close()


def _has_something_to_read(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _opened(connection: Any, **_: Any) -> None:
    # Under DEBUG Django keeps the text of every statement until a request ends; here none does.
    connection.queries_log = deque(maxlen=0)
    _mine.__dict__.setdefault("wrappers", WeakSet()).add(connection)
    if connection.vendor != "postgresql":
        return
    try:
        _configure(connection, _SETTINGS)
    except OperationalError:
        raise
    except DatabaseError:
        for setting in _SETTINGS:
            with contextlib.suppress(DataError, ProgrammingError, NotSupportedError):
                _configure(connection, (setting,))
    _watch(connection)


def _watch(connection: Any) -> None:
    raw = connection.connection
    raw.cursor_factory = _watching(raw.cursor_factory)


def _configure(connection: Any, settings: Sequence[tuple[str, str]]) -> None:
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {calls}", [text for setting in settings for text in setting])
