"""What the command line says, as values: JSON, counts, names; and how answers are shown."""

import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.management.base import BaseCommand


def json_of(kind: type, name: str) -> Callable[[str], Any]:
    """Return a parser of JSON text that must hold a list, or an object."""

    def parse(text: str) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentTypeError(f"must be JSON: {error}") from error
        if not isinstance(value, kind):
            raise ArgumentTypeError(f"must be a JSON {name}, not {text[:100]!r}")
        return value

    return parse


def integer(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of a whole number within bounds."""

    def parse(text: str) -> int:
        digits = text.removeprefix("-") if least < 0 else text
        if not (digits.isascii() and digits.isdecimal()) or not least <= int(text) <= most:
            raise ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return parse


job_id = integer(1, 2**63 - 1)


def write_json(command: BaseCommand, value: Any) -> None:
    """Write one JSON document."""
    command.stdout.write(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def write_table(command: BaseCommand, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows under a head, in columns as wide as need be."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        command.stdout.write("  ".join(cells).rstrip())
