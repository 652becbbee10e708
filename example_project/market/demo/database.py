"""A database of the demo's own: made, migrated, and dropped again, whatever happens.

It lies on the server of DATABASE_URL, beside the user's database, of which nothing is read or
written; the role must be allowed to create databases.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import ProgrammingError, connection, connections

from example_project import postgres

PREFIX = "leasejobs_demo_"


@contextlib.contextmanager
def own_database(keep: bool) -> Iterator[str]:
    """Make a database and connect this process to it; yield the URL for others.

    Dropped at the end, with whoever is still connected to it, unless `keep`.
    """
    name = f"{PREFIX}{secrets.token_hex(4)}"
    quoted = connection.ops.quote_name(name)
    theirs = connection.settings_dict["NAME"]
    try:
        _create(quoted)
        _connect_to(name)
        call_command("migrate", verbosity=0)
        yield url(name)
    finally:
        _connect_to(theirs)
        if not keep:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)")
        connections.close_all()


def _create(quoted: str) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {quoted}")
    except ProgrammingError as error:
        raise CommandError(
            "The demo makes a database of its own beside the one of DATABASE_URL, and may not: "
            f"{str(error).strip()}. Allow the role CREATEDB, or unset DATABASE_URL."
        ) from error


def url(name: str) -> str:
    """Return the URL of another database of the server that the settings name."""
    parts = urlsplit(os.environ.get("DATABASE_URL") or postgres.url())
    return parts._replace(path=f"/{quote(name, safe='')}").geturl()


def _connect_to(name: str) -> None:
    connections.close_all()
    connection.settings_dict["NAME"] = name
