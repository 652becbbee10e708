"""The command line: python -m example_project.postgres run -- COMMAND …"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from example_project.postgres.places import PostgresError, folder, url
from example_project.postgres.programs import wheel_folder
from example_project.postgres.server import is_running
from example_project.postgres.users import holding, remove, running, start, stop


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m example_project.postgres")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a command with the server up: run -- COMMAND …")
    run.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("start", help="start the server and keep it until `stop`")
    verbs.add_parser("stop", help="stop the server").add_argument("--force", action="store_true")
    verbs.add_parser("remove", help="stop the server and delete its database and files")
    verbs.add_parser("status", help="exit with 0 if the server runs, else with 3")
    psql = verbs.add_parser("psql", help="open psql: psql [-- ARGUMENTS …]")
    psql.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = getattr(options, "command", [])
    if command[:1] == ["--"]:
        del command[0]
    try:
        if options.verb == "run":
            return _run_command(command) if command else parser.error("run needs a command")
        if options.verb == "psql":
            program = wheel_folder() / "pginstall" / "bin" / "psql"
            database_url = os.environ.get("DATABASE_URL") or url()
            return _run_command([str(program), database_url, *command])
        if options.verb == "start":
            print(start())
        elif options.verb == "stop" and not stop(force=options.force):
            print("In use: it stops when its last user leaves (or: stop --force).")
            return 1
        elif options.verb == "remove" and not remove():
            print("In use: nothing removed.")
            return 1
        elif options.verb == "status":
            print(f"running: {url()}" if is_running() else "stopped")
            return 0 if is_running() else 3
    except PostgresError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run_command(command: list[str]) -> int:
    """Run a command with DATABASE_URL set, and return its exit status once the server is left."""
    if os.environ.get("DATABASE_URL"):
        os.execvp(command[0], command)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    with running() as database_url:
        # The child holds a lock of its own: should this process be killed, the
        # server stays up for the child.
        with holding(folder()) as use:
            child = subprocess.Popen(
                command,
                env=os.environ | {"DATABASE_URL": database_url},
                pass_fds=[use.fileno()],
            )
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda number, _: _forward(number, child))
        status = child.wait()
    return 128 - status if status < 0 else status


def _exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _forward(number: int, child: subprocess.Popen[Any]) -> None:
    """Pass a signal on, except one of the keyboard: the terminal sends those to the child too."""
    if number in (signal.SIGINT, signal.SIGQUIT):
        with suppress(OSError), open("/dev/tty") as terminal:
            if os.tcgetpgrp(terminal.fileno()) == os.getpgrp():
                return
    child.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
