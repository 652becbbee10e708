"""Physical lines of a file of any size: numbered, bounded, decoded one by one.

A line that cannot be read is a line with a `problem`; the ones after it are read all the same.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

MAX_LINE_BYTES: Final = 1 << 20
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class UnreadableFileError(ValueError):
    """The file as a whole cannot be what it is said to be."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, numbered from 1, with its line ending; or what is wrong with it."""

    number: int
    text: str
    problem: str = ""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on it."""
        return not self.problem and not self.text.strip()


def read(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a UTF-8 file, ended by LF or CRLF; a BOM at its beginning is dropped.

    Raises `UnreadableFileError` where the first bytes say that the file is UTF-16.
    """
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            if raw.startswith(_UTF16):
                raise UnreadableFileError(
                    "the file is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8"
                )
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if len(raw) > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
            yield Line(number, "", f"is longer than {MAX_LINE_BYTES:,} bytes")
        else:
            yield _decoded(number, raw)


def _decoded(number: int, raw: bytes) -> Line:
    if (at := raw.find(b"\0")) >= 0:
        return Line(number, "", f"holds a NUL (byte {at + 1} of the line)")
    try:
        return Line(number, raw.decode())
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        return Line(
            number, "", f"is not UTF-8 (0x{byte:02x} at byte {error.start + 1} of the line)"
        )
