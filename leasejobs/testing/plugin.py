"""The pytest plugin (entry point `leasejobs` of `pytest11`): fixtures on top of pytest-django's.

pytest imports this module at start, whatever the project: it imports no Django, and does nothing
until a test asks for a fixture.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from leasejobs.models import Job
    from leasejobs.testing.backends import DummyBackend
    from leasejobs.testing.workers import WorkerProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting `leasejobs_worker_timeout` of pytest's configuration file."""
    parser.addini(
        "leasejobs_worker_timeout",
        "seconds a leasejobs_worker may take to start, to drain and to stop (default: 30)",
        default="30",
    )


@pytest.fixture
def run_due(db: None) -> "Callable[..., list[Job]]":
    """Return `leasejobs.testing.run_due`, for a test with a database."""
    from leasejobs.testing import run_due

    return run_due


@pytest.fixture
def leasejobs_eager(db: None, settings: Any) -> None:
    """Run tasks as they are enqueued: `EagerBackend` in place of each LeaseBackend of TASKS."""
    _replace_backend(settings, "leasejobs.testing.EagerBackend")


@pytest.fixture
def leasejobs_dummy(settings: Any) -> "DummyBackend":
    """Record calls and store nothing: `DummyBackend` in place of each LeaseBackend of TASKS.

    Returns the backend of the first alias; with its `results`.
    """
    from leasejobs.compat import task_backends

    first, *_ = _replace_backend(settings, "leasejobs.testing.DummyBackend")
    backend: DummyBackend = task_backends[first]  # type: ignore[assignment]
    return backend


@pytest.fixture
def leasejobs_worker(
    transactional_db: None, request: pytest.FixtureRequest
) -> "Iterator[Callable[..., WorkerProcess]]":
    """Start real worker processes on the test database: `leasejobs_worker(queues=["mail"])`.

    Takes what `leasejobs.testing.WorkerProcess` takes and returns one, started. At the end each
    is stopped by SIGTERM, has to exit 0 and to leave no process; what hangs is killed, and the
    test fails.
    """
    from leasejobs.testing import WorkerProcess

    timeout = float(request.config.getini("leasejobs_worker_timeout"))
    workers: list[WorkerProcess] = []

    def start(**options: Any) -> WorkerProcess:
        worker = WorkerProcess(**({"timeout": timeout} | options))
        workers.append(worker)
        return worker

    yield start
    problems = []
    for worker in reversed(workers):
        try:
            worker.stop()
        except AssertionError as error:
            problems.append(str(error))
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def _replace_backend(settings: Any, path: str) -> list[str]:
    from leasejobs.backend import LeaseBackend
    from leasejobs.compat import task_backends

    ours = [
        alias for alias in task_backends.settings if isinstance(task_backends[alias], LeaseBackend)
    ]
    if not ours:
        pytest.fail("no alias of TASKS is a LeaseBackend", pytrace=False)
    settings.TASKS = {
        alias: entry | {"BACKEND": path} if alias in ours else entry
        for alias, entry in task_backends.settings.items()
    }
    return ours
