"""Real workers for tests: start them, watch them, signal them, and prove that none is left.

A test waits for facts (rows, files, processes), never for time to pass. Its workers find the
tasks of `tests.tasks` and `tests.worker.tasks`, and work on the test database.
"""

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
from django.db import connection

from example_project.postgres import PROJECT
from leasejobs.models import Attempt, Job
from leasejobs.states import State

TIMEOUT_SECONDS = 45
_MARK = "LEASEJOBS_TEST_FLEET"


def until(fact: Callable[[], Any], timeout: float = TIMEOUT_SECONDS) -> Any:
    """Return what `fact` returns once it is true; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not true within {timeout} s: {_described(fact)}"
        time.sleep(0.02)
    return found


class Worker:
    """One `runleaseworker` process with its children."""

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, points: Path, is_alone: bool
    ) -> None:
        self.process = process
        self.is_alone = is_alone
        self.pid = process.pid
        self.log = log
        self._points = points

    def children(self) -> list[psutil.Process]:
        """Return the live children, oldest first."""
        try:
            found = psutil.Process(self.pid).children()
            alive = [child for child in found if child.status() != psutil.STATUS_ZOMBIE]
            return [child for child in alive if "--child" in child.cmdline()]
        except psutil.Error:
            return []

    def child(self) -> psutil.Process:
        """Return the only child, waiting until it runs."""
        (child,) = until(self.children)
        return child

    def is_listening(self) -> bool:
        """Whether as many backends listen in the test database as there are children."""
        return 0 < len(self.children()) <= len(listening_backends())

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor alone."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the supervisor alone."""
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)

    def kill_host(self) -> None:
        """SIGKILL supervisor and children, as a host that loses power does."""
        children = self.children()
        self.kill()
        for child in children:
            child.kill()
        until(lambda: not any(is_alive(child) for child in children))

    def wait(self, timeout: float = TIMEOUT_SECONDS) -> int:
        """Return the exit status of the supervisor."""
        return self.process.wait(timeout)

    def stop(self) -> int:
        """SIGTERM and wait."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def point_process(self, point: str) -> int:
        """Return the id of the child that reached a point with a rule, waiting for it."""
        return int(until((self._points / point).exists) and (self._points / point).read_text())

    def output(self) -> str:
        """Return what supervisor and children have printed."""
        return self.log.read_text(errors="replace")


class Fleet:
    """The workers of one test."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self.directory = directory
        self.workers: list[Worker] = []
        self._mark = uuid.uuid4().hex
        self.environment = environment | {_MARK: self._mark, "PYTHONUNBUFFERED": "1"}

    def start(
        self, *options: str, points: str = "", shutdown: float | None = None, **variables: str
    ) -> Worker:
        """Start `runleaseworker` with options; `points` as in `leasejobs.testing.points`.

        `shutdown` overrides SHUTDOWN_SECONDS; `variables` go into the environment. The worker
        leads a process group of its own. Code is not watched unless the test says `--reload`.
        """
        number = len(self.workers)
        marks = self.directory / f"points-{number}"
        marks.mkdir()
        environment = self.environment | variables
        environment["LEASEJOBS_POINTS_DIRECTORY"] = str(marks)
        if points:
            environment["LEASEJOBS_POINTS"] = points
        if shutdown is not None:
            environment["LEASEJOBS_TEST_SHUTDOWN"] = str(shutdown)
            environment["DJANGO_SETTINGS_MODULE"] = "tests.worker.settings"
        log = self.directory / f"worker-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "runleaseworker", "--no-reload", *options],
                cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        worker = Worker(process, log, marks, "--processes=0" in options)
        self.workers.append(worker)
        return worker

    def start_ready(self, *options: str, **more: Any) -> Worker:
        """Start a worker and wait until it listens."""
        listening = len(listening_backends())
        worker = self.start(*options, **more)
        until(lambda: worker.children() and len(listening_backends()) > listening)
        return worker

    def drain(self, *options: str, **more: Any) -> Worker:
        """Run a worker until nothing is due; it has to exit 0."""
        worker = self.start("--drain", *options, **more)
        assert worker.wait() == 0, worker.output()
        return worker

    def processes(self) -> list[psutil.Process]:
        """Return every live process that a worker of this fleet started, orphans included."""
        return list(self._find())

    def disband(self) -> None:
        """Stop every worker by SIGTERM; fail if one does not exit 0 or leaves a process."""
        problems = []
        for worker in self.workers:
            # Before it has a child, a worker may not have come to handle signals yet.
            until(
                lambda worker=worker: (
                    worker.process.poll() is not None or worker.is_alone or worker.children()
                )
            )
            if worker.process.poll() is None:
                worker.signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                status = worker.process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                problems.append(f"worker {worker.pid} ignores SIGTERM")
                continue
            if status not in (0, -signal.SIGKILL) and not worker.is_alone:
                problems.append(f"worker {worker.pid} exited with {status}")
        deadline = time.monotonic() + 10
        while self.processes() and not problems and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in self.processes():
            problems.append(f"process {process.pid} is left: {_command(process)}")
            process.kill()
        for worker in self.workers:
            worker.process.wait(TIMEOUT_SECONDS)
            output = worker.output()
            sys.stdout.write(f"--- worker {worker.pid}\n{output}\n")
        assert not problems, problems

    def _find(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get(_MARK) == self._mark:
                    yield process
            except psutil.Error:
                continue


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs or is frozen; a zombie is dead."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def holder_of(child: psutil.Process) -> str:
    """Return the name under which a child holds leases."""
    return child.environ()["LEASEJOBS_HOLDER"]


def database_now() -> Any:
    """Return the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def backends(condition: str = "true") -> list[int]:
    """Return the backends in the test database that are not the test's own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            f" AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND {condition}"
        )
        return [row[0] for row in cursor.fetchall()]


