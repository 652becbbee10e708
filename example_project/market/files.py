"""The door of an import: a path or `-`, its format, and a mapping that fits it."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from example_project.market import lines
from example_project.market.events import Event
from example_project.market.imports import read_events
from example_project.market.mapping import EventMapping
from example_project.market.records import Refused, read_csv, read_jsonl

FORMATS: Final = ("csv", "jsonl")
_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class Source:
    """An events file being read: its events, and how many physical lines were passed."""

    def __init__(self, file: BinaryIO, kind: str, mapping: EventMapping) -> None:
        self.lines = 0
        if kind == "csv":
            reading = read_csv(self._counted(file))
            mapping.check(reading.columns)
        else:
            reading = read_jsonl(self._counted(file))
        self.events: Iterator[tuple[int, Event | Refused | None]] = read_events(
            reading.items, mapping
        )

    def _counted(self, file: BinaryIO) -> Iterator[lines.Line]:
        for line in lines.read(file):
            self.lines = line.number
            yield line


@contextlib.contextmanager
def opened(path: str, kind: str | None, mapping: EventMapping) -> Iterator[Source]:
    """Open an events file, or standard input for `-`.

    Raises `lines.UnreadableFileError`, `mapping.BadMappingError` or OSError before anything is
    read of it but its first line.
    """
    kind = kind or _SUFFIXES.get(Path(path).suffix.lower())
    if kind is None:
        raise lines.UnreadableFileError(
            f"whether it is CSV or JSON lines does not follow from its name: add --format "
            f"{' or --format '.join(FORMATS)}"
        )
    with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        yield Source(file, kind, mapping)
