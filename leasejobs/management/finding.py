"""The tasks that the code here has, for the commands that name one."""

from typing import Any

from django.core.management.base import CommandError

from leasejobs import registry
from leasejobs.exceptions import UnknownTask
from leasejobs.redaction import describe


def discover() -> None:
    """Import every task module; a CommandError says what one of them raised.

    `--traceback` shows where.
    """
    try:
        registry.autodiscover()
    except Exception as error:  # a module of the project's may raise anything
        path, detail, _ = describe(error)
        raise CommandError(f"a task module cannot be imported: {path}: {detail}") from error


def find(name: str) -> Any:
    """Return the task called so, now or formerly; a CommandError says why there is none."""
    discover()
    try:
        return registry.find(name)
    except UnknownTask as error:
        raise CommandError(str(error)) from error
