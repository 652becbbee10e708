"""The database sessions of a child's threads: made noticeable to the server, and kept clean.

A task may leave anything behind on its thread's connection; the next task must not see it.
"""

import contextlib
import select
import threading
from collections import deque
from collections.abc import Sequence
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

# The wrappers this thread ever connected, weakly: what a task drops may go. Asking Django for
# them costs more than a no-op job.
_mine = threading.local()


def watch_connections() -> None:
    """Prepare every session this process opens from now on."""
    connection_created.connect(_opened, dispatch_uid="leasejobs.sessions")


def discard_dirty() -> None:
    """Drop every connection of this thread that was left inside a transaction."""
    for connection in list(getattr(_mine, "wrappers", ())):
        raw = connection.connection
        if raw is None:
            continue
        is_idle = connection.vendor != "postgresql" or (
            not raw.closed and raw.info.transaction_status == TransactionStatus.IDLE
        )
        if connection.in_atomic_block or not connection.get_autocommit() or not is_idle:
            raw.close()
            # The wrapper too: inside a broken block it would stay unusable for ever. Unless it is
            # a second one that the task made for itself.
            if any(known is connection for known in connections.all(initialized_only=True)):
                del connections[connection.alias]


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


def _configure(connection: Any, settings: Sequence[tuple[str, str]]) -> None:
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {calls}", [text for setting in settings for text in setting])
