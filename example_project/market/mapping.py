"""From a record to an event: which column is which field, and which records are events at all.

`--map FIELD=COLUMN` takes a column's value; `--map FIELD==TEXT` a text of one's own, in which
`{COLUMN}` stands for a column's value, and `{{` and `}}` for braces. The fields are market,
event_type, event_ref and occurred_at, which must not be empty, and title and payload. A field
that is not mapped is the column of its name. A payload is JSON; where it is neither mapped nor a
column, it is an object of the columns that nothing else uses.

`--where COLUMN=VALUE` and `--where-differs COLUMN COLUMN` say which records are events; others
are skipped. Values that are numbers differ as numbers (8 and 8.0 do not), and an empty value
differs from nothing.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from example_project.market.events import (
    MAX_MARKET_CHARACTERS,
    MAX_REF_CHARACTERS,
    MAX_TYPE_CHARACTERS,
    Event,
)
from example_project.market.records import Record, Refused, describe, parse_json

REQUIRED: Final = ("market", "event_type", "event_ref", "occurred_at")
OPTIONAL: Final = ("title", "payload")
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_LIMITS: Final = {
    "market": MAX_MARKET_CHARACTERS,
    "event_type": MAX_TYPE_CHARACTERS,
    "event_ref": MAX_REF_CHARACTERS,
    "occurred_at": 100,
    "title": 10_000,
}


class BadMappingError(ValueError):
    """A mapping that cannot be meant, or does not fit the file; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a field's value comes from: literal texts, each followed by a column or by nothing."""

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> list[str]:
        """The columns it reads."""
        return [column for _, column in self.pieces if column is not None]

    def text(self, values: Mapping[str, Any]) -> str:
        """Return the text, made of a record's values."""
        return "".join(
            literal + ("" if column is None else _text(column, values))
            for literal, column in self.pieces
        )


class EventMapping:
    """Which column is which field, and which records are events."""

    def __init__(
        self,
        maps: Sequence[str] = (),
        equal: Sequence[str] = (),
        differing: Sequence[Sequence[str]] = (),
    ) -> None:
        self._explicit = dict(map(_parse_map, maps))
        if len(self._explicit) != len(maps):
            raise BadMappingError("--map names a field more than once")
        self._sources = {name: Source((("", name),)) for name in REQUIRED} | self._explicit
        self._equal = [_parse_where(text) for text in equal]
        self._differing = [(one, other) for one, other in differing]
        self._used = {column for source in self._sources.values() for column in source.columns}

    def check(self, columns: Sequence[str]) -> None:
        """Raise `BadMappingError` if a header lacks a column that is needed."""
        needed = {
            column: name for name, source in self._sources.items() for column in source.columns
        }
        needed |= {column: "--where" for column, _ in self._equal}
        needed |= {column: "--where-differs" for pair in self._differing for column in pair}
        missing = [
            repr(column) if column == name else f"{column!r} (for {name})"
            for column, name in needed.items()
            if column not in columns
        ]
        if missing:
            raise BadMappingError(
                f"the file has no column {', '.join(missing)}. Its columns are "
                f"{', '.join(columns)}; say where a field is found with --map FIELD=COLUMN."
            )

    def event(self, record: Record) -> Event | Refused | None:
        """Return the record's event, or what is wrong with it, or None for one to be skipped."""
        values = record.values
        try:
            if not self._is_wanted(values):
                return None
            texts = {name: self._field(name, values) for name in REQUIRED}
            return Event(
                texts["market"],
                texts["event_type"],
                texts["event_ref"],
                parse_instant(texts["occurred_at"]),
                self._payload(record),
                self._title(values),
            )
        except _UnusableValueError as error:
            return Refused(record.line, str(error))

    def _is_wanted(self, values: Mapping[str, Any]) -> bool:
        return all(_text(column, values) == text for column, text in self._equal) and all(
            _differ(_text(one, values), _text(other, values)) for one, other in self._differing
        )

    def _field(self, name: str, values: Mapping[str, Any]) -> str:
        text = self._sources[name].text(values)
        if not text.strip():
            raise _UnusableValueError(f"has an empty {name}")
        return _bounded(name, text)

    def _title(self, values: Mapping[str, Any]) -> str:
        source = self._explicit.get("title")
        if source is None:
            return _bounded("title", _text("title", values)) if "title" in values else ""
        return _bounded("title", source.text(values))

    def _payload(self, record: Record) -> Any:
        values, source = record.values, self._explicit.get("payload")
        if source is None and "payload" not in values:
            used = {*self._used, "title"}
            return {name: value for name, value in values.items() if name not in used}
        if source is not None and source.pieces[0][0]:
            return _json(source.text(values))
        column = source.columns[0] if source is not None and source.columns else "payload"
        if column not in values:
            return {}
        # All that a CSV holds is text; a JSON line holds the value itself.
        return _json(values[column]) if record.is_csv else values[column]


