"""A child process from exec to exit: its descriptors, its sessions, its signals."""

import logging
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from leasejobs import registry, signals
from leasejobs.worker.health import Monitor
from leasejobs.worker.loop import Loop
from leasejobs.worker.options import Options
from leasejobs.worker.reloading import watch_code
from leasejobs.worker.sessions import bound_engine, watch_connections
from leasejobs.worker.slots import Slots
from leasejobs.worker.supervisor import DESCRIPTORS_VARIABLE, HOLDER_VARIABLE, SLOTS

# For crash tests: leasejobs.testing.points says what it holds.
POINTS_VARIABLE: Final = "LEASEJOBS_POINTS"

_SOFTWARE: Final = 70  # EX_SOFTWARE of sysexits.h


def run_child(options: Options) -> None:
    """Run one child's loop under its supervisor, and exit the process."""
    slots_fd, lifeline, turn = map(int, os.environ[DESCRIPTORS_VARIABLE].split(","))
    # A terminal's Ctrl-C reaches the whole group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    slots = Slots(SLOTS, slots_fd)
    loop = _prepared(options, os.environ[HOLDER_VARIABLE], slots, turn)
    _stop_by_signal(loop, (signal.SIGTERM,), (lifeline,))
    _run_and_exit(loop, slots)


def run_alone(options: Options, monitor: Monitor | None = None) -> None:
    """Run one loop in this process, without a supervisor, and exit it.

    A job that runs over its time, or over the grace period of a shutdown, cannot be killed without
    the process: its row is recovered by its lease. Having drained or done its share it exits 0.
    """
    prefix = f"{options.holder}@" if options.holder else ""
    holder = f"{prefix}{socket.gethostname()}:{os.getpid()}.0:{secrets.token_hex(6)}"
    slots = Slots.create(SLOTS)
    loop = _prepared(options, holder, slots, None)
    _stop_by_signal(loop, (signal.SIGTERM, signal.SIGINT), ())
    if monitor is not None:
        patience = max(3 * options.poll, options.lease)
        monitor.serve(time.monotonic, lambda: [slots.ready_at], patience)
    _run_and_exit(loop, slots)


def _prepared(options: Options, holder: str, slots: Slots, turn: int | None) -> Loop:
    if os.environ.get(POINTS_VARIABLE):
        import_module("leasejobs.testing.points").install_from_environment()
    watch_connections()
    bound_engine(options.lease)
    registry.autodiscover()
    threading.excepthook = _die_with_our_threads
    loop = Loop(options, holder, slots, turn, is_alone=turn is None)
    signals.worker_child_started.send(sender=Loop, holder=holder)
    if options.reload:
        watch_code(loop)
    return loop


def _run_and_exit(loop: Loop, slots: Slots) -> None:
    status = _SOFTWARE
    try:
        slots.tell_ended(loop.run())
        status = 0
    finally:
        # Not sys.exit: a task that is still running must not hold up the process, and whatever it
        # does after this line would be done without a lease. Nor may an exception of the loop
        # leave a process behind that renews its leases and claims nothing.
        if status == _SOFTWARE:
            traceback.print_exc()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _stop_by_signal(loop: Loop, numbers: Sequence[int], lifelines: Sequence[int]) -> None:
    """Stop `loop` on a signal, at once on the second, or when a lifeline can be read.

    From a thread, never from a signal handler: one may interrupt the main thread inside the very
    locks that `stop` takes.
    """
    reader, writer = os.pipe()

    def ask(number: int, frame: object) -> None:
        os.write(writer, b"!")

    for number in numbers:
        signal.signal(number, ask)

    def read() -> None:
        asked = 0
        waited = [reader, *lifelines]
        while True:
            if len(waited) == 1:  # where there is no select for pipes
                os.read(reader, 1)
                asked += 1
            else:
                ready, _, _ = select.select(waited, (), ())
                if reader in ready:
                    os.read(reader, 1)
                    asked += 1
                waited = [fd for fd in waited if fd == reader or fd not in ready]
            loop.stop(at_once=asked > 1)

    threading.Thread(target=read, name="leasejobs-lifeline", daemon=True).start()


def _die_with_our_threads(hook: threading.ExceptHookArgs) -> None:
    """Print an exception that ended a thread; if it was one of ours, end the process with it.

    A child without its settler or its heartbeat would look alive and be none. Its supervisor
    settles what it held and starts another. Threads that tasks started may die as they like.
    """
    threading.__excepthook__(hook)
    if hook.thread is not None and hook.thread.name.startswith("leasejobs-"):
        sys.stderr.flush()
        os._exit(_SOFTWARE)
