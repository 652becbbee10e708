"""Records out of lines: CSV rows and JSON objects, each with the number of its first line.

What cannot be read is a `Refused` in the place of a record; nothing after it is lost. A quote
that is opened and never closed would make the csv module swallow the rest of the file: a record
of several lines that turns out wrong costs its first line only, and reading resumes at the next.
"""

import csv
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from example_project.market.lines import MAX_LINE_BYTES, Line, UnreadableFileError

MAX_RECORD_LINES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Record:
    """Named values, and the line on which they begin."""

    line: int
    values: dict[str, Any]
    is_csv: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """What is wrong with the record that begins on this line."""

    line: int
    reason: str


@dataclass(slots=True)
class Reading:
    """Records, to be iterated once, and the columns that a header promises."""

    items: Iterator[Record | Refused]
    columns: list[str] = field(default_factory=list)  # empty for JSON lines, which have no header


def read_csv(lines: Iterator[Line]) -> Reading:
    """Read rows under a header; raise `UnreadableFileError` where there is no usable one."""
    source = _Pushback(lines)
    header = None
    while (line := source.take()) is not None:
        if not line.is_blank:
            source.give_back([line])
            header = _row(source)
            break
    if header is None:
        raise UnreadableFileError("the file is empty: a CSV begins with a line of column names")
    if isinstance(header, Refused):
        raise UnreadableFileError(f"line {header.line}, which names the columns, {header.reason}")
    names = [name.strip() for name in header[1]]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise UnreadableFileError(f"the header names {', '.join(map(repr, twice))} more than once")
    return Reading(_rows(source, names), [name for name in names if name])


def read_jsonl(lines: Iterator[Line]) -> Reading:
    """Read one JSON object a line."""
    return Reading(_objects(lines))


def _rows(source: "_Pushback", names: list[str]) -> Iterator[Record | Refused]:
    def count_problem(row: list[str]) -> str:
        if len(row) == len(names):
            return ""
        what = "few" if len(row) < len(names) else "many"
        return f"has too {what} columns: {len(row)}, and the header has {len(names)}"

    while (line := source.take()) is not None:
        if line.is_blank:
            continue
        source.give_back([line])
        found = _row(source, count_problem)
        if isinstance(found, Refused):
            yield found
        else:
            number, row = found
            values = {name: value for name, value in zip(names, row, strict=True) if name}
            yield Record(number, values, is_csv=True)


def _row(
    source: "_Pushback", problem: Callable[[list[str]], str] = lambda row: ""
) -> tuple[int, list[str]] | Refused:
    """Read one row; a wrong one costs its first line, and its other lines are given back."""
    taken: list[Line] = []

    def feed() -> Iterator[str]:
        size = 0
        while (line := source.take()) is not None:
            if line.problem and taken:
                source.give_back([line])
                raise _Malformed("opens a quote that is not closed before an unreadable line")
            taken.append(line)
            size += len(line.text)
            if line.problem:
                raise _Malformed(line.problem)
            if size > MAX_LINE_BYTES or len(taken) > MAX_RECORD_LINES:
                raise _Malformed("opens a quote that is not closed within the size of a record")
            yield line.text

    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        row = next(csv.reader(feed(), strict=True))
        reason = problem(row)
    except _Malformed as error:
        reason = str(error)
    except csv.Error as error:
        reason = f"is not CSV: {error}"
    if not reason:
        return taken[0].number, row
    source.give_back(taken[1:])
    if len(taken) > 1 and not reason.startswith("opens"):
        reason += f" (a quoted text runs on to line {taken[-1].number})"
    return Refused(taken[0].number, reason)


def _objects(lines: Iterator[Line]) -> Iterator[Record | Refused]:
    for line in lines:
        if line.is_blank:
            continue
        if line.problem:
            yield Refused(line.number, line.problem)
            continue
        try:
            value = parse_json(line.text)
        except ValueError as error:
            yield Refused(line.number, f"is not JSON: {error}")
            continue
        if isinstance(value, dict):
            yield Record(line.number, value)
        else:
            yield Refused(line.number, f"is not a JSON object but {describe(value)}")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError, also for NaN, infinities and depth."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def describe(value: Any) -> str:
    """Name the JSON type of a value, with an article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


class _Malformed(Exception):
    pass


class _Pushback:
    """Lines, of which those just taken can be given back."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._again: deque[Line] = deque()

    def take(self) -> Line | None:
        return self._again.popleft() if self._again else next(self._lines, None)

    def give_back(self, lines: list[Line]) -> None:
        self._again.extendleft(reversed(lines))