def parse_instant(text: str) -> datetime:
    """Return an ISO 8601 date and time in UTC; one without an offset is refused, not guessed."""
    try:
        instant = datetime.fromisoformat(text.strip())
        if instant.tzinfo is not None:
            return instant.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _UnusableValueError(
            f"has an occurred_at that is not an ISO 8601 date and time: {_short(text)}"
        ) from error
    raise _UnusableValueError(
        f"has an occurred_at without an offset from UTC: {_short(text)} (where it is UTC, "
        "--map 'occurred_at=={COLUMN}Z' says so)"
    )


class _UnusableValueError(ValueError):
    """A value that a field cannot take."""


def _parse_map(text: str) -> tuple[str, Source]:
    name, separator, rest = text.partition("=")
    if name not in (*REQUIRED, *OPTIONAL):
        raise BadMappingError(
            f"--map {text!r}: {name!r} is not a field; the fields are "
            f"{', '.join((*REQUIRED, *OPTIONAL))}"
        )
    if not separator or not rest:
        raise BadMappingError(
            f"--map {text!r}: write FIELD=COLUMN, or FIELD==TEXT with {{COLUMN}} in it"
        )
    if rest == "=" and name in REQUIRED:
        raise BadMappingError(f"--map {text!r}: {name} must not be empty")
    if not rest.startswith("="):
        return name, Source((("", rest),))
    try:
        parsed = list(string.Formatter().parse(rest[1:]))
    except ValueError as error:
        raise BadMappingError(f"--map {text!r}: {error}; write {{{{ for a brace") from error
    if any(spec or conversion or column == "" for _, column, spec, conversion in parsed):
        raise BadMappingError(f"--map {text!r}: only the name of a column stands between braces")
    return name, Source(
        tuple((literal, column) for literal, column, _, _ in parsed) or (("", None),)
    )


def _parse_where(text: str) -> tuple[str, str]:
    column, separator, value = text.partition("=")
    if not column or not separator:
        raise BadMappingError(f"--where {text!r}: write COLUMN=VALUE")
    return column, value


def _text(column: str, values: Mapping[str, Any]) -> str:
    """Return a value as text: a whole number of JSON as its digits, null and absence as nothing."""
    value = values.get(column)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(column, value)
    raise _UnusableValueError(
        f"has {describe(value)} for {column!r}, which must be a text or a whole number"
    )


def _digits(column: str, value: int) -> str:
    try:
        return str(value)
    except ValueError as error:
        raise _UnusableValueError(f"has a number of too many digits for {column!r}") from error


def _bounded(name: str, text: str) -> str:
    if len(text) > _LIMITS[name]:
        raise _UnusableValueError(
            f"has a {name} of {len(text):,} characters; at most {_LIMITS[name]:,} are allowed"
        )
    if _UNSTORABLE.search(text):
        raise _UnusableValueError(f"has a {name} with a NUL or half a character in it")
    return text


def _differ(one: str, other: str) -> bool:
    if not one.strip() or not other.strip():
        return False
    try:
        return Decimal(one) != Decimal(other)
    except InvalidOperation:
        return one != other


def _json(text: str) -> Any:
    if not text.strip():
        return {}
    try:
        return parse_json(text)
    except ValueError as error:
        raise _UnusableValueError(f"has a payload that is not JSON: {error}") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
