"""The backends of `leasejobs.testing`, in place of the suite's own."""

import pytest

from leasejobs.compat import task_backends
from leasejobs.testing import DummyBackend


@pytest.fixture
def eager(settings, db) -> None:
    """Run tasks as they are enqueued."""
    settings.TASKS = {"default": {"BACKEND": "leasejobs.testing.EagerBackend"}}


@pytest.fixture
def dummy(settings) -> DummyBackend:
    """Record calls; the database is not allowed."""
    settings.TASKS = {"default": {"BACKEND": "leasejobs.testing.DummyBackend"}}
    return task_backends["default"]
