"""The demo's processes: several real `runleaseworker`, each a supervisor with children."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import psutil

from leasejobs.worker.supervisor import HOLDER_VARIABLE

STOP_SECONDS: Final = 30
PROCESSES: Final = 2
THREADS: Final = 2
MANAGE: Final = Path(__file__).resolve().parents[3] / "manage.py"


@dataclass(frozen=True, slots=True)
class Child:
    """A worker's child: the name it holds leases under, and its process."""

    worker: str
    holder: str
    process: psutil.Process


class Fleet:
    """The workers, while the block of `running` lasts."""

    def __init__(self, workers: int, lease: float, environment: dict[str, str]) -> None:
        self._lease = lease
        self._environment = environment
        self._names = [f"w{number}" for number in range(1, workers + 1)]
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self._log: BinaryIO = tempfile.TemporaryFile(prefix="leasejobs-demo-")  # noqa: SIM115
        self._known: dict[int, Child] = {}
        self._is_stopped = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the workers; end every process of theirs on the way out, also the frozen ones."""
        try:
            for name in self._names:
                self._supervisors[name] = self._start(name)
            yield
        finally:
            self._end_all()
            self._log.close()

    def children(self) -> list[Child]:
        """Return the children that live, frozen ones included."""
        found: list[Child | None] = []
        for name, supervisor in self._supervisors.items():
            with contextlib.suppress(psutil.Error):
                processes = psutil.Process(supervisor.pid).children()
                found += [self._identify(name, process) for process in processes]
        return [child for child in found if child is not None]

    def child(self, holder: str) -> Child | None:
        """Return the living child that holds leases under this name."""
        return next((child for child in self.children() if child.holder == holder), None)

    def dead_supervisors(self) -> list[str]:
        """Return the names of the workers that ended though nobody asked them to."""
        return [name for name, process in self._supervisors.items() if process.poll() is not None]

    def stop(self) -> dict[str, int | None]:
        """Ask every worker to stop and return its exit status, None for one that did not."""
        self._is_stopped = True
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.process.send_signal(signal.SIGCONT)
        for process in self._supervisors.values():
            process.terminate()
        statuses: dict[str, int | None] = {}
        for name, process in self._supervisors.items():
            try:
                statuses[name] = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                statuses[name] = None
        return statuses

    def log(self, characters: int = 4_000) -> str:
        """Return the end of what the workers wrote."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-characters:]

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        # A session of its own: the terminal's Ctrl-C is for the demo, which then stops them.
        return subprocess.Popen(
            [
                *(sys.executable, str(MANAGE), "runleaseworker", "--no-reload", "--holder", name),
                *("--processes", str(PROCESSES), "--threads", str(THREADS)),
                *("--lease", str(self._lease), "--poll", "0.5"),
            ],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _identify(self, worker: str, process: psutil.Process) -> Child | None:
        known = self._known.get(process.pid)
        if known is not None and known.process == process:
            return known if process.status() != psutil.STATUS_ZOMBIE else None
        # Between fork and exec a child still has its supervisor's environment.
        holder = process.environ().get(HOLDER_VARIABLE)
        if not holder:
            return None
        self._known[process.pid] = Child(worker, holder, process)
        return self._known[process.pid]

    def _end_all(self) -> None:
        processes: list[psutil.Process] = []
        for supervisor in self._supervisors.values():
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(supervisor.pid)
                processes += [root, *root.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        if not self._is_stopped:
            for supervisor in self._supervisors.values():
                supervisor.terminate()
            # The second signal: now.
            psutil.wait_procs(processes, 1)
            for supervisor in self._supervisors.values():
                supervisor.terminate()
        psutil.wait_procs(processes, 5)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for supervisor in self._supervisors.values():
            supervisor.wait()


def environment(database_url: str, **more: str) -> dict[str, str]:
    """Return the environment of the demo's subprocesses."""
    return os.environ | {"DATABASE_URL": database_url} | more
