"""The suite's server, the environment of its subprocesses, and the proof that it leaves nothing.

Without DATABASE_URL the embedded PostgreSQL starts before the first test that
needs a database and stops with the session, unless others use it. At the end
the session fails if a thread, a child process, a connection to the test
database or a transaction of it is left. Under pytest-xdist each of its workers has databases of
its own, looks for itself, and tells the session that waits for it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import psutil
import psycopg
import pytest
from django.db import connections

from example_project import postgres

GRACE_SECONDS = 5

_leftovers = pytest.StashKey[list[str]]()
_threads = pytest.StashKey[set[threading.Thread]]()
_children = pytest.StashKey[set[psutil.Process]]()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[None]:
    """Keep the embedded server up for the session, unless DATABASE_URL names another."""
    if os.environ.get("DATABASE_URL"):
        yield
        return
    try:
        with postgres.running():
            yield
    except postgres.PostgresError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server, django_db_modify_db_settings) -> None:
    """Start the server before Django makes the test database."""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker, request) -> Iterator[None]:
    """Look for what is left in the test database before Django drops it."""
    yield

    with django_db_blocker.unblock():
        found = _database_leftovers()
    request.config.stash[_leftovers].extend(found)


@pytest.fixture
def worker_env(transactional_db) -> dict[str, str]:
    """Return an environment in which a subprocess of `manage.py` works on the test database.

    The test must not hold what it wants the subprocess to see in a transaction,
    hence `transactional_db`.
    """
    return os.environ | {
        "DATABASE_URL": _database_url(),
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(postgres.PROJECT), os.environ.get("PYTHONPATH")])
        ),
    }


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_leftovers] = []
    if config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(_OfWorkers(config), "leftovers-of-workers")


class _OfWorkers:
    """Collects what the workers of pytest-xdist found left behind."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._config.stash[_leftovers].extend(node.workeroutput.get("leftovers", ()))


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_threads] = set(threading.enumerate())
    session.config.stash[_children] = set(psutil.Process().children(recursive=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave measurements out unless -m asks for them."""
    if "bench" in config.option.markexpr:
        return
    measurements = [item for item in items if item.get_closest_marker("bench")]
    if measurements:
        config.hook.pytest_deselected(items=measurements)
        items[:] = [item for item in items if item not in measurements]


def pytest_sessionfinish(session: pytest.Session) -> None:
    stash = session.config.stash
    before_threads, before_children = stash[_threads], stash[_children]

    def left() -> list[str]:
        threads = set(threading.enumerate()) - before_threads
        children = set(psutil.Process().children(recursive=True)) - before_children
        return [f"thread {thread.name}" for thread in threads] + [
            f"child process {child.pid}: {_command(child)}" for child in children
        ]

    if not session.config.pluginmanager.hasplugin("dsession"):  # whose own are pytest-xdist's
        stash[_leftovers].extend(_after_grace(left))
    workeroutput = getattr(session.config, "workeroutput", None)
    if workeroutput is not None:
        workeroutput["leftovers"] = stash[_leftovers]
    if stash[_leftovers] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    leftovers = terminalreporter.config.stash[_leftovers]
    if leftovers:
        terminalreporter.section("left behind by the session", red=True, bold=True)
        for line in leftovers:
            terminalreporter.line(line, red=True)


def _database_leftovers() -> list[str]:
    """Describe, and then end, what others still do in the test databases."""
    target = connections["default"].settings_dict
    names = [connections[alias].settings_dict["NAME"] for alias in connections]
    found = [
        "an open transaction of the suite itself"
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block
    ]
    connections.close_all()
    where = "datname = ANY(%s) AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    with psycopg.connect(
        host=target["HOST"] or None,
        port=target["PORT"] or None,
        user=target["USER"] or None,
        password=target["PASSWORD"] or None,
        dbname="postgres",
        autocommit=True,
    ) as administrator:

        def left() -> list[str]:
            rows = administrator.execute(
                "SELECT 'connection ' || pid || ' (' || coalesce(application_name, '') || ', '"
                " || coalesce(state, 'starting') || '): ' || left(query, 200)"
                f" FROM pg_stat_activity WHERE {where}"
                " UNION ALL SELECT 'prepared transaction ' || gid"
                " FROM pg_prepared_xacts WHERE database = ANY(%s)",
                [names, names],
            )
            return [text for (text,) in rows]

        found += _after_grace(left)
        # Or the test database could not be dropped.
        administrator.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}",
            [names],
        )
    return found


def _after_grace(left: Callable[[], list[str]]) -> list[str]:
    """Return what is left once it had time to go by itself."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "gone"


def _database_url() -> str:
    """Return the URL of the database that the suite is connected to."""
    target = connections["default"].settings_dict
    user = quote(target["USER"] or "", safe="")
    password = f":{quote(target['PASSWORD'], safe='')}" if target["PASSWORD"] else ""
    port = f":{target['PORT']}" if target["PORT"] else ""
    options = {k: v for k, v in target.get("OPTIONS", {}).items() if isinstance(v, str)}
    query = f"?{urlencode(options)}" if options else ""
    place = f"{user}{password}@{quote(target['HOST'] or '', safe='')}{port}"
    return f"postgres://{place}/{quote(target['NAME'], safe='')}{query}"