def listening_backends() -> list[int]:
    """Return the backends whose last statement was LISTEN."""
    return backends("query LIKE 'LISTEN%%' AND state = 'idle'")


def terminate(pids: Iterable[int]) -> None:
    """End backends, and wait until they are gone."""
    gone = list(pids)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [gone])
    until(lambda: not set(gone) & set(backends()))


def state_of(job_id: int) -> State:
    """Return where a job stands."""
    return State(Job.objects.values_list("state", flat=True).get(pk=job_id))


def until_state(job_id: int, state: State) -> Job:
    """Wait until a job is in a state, and return it."""
    until(lambda: state_of(job_id) is state)
    return Job.objects.get(pk=job_id)


def until_all(state: State, job_ids: Iterable[int] | None = None) -> None:
    """Wait until all jobs, or these, are in a state."""
    jobs = Job.objects.all() if job_ids is None else Job.objects.filter(pk__in=list(job_ids))
    until(lambda: not jobs.exclude(state=state).exists())


def outcomes(job_id: int) -> list[str]:
    """Return how each attempt of a job ended, in order."""
    found = Attempt.objects.filter(job_id=job_id).order_by("epoch")
    return list(found.values_list("outcome", flat=True))


def notes(directory: Path) -> list[list[str]]:
    """Return the lines tasks noted in `directory`, split into words; see `tests.tasks.note`."""
    runs = Path(directory) / "runs"
    return [line.split() for line in runs.read_text().splitlines()] if runs.exists() else []


def until_noted(directory: Path, *words: Any) -> list[str]:
    """Wait for a note that begins with these words."""
    head = [str(word) for word in words]
    return until(
        lambda: next((line for line in notes(directory) if line[: len(head)] == head), None)
    )


def _described(fact: Callable[[], Any]) -> str:
    code = getattr(fact, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fact)
    jobs = Job.objects.order_by("pk").values_list(
        "pk", "task", "state", "attempts", "crashes", "epoch", "leased_by", "failure_code"
    )[:20]
    return f"{place}; jobs {list(jobs)}"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
