"""A child process from exec to exit: its descriptors, its sessions, its signals."""

import logging
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from typing import Final

from leasejobs.worker.loop import Loop, stop_at_end_of
from leasejobs.worker.options import Options
from leasejobs.worker.sessions import watch_connections
from leasejobs.worker.slots import Slots
from leasejobs.worker.supervisor import (
    DESCRIPTORS_VARIABLE,
    DRAINED,
    HOLDER_VARIABLE,
    SLOTS,
)

# For crash tests: leasejobs.testing.points says what it holds.
POINTS_VARIABLE: Final = "LEASEJOBS_POINTS"

_SOFTWARE: Final = 70  # EX_SOFTWARE of sysexits.h


def run_child(options: Options) -> None:
    """Run one child's loop under its supervisor, and exit the process."""
    holder = os.environ[HOLDER_VARIABLE]
    slots_fd, lifeline, turn = map(int, os.environ[DESCRIPTORS_VARIABLE].split(","))
    if os.environ.get(POINTS_VARIABLE):
        import_module("leasejobs.testing.points").install_from_environment()
    watch_connections()
    loop = Loop(options, holder, Slots(SLOTS, slots_fd), turn)
    # A terminal's Ctrl-C reaches the whole group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader, writer = os.pipe()

    def ask(number: int, frame: object) -> None:
        os.write(writer, b"!")

    signal.signal(signal.SIGTERM, ask)
    stop_at_end_of((lifeline, reader), loop)
    threading.excepthook = _die_with_our_threads
    status = _SOFTWARE
    try:
        status = DRAINED if loop.run() else 0
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


def _die_with_our_threads(hook: threading.ExceptHookArgs) -> None:
    """Print an exception that ended a thread; if it was one of ours, end the process with it.

    A child without its settler or its heartbeat would look alive and be none. Its supervisor
    settles what it held and starts another. Threads that tasks started may die as they like.
    """
    threading.__excepthook__(hook)
    if hook.thread is not None and hook.thread.name.startswith("leasejobs-"):
        sys.stderr.flush()
        os._exit(_SOFTWARE)
