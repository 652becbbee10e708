"""The supervisor: starts children by exec, restarts them, settles the rows of the dead.

It claims nothing and runs no task. A child is told to stop by closing its lifeline, a pipe, and
so also stops when its supervisor is killed.
"""

import contextlib
import logging
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import Error, connections

from leasejobs import signals
from leasejobs.lanes import Lane, lane_number, lanes
from leasejobs.policy import Backoff
from leasejobs.recovery import Cause, settle_dead
from leasejobs.worker.health import Monitor
from leasejobs.worker.lane_runner import tell_failed
from leasejobs.worker.loop import DRAINED, RECYCLED
from leasejobs.worker.options import Options
from leasejobs.worker.registration import Registration
from leasejobs.worker.sessions import bound_engine
from leasejobs.worker.slots import Slots

HOLDER_VARIABLE: Final = "LEASEJOBS_HOLDER"
STARTED_VARIABLE: Final = "LEASEJOBS_STARTED_AT"  # as its slots are dated: by the clock of files
DESCRIPTORS_VARIABLE: Final = "LEASEJOBS_DESCRIPTORS"  # slots, lifeline, turn

SLOTS: Final = 1024
_TICK_SECONDS: Final = 0.2
# A statement a dead child left on the server may still lease rows to it for a moment: its
# holder is asked for again this long after it was first found empty.
_LINGER_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 5.0
_HEALTHY_SECONDS: Final = 5.0
# How long a job may go on after its timeout, when it is told to stop, before its child is killed.
_TIMEOUT_GRACE_SECONDS: Final = 2.0
_LONGEST_REST: Final = timedelta(seconds=1)
_RESTART: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=30), jitter=0)


