"""The demo end to end, and with a guard taken out of the workers."""

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.db import connection

from example_project.market.demo.database import PREFIX
from tests.market.sabotage import VARIABLE

pytestmark = pytest.mark.crash
MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
MARK = "MARKET_TEST_MARK"
SECONDS = 180


@pytest.fixture
def demo_turn() -> Iterator[None]:
    """Run one demo of this server at a time: each looks at what databases there are."""
    server = hashlib.sha256(connection.settings_dict["HOST"].encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"leasejobs-demo-{server}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


@pytest.fixture
def demo_env(worker_env: dict[str, str], demo_turn: None) -> Iterator[dict[str, str]]:
    """Return an environment for a demo, and see that it left neither process nor database."""
    mark = uuid.uuid4().hex
    before = _databases()

    yield worker_env | {MARK: mark}

    assert not _marked(mark)
    assert _databases() == before


def test_every_line_of_the_verdict_is_ok(demo_env: dict[str, str]) -> None:
    ended = _demo(demo_env, "--simulated", "60")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert _failed(ended) == []
    assert len(re.findall("^ok ", ended.stdout, re.M)) == 8
    assert "60 events in, 60 jobs succeeded" in ended.stdout


def test_the_scene_fits_into_a_file_of_one_event(demo_env: dict[str, str], tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text('{"id": 7, "kind": "resolved", "at": "2026-01-01T00:00:00Z"}\n{"id": 8}\n')

    ended = _demo(
        demo_env, "--events", str(events), "--map", "market=id", "--map", "event_type=kind",
        "--map", "event_ref==final", "--map", "occurred_at=at",
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 event in, 1 job succeeded" in ended.stdout
    assert "line 2: refused: has an empty event_type" in ended.stderr


@pytest.mark.parametrize(
    ("sabotage", "failing"),
    [
        ("accept_stale_writes", ["recorded more than once", "stale outcome"]),
        ("forget_late_outcomes", ["stale outcome"]),
        ("wait_for_expiry", ["killed child"]),
        ("complete_without_telling", ["missing"]),
    ],
)
def test_the_verdict_fails_when_a_guard_is_removed(
    demo_env: dict[str, str], sabotage: str, failing: list[str]
) -> None:
    settings = "tests.market.sabotaged_settings"

    ended = _demo(
        demo_env | {"DJANGO_SETTINGS_MODULE": settings, VARIABLE: sabotage}, "--simulated", "40",
        "--patience", "15",
    )  # fmt: skip

    assert ended.returncode == 1, ended.stdout + ended.stderr
    for words in failing:
        assert any(words in line for line in _failed(ended)), ended.stdout


def test_an_interrupted_demo_leaves_nothing(demo_env: dict[str, str]) -> None:
    demo = subprocess.Popen(
        _command("--simulated", "60"), env=demo_env, stdout=subprocess.PIPE, text=True
    )
    with demo:
        assert demo.stdout is not None
        seen = ""
        for line in demo.stdout:
            seen += line
            if "SIGSTOP to" in line:
                demo.send_signal(signal.SIGINT)
                break
        demo.stdout.read()

    assert demo.returncode == 128 + signal.SIGINT, seen


def _demo(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), env=env, capture_output=True, text=True, timeout=SECONDS
    )


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-u", str(MANAGE), "demo", *arguments]


def _failed(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return re.findall("^FAILED (.*)", ended.stdout, re.M)


def _databases() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [PREFIX])
        return {name for (name,) in cursor.fetchall()}


def _marked(mark: str) -> list[psutil.Process]:
    """Return the living processes of one demo, once they have had time to go."""
    deadline = time.monotonic() + 5
    while True:
        found = []
        for process in psutil.process_iter():
            if process.pid == os.getpid():
                continue
            try:
                is_marked = process.environ().get(MARK) == mark
                if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
