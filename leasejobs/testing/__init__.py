"""For the tests of projects that use leasejobs.

The names are imported on first use: pytest imports this package at start, for its plugin, where
Django may not be configured yet, or not be there at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasejobs.testing.assertions import EnqueuedCall as EnqueuedCall
    from leasejobs.testing.assertions import assert_enqueued as assert_enqueued
    from leasejobs.testing.assertions import assert_not_enqueued as assert_not_enqueued
    from leasejobs.testing.backends import DummyBackend as DummyBackend
    from leasejobs.testing.backends import EagerBackend as EagerBackend
    from leasejobs.testing.rows import expire_lease as expire_lease
    from leasejobs.testing.rows import make_due as make_due
    from leasejobs.testing.running import run_due as run_due
    from leasejobs.testing.workers import WorkerProcess as WorkerProcess

_HOME = {
    "DummyBackend": "backends",
    "EagerBackend": "backends",
    "EnqueuedCall": "assertions",
    "WorkerProcess": "workers",
    "assert_enqueued": "assertions",
    "assert_not_enqueued": "assertions",
    "expire_lease": "rows",
    "make_due": "rows",
    "run_due": "running",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