@dataclass
class _Child:
    number: int
    holder: str
    process: subprocess.Popen[bytes]
    slots: Slots
    lifeline: int
    overdue: frozenset[tuple[int, int, int]] = frozenset()  # (lane, pk, epoch) it is killed for
    started_at: float = field(default_factory=time.monotonic)

    def begun(self, is_shutdown: bool) -> dict[int, dict[tuple[int, int], Cause]]:
        """Return, by lane, what is to be said of each row whose body began."""
        found: dict[int, dict[tuple[int, int], Cause]] = defaultdict(dict)
        for record in self.slots.begun():
            if (record.lane, record.pk, record.epoch) in self.overdue:
                cause = Cause.TIMED_OUT
            elif self.overdue or is_shutdown:
                cause = Cause.INTERRUPTED
            else:
                cause = Cause.CRASHED
            found[record.lane][record.pk, record.epoch] = cause
        return found

    def let_go(self) -> None:
        """Close the lifeline: the child stops gracefully."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


@dataclass
class _Dead:
    """A holder whose process is reaped and whose rows may not all be settled yet."""

    holder: str
    begun: dict[int, dict[tuple[int, int], Cause]]
    held_nothing: bool
    died_at: float = field(default_factory=time.monotonic)
    forget_at: float | None = None
    failed: set[str] = field(default_factory=set)  # lanes that could not settle their rows


class Supervisor:
    """Runs `options.processes` children until signalled, or until all of them have drained."""

    def __init__(
        self, options: Options, arguments: Sequence[str], monitor: Monitor | None = None
    ) -> None:
        self._options = options
        self._command = [*python_command(), "runleaseworker", "--child", *arguments]
        self._children: dict[int, _Child] = {}
        self._failures = dict.fromkeys(range(options.processes), 0)
        self._start_at = dict.fromkeys(range(options.processes), 0.0)
        self._dead: list[_Dead] = []
        self._signals = 0
        self._kill_at: float | None = None
        self._turn = tempfile.TemporaryFile(prefix="leasejobs-turn-")  # noqa: SIM115 - kept open
        self._selector = selectors.DefaultSelector()
        prefix = f"{options.holder}@" if options.holder else ""
        self._name = f"{prefix}{socket.gethostname()}:{os.getpid()}"
        self._registration = Registration(f"{self._name}:{secrets.token_hex(6)}", options)
        self._monitor = monitor
        self._turned_at = time.monotonic()
        self._rounds_at: list[float] = []

    def run(self) -> int:
        """Supervise; return the exit status, 0 after a shutdown or a drain."""
        bound_engine(self._options.lease)
        connections.close_all()  # for the one it has to be opened anew
        with self._woken_by_signals():
            emit("worker_started", processes=self._options.processes, pid=os.getpid())
            self._serve()
            while True:
                self._bury()
                self._settle()
                if self._is_over():
                    break
                self._start_missing()
                self._enforce_timeouts()
                self._enforce_shutdown()
                self._registration.report()
                self._look_round()
                self._selector.select(self._pause())
                self._drain_wakeups()
            emit("worker_stopped", pid=os.getpid())
        self._registration.withdraw()
        self._turn.close()
        connections.close_all()
        return 0

    def _serve(self) -> None:
        if self._monitor is not None:
            patience = max(3 * self._options.poll, self._options.lease)
            self._monitor.serve(lambda: self._turned_at, lambda: self._rounds_at, patience)
            emit("metrics_listening", port=self._monitor.port)

    def _look_round(self) -> None:
        """Note what /healthz and /readyz tell, from another thread, of us and our children."""
        at = {child.number: child.slots.ready_at for child in self._children.values()}
        numbers = [] if self._signals else self._start_at
        self._rounds_at = [at.get(number, 0.0) for number in numbers]
        self._turned_at = time.monotonic()

    def _on_signal(self, number: int, frame: object) -> None:
        # Only flags here: a handler may interrupt anything, a logging lock included.
        self._signals += 1

    def _is_over(self) -> bool:
        if self._children:
            return False
        is_finished = self._signals > 0 or not self._start_at
        if not is_finished:
            return False
        # Rows the dead still hold are worth waiting for, but not for ever: leases expire too.
        if self._kill_at is not None and time.monotonic() > self._kill_at + _KILL_SECONDS:
            return True
        return all(dead.forget_at is not None or dead.held_nothing for dead in self._dead)

    def _pause(self) -> float:
        recent = time.monotonic() - _LINGER_SECONDS
        if any(dead.forget_at is None and dead.died_at > recent for dead in self._dead):
            return 0.02
        return _TICK_SECONDS

    def _start_missing(self) -> None:
        if self._signals:
            return
        now = time.monotonic()
        for number, start_at in list(self._start_at.items()):
            if all(child.number != number for child in self._children.values()) and now >= start_at:
                child = self._start(number)
                self._children[child.process.pid] = child

    def _start(self, number: int) -> _Child:
        holder = f"{self._name}.{number}:{secrets.token_hex(6)}"
        slots = Slots.create(SLOTS)
        lifeline_end, lifeline = os.pipe()
        passed = (slots.fd, lifeline_end, self._turn.fileno())
        environment = os.environ | {
            HOLDER_VARIABLE: holder,
            DESCRIPTORS_VARIABLE: ",".join(map(str, passed)),
            STARTED_VARIABLE: str(os.fstat(slots.fd).st_mtime),
            "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
        }
        if self._monitor is not None:
            environment |= self._monitor.child_environment(holder)
        try:
            process = subprocess.Popen(
                self._command, env=environment, pass_fds=passed, stdin=subprocess.DEVNULL
            )
        finally:
            os.close(lifeline_end)
        emit("child_started", holder=holder, pid=process.pid)
        return _Child(number, holder, process, slots, lifeline)

    def _bury(self) -> None:
        """Reap the children that ended, and note whose rows are to be settled."""
        for pid, child in list(self._children.items()):
            status = child.process.poll()
            if status is None:
                continue
            del self._children[pid]
            child.let_go()
            ended = child.slots.ended if status == 0 else 0
            is_shutdown = self._signals > 0 or ended == RECYCLED
            begun = child.begun(is_shutdown)
            self._dead.append(_Dead(child.holder, begun, child.slots.is_empty()))
            has_worked = child.slots.ready_at > 0
            child.slots.close()
            if self._monitor is not None:
                self._monitor.bury(child.holder)
            if self._signals:
                continue
            if ended == DRAINED:
                self._start_at.pop(child.number, None)
            elif ended == RECYCLED or child.overdue:
                self._start_at[child.number] = 0.0
            else:
                self._schedule_restart(child, has_worked)
                emit("child_died", logging.ERROR, holder=child.holder, pid=pid, status=status)
        if os.getpid() == 1:
            self._reap_orphans()

    def _schedule_restart(self, child: _Child, has_worked: bool) -> None:
        """Start another after a pause that grows while children die young.

        Not for long after one that had been at work: what killed it was a job, whose crashes are
        counted, and those of all queues wait meanwhile.
        """
        now = time.monotonic()
        if now - child.started_at > _HEALTHY_SECONDS:
            self._failures[child.number] = 0
        delay = (
            _RESTART.delay(self._failures[child.number], 0)
            if self._failures[child.number]
            else timedelta(0)
        )
        if has_worked or self._options.reload:  # the next save may have mended it
            delay = min(delay, _LONGEST_REST)
        self._failures[child.number] += 1
        self._start_at[child.number] = now + delay.total_seconds()

    def _settle(self) -> None:
        """Take back the rows of every dead holder; what is locked waits for the next tick."""
        now = time.monotonic()
        for dead in list(self._dead):
            try:
                left = settle_dead(dead.holder, dead.begun.get(0, {}), dead.died_at)
            except Error:
                connections.close_all()
                continue
            left += sum(self._settle_lane(lane, dead) for lane in lanes())
            if left and now - dead.died_at < self._options.lease:
                dead.forget_at = None
            elif left:  # what could not be taken back is now any worker's, by its expired lease
                self._dead.remove(dead)
            elif dead.forget_at is None:
                dead.forget_at = now + _LINGER_SECONDS
            elif now >= dead.forget_at:
                self._dead.remove(dead)

    def _settle_lane(self, lane: Lane, dead: _Dead) -> int:
        """Let a lane take back its rows; one that fails is told of once.

        It is asked again while the holder is remembered, and holds up no shutdown: then its leases
        run out.
        """
        try:
            return lane.settle(dead.holder, dead.begun.get(lane_number(lane.name), {}))
        except Exception as error:  # noqa: BLE001 - a lane is somebody's code: it must not end ours
            if isinstance(error, Error):
                connections.close_all()
            if lane.name not in dead.failed:
                dead.failed.add(lane.name)
                tell_failed(lane, error)
            return 0

    def _enforce_timeouts(self) -> None:
        """Kill a child one of whose jobs runs over its time and did not stop when told.

        What else it had begun was stopped on purpose: interrupted, and charged nothing.
        """
        for child in self._children.values():
            if child.overdue:
                continue
            overdue = child.slots.overdue(_TIMEOUT_GRACE_SECONDS)
            if overdue:
                child.overdue = frozenset((row.lane, row.pk, row.epoch) for row in overdue)
                emit(
                    "child_killed", logging.ERROR, holder=child.holder, reason="timeout",
                    job_ids=[row.pk for row in overdue],
                )  # fmt: skip
                child.process.kill()

    def _enforce_shutdown(self) -> None:
        if not self._signals:
            return
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + self._options.shutdown + _KILL_SECONDS
            emit("shutdown_began", children=len(self._children))
            for child in self._children.values():
                child.let_go()
        if self._signals > 1:
            self._kill_at = min(self._kill_at, now)
        if now >= self._kill_at:
            for child in self._children.values():
                child.process.kill()

    def _reap_orphans(self) -> None:
        """As PID 1, reap what other processes left behind, and never a child of ours."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in self._children:
                return
            os.waitpid(found.si_pid, 0)

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Any:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._selector.register(reader, selectors.EVENT_READ)
        self._reader = reader
        handlers: dict[int, Callable[[int, object], None]] = {
            signal.SIGTERM: self._on_signal,
            signal.SIGINT: self._on_signal,
            signal.SIGCHLD: lambda number, frame: None,
        }
        old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            self._selector.close()
            os.close(reader)
            os.close(writer)

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass


def python_command() -> list[str]:
    """Return the command that runs a management command as this process was run.

    Through the project's own manage.py where that is what was started, since it may prepare the
    environment; else `python -m django`.
    """
    flags = [f"-W{option}" for option in sys.warnoptions]
    flags += [
        f"-X{name}" if value is True else f"-X{name}={value}"
        for name, value in sys._xoptions.items()
    ]
    script = os.path.abspath(sys.argv[0])
    is_command = len(sys.argv) > 1 and sys.argv[1] == "runleaseworker"
    if is_command and script.endswith(".py") and os.path.basename(script) != "__main__.py":
        return [sys.executable, *flags, script]
    return [sys.executable, *flags, "-m", "django"]


def emit(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Tell `signals.worker_changed`."""
    signals.worker_changed.send_robust(sender=Supervisor, event=event, level=level, fields=fields)
