"""Who uses the server: it runs for as long as somebody does.

Every user holds a shared lock on `use.lock`. Who leaves tries to make that lock
exclusive, and the one who succeeds is the last and stops the server. The kernel
drops the lock of a killed user, so the next one to leave stops what the killed
one left behind. Starting, stopping and counting users happen under
`control.lock`, one process at a time.
"""

import atexit
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from example_project.postgres.places import folder, url
from example_project.postgres.server import Server


@contextmanager
def running() -> Iterator[str]:
    """Yield the URL of a server that runs until the block ends, and longer if others use it."""
    server = Server()
    with _control(server):
        use = _lock(server.folder / "use.lock", fcntl.LOCK_SH)
        try:
            server.start()
        except BaseException:
            use.close()
            raise
    user = os.getpid()
    try:
        yield url()
    finally:
        # A fork that unwinds this block is not the user: it shares the user's lock.
        if os.getpid() == user:
            with _control(server), use:
                if not server.keep.exists() and _upgrade(use):
                    server.stop()


def ensure() -> str:
    """Have the server run until this process ends, and return its URL; again is harmless."""
    if os.getpid() not in _held:
        use = ExitStack()
        use.enter_context(running())
        _held[os.getpid()] = use
        atexit.register(use.close)
    return url()


_held: dict[int, ExitStack] = {}


def start() -> str:
    """Start the server and keep it running after its users have left, until `stop()`."""
    server = Server()
    with _control(server):
        server.start()
        server.keep.touch()
    return url()


def stop(*, force: bool = False) -> bool:
    """Stop the server unless it is in use; return whether it is stopped."""
    if not folder().exists():
        return True
    server = Server()
    with _control(server):
        return _stop(server, force=force)


def remove() -> bool:
    """Stop the server and delete its files, unless it is in use; return whether they are gone."""
    if not folder().exists():
        return True
    server = Server()
    with _control(server):
        if not _stop(server):
            return False
        for path in (server.socket_folder, server.folder):
            shutil.rmtree(path, ignore_errors=True)
    return True


@contextmanager
def holding(server_folder: Path) -> Iterator[IO[bytes]]:
    """Hold one more lock of a user, to be handed to a child process that may outlive this one."""
    with _lock(server_folder / "use.lock", fcntl.LOCK_SH) as use:
        yield use


def _stop(server: Server, *, force: bool = False) -> bool:
    server.keep.unlink(missing_ok=True)
    with _lock(server.folder / "use.lock", fcntl.LOCK_SH) as use:
        if not _upgrade(use) and not force:
            return False
        server.stop()
    return True


@contextmanager
def _control(server: Server) -> Iterator[None]:
    """Have the server to oneself for starting, stopping and counting its users."""
    with _lock(server.folder / "control.lock", fcntl.LOCK_EX):
        yield


def _lock(path: Path, operation: int) -> IO[bytes]:
    """Open and lock a file; closing it, or the end of the process, releases the lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = open(os.open(path, flags, 0o600), "rb+")  # noqa: SIM115
    try:
        fcntl.flock(file, operation)
    except BaseException:
        file.close()
        raise
    return file


def _upgrade(use: IO[bytes]) -> bool:
    """Make the shared lock exclusive: true for the only user, false while there are others."""
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
