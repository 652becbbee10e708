"""The guard around `fenced()`: what another database is told there would not be fenced."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import sqlparse
from django.db import connections
from sqlparse import tokens

from leasejobs.exceptions import UnfencedWrite

_READS: Final = frozenset({"SELECT", "WITH", "SHOW", "VALUES", "TABLE"})
_SAVEPOINTS: Final = re.compile(r"\s*(savepoint|release savepoint|rollback to savepoint)\s", re.I)
_WRITES: Final = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|INTO|FOR SHARE|FOR KEY SHARE)\b", re.I)


@contextlib.contextmanager
def no_other_writes(alias: str) -> Iterator[None]:
    """Refuse, in this thread, anything but plain reads on every alias of DATABASES except `alias`.

    Raises `UnfencedWrite` in place of the statement. Savepoints pass, since they write nothing.
    Statements that reach the driver past Django's cursors (COPY, raw cursors) are not seen, nor
    is what a SELECT does inside a function.
    """

    def refuse(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = str(sql)
        if is_plain_read(text) or _SAVEPOINTS.match(text):
            return execute(sql, params, many, context)
        other = context["connection"].alias
        raise UnfencedWrite(
            f"a statement inside fenced() would write to the database {other!r}, which the fence"
            f" on {alias!r} does not cover; do it before or after the block"
        )

    with contextlib.ExitStack() as stack:
        for other in connections:
            if other != alias:
                stack.enter_context(connections[other].execute_wrapper(refuse))
        yield


def is_plain_read(sql: str) -> bool:
    """Whether `sql` is one statement that reads and takes no row lock; in doubt, no."""
    statements = [part for part in sqlparse.parse(sql) if str(part).strip("; \t\r\n")]
    if len(statements) != 1:
        return False
    words = [
        token.normalized.upper()
        for token in statements[0].flatten()  # type: ignore[no-untyped-call]
        if not token.is_whitespace
        and token.ttype not in tokens.Comment
        and token.ttype not in tokens.Literal
    ]
    first = next((word for word in words if word != "("), "")
    return first in _READS and not _WRITES.search(" ".join(words))
