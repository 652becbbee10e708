"""One cluster of the embedded PostgreSQL: made, started, awaited and stopped."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from example_project.postgres.places import (
    DATABASE,
    ROLE,
    SOCKET_PORT,
    PostgresError,
    claim_folder,
    folder,
    server_user,
    socket_folder,
)
from example_project.postgres.programs import forget_other_copies, run_program

START_TIMEOUT_SECONDS = 60
LOG_LIMIT_BYTES = 10_000_000

CREATE_DATABASE = f"CREATE DATABASE {DATABASE}\n"

CONFIGURATION = """\
# Written at each start.
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '"{socket_folder}"'
unix_socket_permissions = 0700
max_connections = 200
fsync = on
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] '
lc_messages = 'C'
"""
AUTHENTICATION = """\
local all all trust
host all all 127.0.0.1/32 scram-sha-256
"""


def is_running() -> bool:
    """Say whether a server listens on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(socket_folder() / f".s.PGSQL.{SOCKET_PORT}"))
        except OSError:
            return False
    return True


class Server:
    """The cluster in `folder()`; its methods expect the control lock to be held."""

    def __init__(self) -> None:
        self.folder = folder()
        self.socket_folder = socket_folder()
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.keep = self.folder / "keep"
        self.user = server_user(self.folder)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        claim_folder(self.folder, self.user)

    def start(self) -> None:
        if is_running():
            self._await_ready()
            return
        if self._postmaster():
            # It starts or stops on behalf of somebody who was killed, or has lost its socket.
            if self._await_ready(seconds=10, required=False):
                return
            self.stop()
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        forget_other_copies(self.folder)
        self._initialise()
        claim_folder(self.socket_folder, self.user)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        for attempt in range(1, 4):
            try:
                self._launch()
                return
            except PostgresError:
                # Somebody took the port, or backends of a killed server still wind up.
                if attempt == 3:
                    raise
                time.sleep(attempt)

    def stop(self) -> None:
        if self._postmaster():
            self._run("pg_ctl", "stop", "-D", str(self.data), "-m", "fast", "-w", "-t", "60")
        for name in self.socket_folder.glob(".s.PGSQL.*"):
            name.unlink(missing_ok=True)

    def _initialise(self) -> None:
        """Make the cluster under another name and rename it: a killed start leaves no half."""
        if self.data.exists():
            return
        draft = self.folder / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        password = self.folder / "password"
        self._write(password, secrets.token_urlsafe(24) + "\n")
        self._run(
            "initdb",
            *("-D", str(draft), "-U", ROLE, f"--pwfile={password}", "--auth=scram-sha-256"),
            *("-E", "UTF8", "--no-locale", "--locale-provider=builtin"),
            "--builtin-locale=C.UTF-8",
        )
        self._run("postgres", "--single", "-D", str(draft), "postgres", given=CREATE_DATABASE)
        with (draft / "postgresql.conf").open("a") as configuration:
            configuration.write("\ninclude_if_exists 'leasejobs.conf'\n")
        self._write(draft / "pg_hba.conf", AUTHENTICATION)
        draft.rename(self.data)

    def _launch(self) -> None:
        for name in self.socket_folder.glob(".s.PGSQL.*"):
            name.unlink()
        port = _free_port()
        quoted = str(self.socket_folder).replace('"', '""').replace("'", "''")
        self._write(
            self.data / "leasejobs.conf",
            CONFIGURATION.format(port=port, socket_folder=quoted),
        )
        self._run(
            "pg_ctl",
            *("start", "-D", str(self.data), "-l", str(self.log), "-s"),
            *("-w", "-t", str(START_TIMEOUT_SECONDS)),
        )
        self._write(self.folder / "port", f"{port}\n")
        alias = self.socket_folder / f".s.PGSQL.{SOCKET_PORT}"
        if port != SOCKET_PORT:
            alias.symlink_to(f".s.PGSQL.{port}")

    def _await_ready(self, seconds: float = START_TIMEOUT_SECONDS, required: bool = True) -> bool:
        """Wait until the server answers, or give up early when its process has gone."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if is_running():
                host, port = str(self.socket_folder), str(SOCKET_PORT)
                with suppress(PostgresError):
                    self._run("pg_isready", "-q", "-h", host, "-p", port, "-t", "2")
                    return True
            elif not required and not self._postmaster():
                return False
            time.sleep(0.1)
        if required:
            raise PostgresError(f"PostgreSQL does not answer; its log is {self.log}")
        return False

    def _postmaster(self) -> int | None:
        """Return the process id of this cluster's server.

        After a power cut or a SIGKILL the pid file remains, and the number may be
        another process's by now: the command line tells.
        """
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid if str(self.data) in _command_line(pid) else None

    def _write(self, path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        if self.user:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def _run(self, program: str, *arguments: str, given: str = "") -> None:
        run_program(program, *arguments, place=self.folder, user=self.user, given=given)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        with suppress(OSError):
            return subprocess.run(command, capture_output=True, text=True).stdout
        return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
