"""The fleet of workers a test starts."""

from collections.abc import Iterator

import pytest

from tests.worker.fleet import Fleet


@pytest.fixture
def fleet(worker_env, tmp_path) -> Iterator[Fleet]:
    """Start real workers; at the end they must stop by SIGTERM, exit 0 and leave no process."""
    workers = Fleet(worker_env, tmp_path)
    yield workers
    workers.disband()
