"""The slots: what a supervisor can read of a child that can no longer say anything."""

import os
import subprocess
import sys

import pytest

from leasejobs.worker import slots as module
from leasejobs.worker.slots import BEGUN, CLAIMED, FREE, RETURNED, Slots


@pytest.fixture
def slots():
    table = Slots.create(8)
    yield table
    table.close()


def test_table_begins_with_nothing_begun(slots):
    assert slots.begun() == set()


def test_claimed_row_has_not_begun(slots):
    slots.take(7, 3)

    assert slots.begun() == set()


def test_begun_row_is_told_with_its_epoch(slots):
    slot = slots.take(2**62, 2**40)

    slots.mark(slot, BEGUN)

    assert slots.begun() == {(2**62, 2**40)}


def test_row_that_returned_counts_as_begun_until_it_is_given_back(slots):
    slot = slots.take(7, 3)
    slots.mark(slot, BEGUN)
    slots.mark(slot, RETURNED)

    assert slots.begun() == {(7, 3)}

    slots.give_back(slot)
    assert slots.begun() == set()


def test_slot_that_was_given_back_is_taken_again_as_claimed(slots):
    for number in range(8):
        slots.mark(slots.take(number, 1), BEGUN)
    assert len(slots.begun()) == 8
    slots.give_back(3)

    slot = slots.take(100, 9)

    assert slot == 3
    assert (100, 9) not in slots.begun()
    assert len(slots.begun()) == 7


def test_more_rows_than_slots_are_refused(slots):
    for number in range(8):
        slots.take(number, 1)

    with pytest.raises(IndexError):
        slots.take(9, 1)


def test_state_byte_is_written_last(slots, monkeypatch):
    """Whoever dies between the two writes leaves a free slot, not one of a stranger's row."""
    seen = []
    first = slots.take(1, 1)
    slots.mark(first, BEGUN)
    slots.give_back(first)
    for _ in range(7):
        slots.give_back(slots.take(0, 0))
    record = module._RECORD

    class Watched:
        size = record.size
        iter_unpack = staticmethod(record.iter_unpack)

        @staticmethod
        def pack_into(buffer, at, pk, epoch, state):
            record.pack_into(buffer, at, pk, epoch, state)
            seen.append((pk, epoch, buffer[at + 16]))

    monkeypatch.setattr(module, "_RECORD", Watched)
    slot = slots.take(5, 6)

    assert seen == [(5, 6, FREE)]
    assert slots._map[slot * record.size + 16] == CLAIMED


def test_file_has_no_name_and_is_as_large_as_its_records(slots):
    status = os.fstat(slots.fd)

    assert status.st_nlink == 0
    assert status.st_size == 8 * module._RECORD.size


CHILD = """
import os, sys
from leasejobs.worker.slots import BEGUN, RETURNED, Slots

slots = Slots(8, int(sys.argv[1]))
slots.take(1, 10)
slots.mark(slots.take(2, 20), BEGUN)
slots.mark(slots.take(3, 30), RETURNED)
slots.give_back(slots.take(4, 40))
os.kill(os.getpid(), 9)
"""


def test_supervisor_reads_what_a_killed_child_wrote_through_the_descriptor(slots):
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, str(slots.fd)], pass_fds=[slots.fd], check=False
    )

    assert killed.returncode == -9
    assert slots.begun() == {(2, 20), (3, 30)}
