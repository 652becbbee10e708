"""Slots: what a child holds, in memory its supervisor can still read after a SIGKILL.

An unlinked temporary file, mapped by both; its descriptor is passed at exec. One record per
leased row; the state byte is written last, and a body's `BEGUN` before the body is called, so a
row that no slot calls begun has certainly not begun.
"""

import mmap
import struct
import tempfile
from collections import deque
from typing import BinaryIO, Final

FREE, CLAIMED, BEGUN, RETURNED = range(4)

_RECORD: Final = struct.Struct("<qqB7x")  # pk, epoch, state
_STATE_AT: Final = 16


class Slots:
    """A table of `count` slots in a file; thread-safe for one child."""

    def __init__(self, count: int, fd: int, file: BinaryIO | None = None) -> None:
        self.count = count
        self.fd = fd
        self._file = file
        self._map = mmap.mmap(fd, count * _RECORD.size)
        self._free = deque(range(count))

    @classmethod
    def create(cls, count: int) -> "Slots":
        """Make an empty table in an unlinked file, to be passed to a child by descriptor."""
        file = tempfile.TemporaryFile(prefix="leasejobs-slots-")  # noqa: SIM115 - kept open
        file.truncate(count * _RECORD.size)
        return cls(count, file.fileno(), file)

    @property
    def in_use(self) -> int:
        """How many rows this child holds, whatever became of their leases."""
        return self.count - len(self._free)

    def take(self, pk: int, epoch: int) -> int:
        """Record a claimed row and return its slot."""
        slot = self._free.popleft()
        at = slot * _RECORD.size
        _RECORD.pack_into(self._map, at, pk, epoch, FREE)
        self._map[at + _STATE_AT] = CLAIMED
        return slot

    def mark(self, slot: int, state: int) -> None:
        """Write a slot's state byte."""
        self._map[slot * _RECORD.size + _STATE_AT] = state

    def give_back(self, slot: int) -> None:
        """Free a slot: its row is written, or lost."""
        self.mark(slot, FREE)
        self._free.append(slot)

    def begun(self) -> set[tuple[int, int]]:
        """Return (pk, epoch) of every row whose body was called and whose outcome is not known
        to be written."""
        records = _RECORD.iter_unpack(self._map[:])
        return {(pk, epoch) for pk, epoch, state in records if state in (BEGUN, RETURNED)}

    def is_empty(self) -> bool:
        """Whether no slot is in use, as a supervisor reads it."""
        return all(state == FREE for _, _, state in _RECORD.iter_unpack(self._map[:]))

    def close(self) -> None:
        """Unmap and close."""
        self._map.close()
        if self._file is not None:
            self._file.close()
