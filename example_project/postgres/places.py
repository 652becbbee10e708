"""Where the files of the embedded server are, and who owns them.

The URL follows from the path of the project, so settings can compute it
without starting anything. Nothing here creates a file except `claim_folder()`.
"""

import hashlib
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

PROJECT = Path(__file__).resolve().parent.parent.parent
ROLE = DATABASE = "leasejobs"
# The port is a free one, chosen at each start; the socket is always reached under this one.
SOCKET_PORT = 5432
SERVER_USERS = ("postgres", "_postgres", "nobody")
SOCKET_PATH_LIMIT = 100


class PostgresError(Exception):
    """The embedded server cannot be used; the message says what to do."""


def folder() -> Path:
    """Return the folder of the server's files: $LEASEJOBS_POSTGRES_DIR, or one per project."""
    if override := os.environ.get("LEASEJOBS_POSTGRES_DIR"):
        return Path(override).absolute()
    if os.geteuid() == 0:
        return Path("/var/tmp") / f"leasejobs-{digest(PROJECT)}"
    return PROJECT / ".postgres"


def socket_folder() -> Path:
    """Return the socket's folder: inside `folder()` unless that path is too long for a socket."""
    inside = folder() / "socket"
    if len(os.fsencode(inside / ".s.PGSQL.65535")) < SOCKET_PATH_LIMIT:
        return inside
    return Path("/tmp") / f"leasejobs-{os.geteuid()}-{digest(folder())}"


def url(database: str = DATABASE) -> str:
    """Return the URL of the server's socket, whether the server runs or not."""
    return f"postgres://{ROLE}@{quote(str(socket_folder()), safe='')}:{SOCKET_PORT}/{database}"


def tcp_url(database: str = DATABASE) -> str:
    """Return the URL of the running server's loopback port, password included."""
    password = (folder() / "password").read_text().strip()
    port = (folder() / "port").read_text().strip()
    return f"postgres://{ROLE}:{quote(password, safe='')}@127.0.0.1:{port}/{database}"


def server_user(place: Path) -> pwd.struct_passwd | None:
    """Return the unprivileged user that runs the server for root, or None for anybody else."""
    if os.geteuid() != 0:
        return None
    known = []
    for name in SERVER_USERS:
        with suppress(KeyError):
            known.append(pwd.getpwnam(name))
    if not known:
        raise PostgresError(
            f"Root cannot run PostgreSQL and none of the users {', '.join(SERVER_USERS)} exists: "
            "set DATABASE_URL, or run this as an ordinary user."
        )
    with suppress(OSError):
        owner = place.lstat().st_uid
        return next((user for user in known if user.pw_uid == owner), known[0])
    return known[0]


def claim_folder(path: Path, user: pwd.struct_passwd | None) -> None:
    """Make the folder, private to the server's user, or refuse one that somebody else laid there.

    Its name can be guessed and /tmp is open to all.
    """
    created = True
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        created = False
    found = path.lstat()
    owner = user.pw_uid if user else os.geteuid()
    if user and found.st_uid == 0 and (created or not any(path.iterdir())):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner:
        raise PostgresError(f"{path} is not a folder of the server's user: remove it.")
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)


def digest(value: object) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()[:10]
