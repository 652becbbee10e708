"""A real `runleaseworker` process for a test, on the test database."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from django.conf import settings
from django.db import connections

from leasejobs import conf
from leasejobs.models import Job
from leasejobs.states import TERMINAL, State

_PAUSE_SECONDS: Final = 0.02
# Where the test runner keeps the test databases may differ from what the settings say.
_PLACE: Final = ("NAME", "HOST", "PORT", "USER", "PASSWORD")
_CARRIED: Final = ("LEASEJOBS", "TASKS")


class WorkerProcess:
    """One `runleaseworker` with its children; stopped by `stop`, or at the end of a `with` block.

    It works on the test databases, with the project's settings; `LEASEJOBS` and `TASKS` are those
    in force as it starts (`override_settings` counts), if they can be told as JSON. It sees only
    committed rows, so the test has to be a TransactionTestCase (pytest-django:
    `transactional_db`); in a TestCase it raises RuntimeError.

    `queues`, `processes`, `threads`, `lease` and `poll` are the command's options, `options` any
    others, as on the command line. With `drain`, the worker runs until nothing is due and has to
    exit 0 within `timeout` seconds before this returns. Otherwise this returns once the worker
    takes signals. Raises AssertionError, with what the worker printed, if that takes longer than
    `timeout` seconds or the worker exits before.
    """

    def __init__(
        self,
        *,
        queues: Sequence[str] = (),
        processes: int = 1,
        threads: int = 4,
        lease: float | None = None,
        poll: float | None = None,
        drain: bool = False,
        options: Sequence[str] = (),
        timeout: float = 30,
    ) -> None:
        if processes < 1:
            raise ValueError("a WorkerProcess is a supervisor: it needs a child process")
        _refuse_transaction()
        self.timeout = timeout
        self._kept = ""
        environment = _environment()
        self._directory = Path(tempfile.mkdtemp(prefix="leasejobs-worker-"))
        self._log, ready = self._directory / "log", self._directory / "ready"
        environment["LEASEJOBS_TEST_READY"] = str(ready)
        command = [sys.executable, "-m", "django", "runleaseworker"]
        command += [f"--processes={processes}", f"--threads={threads}"]
        command += [f"--queues={','.join(queues)}"] if queues else []
        command += [f"--lease={lease}"] if lease is not None else []
        command += [f"--poll={poll}"] if poll is not None else []
        command += ["--drain"] if drain else []
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        try:
            self._until(lambda: ready.exists() or self._has_ended(), "does not start")
            if drain:
                self._until(self._has_ended, "does not drain")
                self.stop()
            elif self._has_ended():
                raise AssertionError(self._told(f"exited with {self.process.returncode}"))
        except BaseException:
            self._kill()
            raise

    @property
    def pid(self) -> int:
        """The process id of the supervisor; its process group has this id, too."""
        return self.process.pid

    def output(self) -> str:
        """Return what supervisor and children have printed so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else self._kept

    def wait_for(self, *job_ids: int, timeout: float | None = None) -> list[Job]:
        """Return the jobs once each of them is finished, or parked.

        Raises AssertionError after `timeout` seconds (the worker's, by default), or if the worker
        exits before.
        """

        over = TERMINAL | {State.PARKED}
        jobs: dict[int, Job] = {}

        def are_over() -> bool:
            has_ended = self._has_ended()  # asked first: its last outcomes are then written
            jobs.update(Job.objects.using(conf.database()).in_bulk(job_ids))
            if missing := set(job_ids) - set(jobs):
                raise AssertionError(f"no job {', '.join(map(str, sorted(missing)))}")
            if all(job.state in over for job in jobs.values()):
                return True
            if has_ended:
                raise AssertionError(self._told(f"exited with {self.process.returncode}"))
            return False

        numbers = ", ".join(map(str, job_ids))
        self._until(are_over, f"does not finish job {numbers}", timeout)
        return [jobs[pk] for pk in job_ids]

    def stop(self) -> None:
        """SIGTERM the worker if it runs still; it has to exit 0 and leave no process.

        What does not end within `timeout` seconds is killed. Raises AssertionError then, and for
        another exit status. Stopping twice is fine.
        """
        if not self._log.exists():
            return
        if not self._has_ended():
            self.process.send_signal(signal.SIGTERM)
        try:
            self._until(self._has_ended, "does not stop at SIGTERM")
            if self.process.returncode:
                raise AssertionError(self._told(f"exited with {self.process.returncode}"))
            self._until(lambda: not self._has_children(), "leaves a process behind")
        finally:
            self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def _has_children(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):  # macOS says the latter of zombies
            return False
        return True

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._kept = self.output()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _until(
        self, fact: Callable[[], bool], complaint: str, timeout: float | None = None
    ) -> None:
        seconds = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > deadline:
                raise AssertionError(self._told(f"{complaint} within {seconds} s"))
            time.sleep(_PAUSE_SECONDS)

    def _told(self, what: str) -> str:
        return f"worker {self.pid} {what}; it printed:\n{self.output()}"


def _refuse_transaction() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            raise RuntimeError(
                "a worker process does not see the rows of an open transaction: use"
                " TransactionTestCase, or pytest-django's `transactional_db`, not TestCase or `db`"
            )


def _environment() -> dict[str, str]:
    module = os.environ.get("DJANGO_SETTINGS_MODULE")
    if not module:
        raise RuntimeError(
            "a worker process finds its settings by DJANGO_SETTINGS_MODULE, which is not set"
        )
    overrides: dict[str, Any] = {
        "DATABASES": {
            alias: {name: connections[alias].settings_dict[name] for name in _PLACE}
            for alias in connections
        }
    }
    for name in _CARRIED:
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            value = getattr(settings, name)
            json.dumps(value)
            overrides[name] = value
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "leasejobs.testing.settings",
        "LEASEJOBS_TEST_SETTINGS": module,
        "LEASEJOBS_TEST_OVERRIDES": json.dumps(overrides, default=str),
        # As the test imports, so does the worker.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
