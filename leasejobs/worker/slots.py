"""Slots: what a child holds, in memory its supervisor can still read after a SIGKILL.

An unlinked temporary file, mapped by both; its descriptor is passed at exec. One record per
leased row; the state byte is written last, and a body's `BEGUN` before the body is called, so a
row that no slot calls begun has certainly not begun.
"""

import mmap
import struct
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

FREE, CLAIMED, BEGUN, RETURNED = range(4)

_HEADER: Final = struct.Struct("<dB7x")  # ready_at, ended
_ENDED_AT: Final = 8
_RECORD: Final = struct.Struct("<qqddHB5x")  # pk, epoch, begun_at, timeout (0: none), lane, state
_INSTANT: Final = struct.Struct("<d")
_BEGUN_AT_AT: Final = 16
_STATE_AT: Final = 34


class Record(NamedTuple):
    """One slot. Instants are seconds of CLOCK_MONOTONIC, which all processes share."""

    pk: int
    epoch: int
    begun_at: float
    timeout: float
    lane: int
    state: int


class Slots:
    """A table of `count` slots in a file; thread-safe for one child."""

    def __init__(self, count: int, fd: int, file: BinaryIO | None = None) -> None:
        self.count = count
        self.fd = fd
        self._file = file
        self._map = mmap.mmap(fd, _HEADER.size + count * _RECORD.size)
        self._free = deque(range(count))

    @classmethod
    def create(cls, count: int) -> "Slots":
        """Make an empty table in an unlinked file, to be passed to a child by descriptor."""
        file = tempfile.TemporaryFile(prefix="leasejobs-slots-")  # noqa: SIM115 - kept open
        file.truncate(_HEADER.size + count * _RECORD.size)
        return cls(count, file.fileno(), file)

    @property
    def in_use(self) -> int:
        """How many rows this child holds, whatever became of their leases."""
        return self.count - len(self._free)

    @property
    def ready_at(self) -> float:
        """When the child last finished a round with the database, by CLOCK_MONOTONIC; 0: never."""
        (ready_at, _) = _HEADER.unpack_from(self._map, 0)
        return float(ready_at)

    @property
    def ended(self) -> int:
        """How the child said that it ends, a number of its own; 0 if it did not say so."""
        return self._map[_ENDED_AT]

    def tell_ended(self, how: int) -> None:
        """Say how this child ends: an exit status could as well be a task's own."""
        self._map[_ENDED_AT] = how

    def tell_ready(self) -> None:
        """Note that a round with the database has just succeeded."""
        _INSTANT.pack_into(self._map, 0, time.monotonic())

    def take(self, pk: int, epoch: int, timeout: float | None = None, lane: int = 0) -> int:
        """Record a claimed row and return its slot."""
        slot = self._free.popleft()
        at = _place(slot)
        _RECORD.pack_into(self._map, at, pk, epoch, 0.0, timeout or 0.0, lane, FREE)
        self._map[at + _STATE_AT] = CLAIMED
        return slot

    def begin(self, slot: int) -> None:
        """Note that the body is about to be called."""
        at = _place(slot)
        _INSTANT.pack_into(self._map, at + _BEGUN_AT_AT, time.monotonic())
        self._map[at + _STATE_AT] = BEGUN

    def mark(self, slot: int, state: int) -> None:
        """Write a slot's state byte."""
        self._map[_place(slot) + _STATE_AT] = state

    def give_back(self, slot: int) -> None:
        """Free a slot: its row is written, or lost."""
        self.mark(slot, FREE)
        self._free.append(slot)

    def begun(self) -> list[Record]:
        """Return the rows whose body was called and whose outcome is not known to be written."""
        return [Record._make(row) for row in self._rows() if row[-1] in (BEGUN, RETURNED)]

    def overdue(self, grace: float) -> list[Record]:
        """Return the rows that have run over their timeout by more than `grace` seconds."""
        now = time.monotonic() - grace
        return [
            Record._make(row)
            for row in self._rows()
            if row[-1] == BEGUN and row[3] and now > row[2] + row[3]
        ]

    def is_empty(self) -> bool:
        """Whether no slot is in use, as a supervisor reads it."""
        return all(row[-1] == FREE for row in self._rows())

    def close(self) -> None:
        """Unmap and close."""
        self._map.close()
        if self._file is not None:
            self._file.close()

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        # Bare tuples: a supervisor looks at a thousand of each child five times a second.
        return _RECORD.iter_unpack(self._map[_HEADER.size :])


def _place(slot: int) -> int:
    return _HEADER.size + slot * _RECORD.size
