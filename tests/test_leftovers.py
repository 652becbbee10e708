"""A session that leaves a thread, a child, a connection or a transaction fails, and says what."""

import os
import subprocess
import sys
from pathlib import Path

from example_project.postgres import PROJECT

HEAD = """
import subprocess, sys, threading
import psycopg, pytest
from django.db import connection, transaction

kept = []


def connect():
    target = connection.get_connection_params()
    known = {key: value for key, value in target.items() if isinstance(value, str | int)}
    return psycopg.connect(**known)
"""

CLEAN = """
def test_nothing(db):
    assert connection.ensure_connection() is None
"""

LEAKING = """
def test_thread():
    thread = threading.Thread(target=threading.Event().wait, name="left-thread", daemon=True)
    thread.start()


def test_child():
    # Ends when this process does: its input is a pipe from here.
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "left-child"]
    kept.append(subprocess.Popen(command, stdin=subprocess.PIPE))


def test_connection(db):
    kept.append(connect())
    kept[-1].autocommit = True
    kept[-1].execute("SELECT 'left-connection'")


def test_transaction(db):
    kept.append(connect())
    kept[-1].execute("SELECT 'left-transaction'")
"""


def run_session(directory: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run a test file under the suite's own conftest, with a test database of its own."""
    # A conftest, not a plugin: pytest-django's fixtures would override those of a plugin.
    (directory / "conftest.py").write_text("from tests.conftest import *  # noqa: F403\n")
    file = directory / "test_inner.py"
    file.write_text(HEAD + source)
    environment = os.environ | {"TOX_ENV_NAME": f"inner{os.getpid()}", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--create-db"),
            *("-c", str(PROJECT / "pyproject.toml"), f"--rootdir={PROJECT}", str(file)),
        ],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_session_that_leaves_nothing_passes(postgres_server, tmp_path):
    result = run_session(tmp_path, CLEAN)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "left behind" not in result.stdout


def test_session_that_leaves_things_fails_and_names_them(postgres_server, tmp_path):
    result = run_session(tmp_path, LEAKING)

    assert "4 passed" in result.stdout, result.stdout + result.stderr
    assert result.returncode == 1
    _, _, told = result.stdout.partition("left behind by the session")
    for name in ("left-thread", "left-child", "left-connection", "left-transaction"):
        assert name in told
