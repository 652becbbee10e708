"""Two actors on two connections: a session played by hand, a thread with a session of its own.

Nothing here sleeps for luck: `wait_until_blocked` returns when the server itself says that a
session waits for a lock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection, connections

TIMEOUT_SECONDS = 20


@contextmanager
def second_session(*, autocommit: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """Yield a bare connection to the test database, for an actor played by hand.

    Unless `autocommit`, it is in a transaction from its first statement on. Rolled back at the end.
    """
    target = connection.settings_dict
    session = psycopg.connect(
        host=target["HOST"] or None,
        port=target["PORT"] or None,
        user=target["USER"] or None,
        password=target["PASSWORD"] or None,
        dbname=target["NAME"],
        autocommit=autocommit,
    )
    try:
        yield session
    finally:
        if not session.closed:
            session.rollback()
            session.close()


class Actor(threading.Thread):
    """Runs a callable in a thread, on a Django connection of its own, closed at the end."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(name="actor", daemon=True)
        self._function = function
        self._connected = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.pid = 0

    def run(self) -> None:
        """Connect, say so, act."""
        try:
            connection.ensure_connection()
            self.pid = connection.connection.info.backend_pid
            self._connected.set()
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - told by result()
            self._error = error
        finally:
            self._connected.set()
            connections.close_all()

    def result(self) -> Any:
        """Return what the callable returned, or raise what it raised."""
        self.join(TIMEOUT_SECONDS)
        assert not self.is_alive(), "the actor has not finished"
        if self._error is not None:
            raise self._error
        return self._value

    def wait_until_connected(self) -> None:
        """Return once the actor has its session."""
        assert self._connected.wait(TIMEOUT_SECONDS)


@contextmanager
def acting(function: Callable[[], Any]) -> Iterator[Actor]:
    """Start an actor; at the end of the block it must be through."""
    actor = Actor(function)
    actor.start()
    actor.wait_until_connected()
    try:
        yield actor
    finally:
        actor.join(TIMEOUT_SECONDS)
        assert not actor.is_alive(), "the actor has not finished"


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Run the callables at the same instant, each on its own connection; return their results."""
    barrier = threading.Barrier(len(functions))

    def after_barrier(function: Callable[[], Any]) -> Callable[[], Any]:
        def act() -> Any:
            barrier.wait(TIMEOUT_SECONDS)
            return function()

        return act

    actors = [Actor(after_barrier(function)) for function in functions]
    for actor in actors:
        actor.start()
    return [actor.result() for actor in actors]


def wait_until_blocked(pid: int) -> None:
    """Return once the server says that the session `pid` waits for a lock somebody holds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with second_session(autocommit=True) as observer:
        while time.monotonic() < deadline:
            row = observer.execute(
                "SELECT cardinality(pg_blocking_pids(pid)) > 0 AND wait_event_type = 'Lock'"
                " FROM pg_stat_activity WHERE pid = %s",
                [pid],
            ).fetchone()
            if row is not None and row[0]:
                return
            time.sleep(0.005)
    raise AssertionError(f"session {pid} is not blocked")


def terminate(pid: int) -> None:
    """End a session on the server, and return once it is gone."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with second_session(autocommit=True) as administrator:
        administrator.execute("SELECT pg_terminate_backend(%s)", [pid])
        while time.monotonic() < deadline:
            found = administrator.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]
            ).fetchone()
            if found is None:
                return
            time.sleep(0.005)
    raise AssertionError(f"session {pid} is still there")


def own_pid() -> int:
    """Return the server's process id of this thread's Django connection."""
    connection.ensure_connection()
    return int(connection.connection.info.backend_pid)
