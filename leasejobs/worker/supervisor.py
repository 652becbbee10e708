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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import Error, connections

from leasejobs import signals
from leasejobs.policy import Backoff
from leasejobs.recovery import Cause, settle_dead
from leasejobs.worker.options import Options
from leasejobs.worker.slots import Slots

HOLDER_VARIABLE: Final = "LEASEJOBS_HOLDER"
DESCRIPTORS_VARIABLE: Final = "LEASEJOBS_DESCRIPTORS"  # slots, lifeline, turn

# How a child says that it found nothing due. Not 0: a task, or a SIGTERM to the child alone, can
# make it exit with that while there is work.
DRAINED: Final = 64

SLOTS: Final = 1024
_TICK_SECONDS: Final = 0.2
# A statement a dead child left on the server may still lease rows to it for a moment: its
# holder is asked for again this long after it was first found empty.
_LINGER_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 5.0
_HEALTHY_SECONDS: Final = 5.0
_RESTART: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=30), jitter=0)


@dataclass
class _Child:
    number: int
    holder: str
    process: subprocess.Popen[bytes]
    slots: Slots
    lifeline: int
    started_at: float = field(default_factory=time.monotonic)

    def let_go(self) -> None:
        """Close the lifeline: the child stops gracefully."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


@dataclass
class _Dead:
    """A holder whose process is reaped and whose rows may not all be settled yet."""

    holder: str
    begun: set[tuple[int, int]]
    cause: Cause
    held_nothing: bool
    died_at: float = field(default_factory=time.monotonic)
    forget_at: float | None = None


class Supervisor:
    """Runs `options.processes` children until signalled, or until all of them have drained."""

    def __init__(self, options: Options, arguments: Sequence[str]) -> None:
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

    def run(self) -> int:
        """Supervise; return the exit status, 0 after a shutdown or a drain."""
        with self._woken_by_signals():
            emit("worker_started", processes=self._options.processes, pid=os.getpid())
            while True:
                self._bury()
                self._settle()
                if self._is_over():
                    break
                self._start_missing()
                self._enforce_shutdown()
                self._selector.select(self._pause())
                self._drain_wakeups()
            emit("worker_stopped", pid=os.getpid())
        self._turn.close()
        connections.close_all()
        return 0

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
        prefix = f"{self._options.holder}@" if self._options.holder else ""
        holder = f"{prefix}{socket.gethostname()}:{os.getpid()}.{number}:{secrets.token_hex(6)}"
        slots = Slots.create(SLOTS)
        lifeline_end, lifeline = os.pipe()
        passed = (slots.fd, lifeline_end, self._turn.fileno())
        environment = os.environ | {
            HOLDER_VARIABLE: holder,
            DESCRIPTORS_VARIABLE: ",".join(map(str, passed)),
            "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
        }
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
            cause = Cause.INTERRUPTED if self._signals else Cause.CRASHED
            self._dead.append(
                _Dead(child.holder, child.slots.begun(), cause, child.slots.is_empty())
            )
            child.slots.close()
            if status == DRAINED and not self._signals:
                self._start_at.pop(child.number, None)
            elif not self._signals:
                self._schedule_restart(child)
                emit("child_died", logging.ERROR, holder=child.holder, pid=pid, status=status)
        if os.getpid() == 1:
            self._reap_orphans()

    def _schedule_restart(self, child: _Child) -> None:
        now = time.monotonic()
        if now - child.started_at > _HEALTHY_SECONDS:
            self._failures[child.number] = 0
        delay = (
            _RESTART.delay(self._failures[child.number], 0)
            if self._failures[child.number]
            else timedelta(0)
        )
        self._failures[child.number] += 1
        self._start_at[child.number] = now + delay.total_seconds()

    def _settle(self) -> None:
        """Take back the rows of every dead holder; what is locked waits for the next tick."""
        now = time.monotonic()
        for dead in list(self._dead):
            try:
                left = settle_dead(dead.holder, dead.begun, dead.cause)
            except Error:
                connections.close_all()
                continue
            if left and now - dead.died_at < self._options.lease:
                dead.forget_at = None
            elif left:  # what could not be taken back is now any worker's, by its expired lease
                self._dead.remove(dead)
            elif dead.forget_at is None:
                dead.forget_at = now + _LINGER_SECONDS
            elif now >= dead.forget_at:
                self._dead.remove(dead)

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
