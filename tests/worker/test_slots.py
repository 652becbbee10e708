"""The slots: what a supervisor can read of a child that can no longer say anything."""

import os
import subprocess
import sys
import time

import pytest

from leasejobs.worker import slots as module
from leasejobs.worker.slots import CLAIMED, FREE, RETURNED, Slots


@pytest.fixture
def slots():
    table = Slots.create(8)
    yield table
    table.close()


def begun(slots: Slots) -> set[tuple[int, int]]:
    """Return (pk, epoch) of the rows whose body began."""
    return {(record.pk, record.epoch) for record in slots.begun()}


def test_table_begins_with_nothing_begun(slots):
    assert begun(slots) == set()


def test_claimed_row_has_not_begun(slots):
    slots.take(7, 3)

    assert begun(slots) == set()


def test_begun_row_is_told_with_its_epoch(slots):
    slot = slots.take(2**62, 2**40)

    slots.begin(slot)

    assert begun(slots) == {(2**62, 2**40)}


def test_row_that_returned_counts_as_begun_until_it_is_given_back(slots):
    slot = slots.take(7, 3)
    slots.begin(slot)
    slots.mark(slot, RETURNED)

    assert begun(slots) == {(7, 3)}

    slots.give_back(slot)
    assert begun(slots) == set()


def test_slot_that_was_given_back_is_taken_again_as_claimed(slots):
    for number in range(8):
        slots.begin(slots.take(number, 1))
    assert len(begun(slots)) == 8
    slots.give_back(3)

    slot = slots.take(100, 9)

    assert slot == 3
    assert (100, 9) not in begun(slots)
    assert len(begun(slots)) == 7


def test_more_rows_than_slots_are_refused(slots):
    for number in range(8):
        slots.take(number, 1)

    with pytest.raises(IndexError):
        slots.take(9, 1)


def test_state_byte_is_written_last(slots, monkeypatch):
    """Whoever dies between the two writes leaves a free slot, not one of a stranger's row."""
    seen = []
    first = slots.take(1, 1)
    slots.begin(first)
    slots.give_back(first)
    for _ in range(7):
        slots.give_back(slots.take(0, 0))
    record = module._RECORD

    class Watched:
        size = record.size
        iter_unpack = staticmethod(record.iter_unpack)

        @staticmethod
        def pack_into(buffer, at, *fields):
            record.pack_into(buffer, at, *fields)
            seen.append((*fields, buffer[at + module._STATE_AT]))

    monkeypatch.setattr(module, "_RECORD", Watched)
    slot = slots.take(5, 6)

    assert seen == [(5, 6, 0.0, 0.0, 0, FREE, FREE)]
    assert slots._map[module._place(slot) + module._STATE_AT] == CLAIMED


def test_file_has_no_name_and_is_as_large_as_its_records(slots):
    status = os.fstat(slots.fd)

    assert status.st_nlink == 0
    assert status.st_size == module._HEADER.size + 8 * module._RECORD.size


CHILD = """
import os, sys
from leasejobs.worker.slots import RETURNED, Slots

slots = Slots(8, int(sys.argv[1]))
slots.take(1, 10)
slots.begin(slots.take(2, 20))
slots.mark(slots.take(3, 30), RETURNED)
slots.give_back(slots.take(4, 40))
os.kill(os.getpid(), 9)
"""


def test_supervisor_reads_what_a_killed_child_wrote_through_the_descriptor(slots):
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, str(slots.fd)], pass_fds=[slots.fd], check=False
    )

    assert killed.returncode == -9
    assert begun(slots) == {(2, 20), (3, 30)}


def test_body_that_runs_over_its_time_is_overdue_after_the_grace(slots):
    late, early, free = slots.take(1, 1, 0.01), slots.take(2, 1, 60.0), slots.take(3, 1)
    for slot in (late, early, free):
        slots.begin(slot)
    begun_at = time.monotonic()

    while time.monotonic() < begun_at + 0.02:
        pass

    assert [record.pk for record in slots.overdue(0)] == [1]
    assert slots.overdue(60) == []


def test_body_that_returned_is_not_overdue(slots):
    slot = slots.take(1, 1, 0.000001)
    slots.begin(slot)

    slots.mark(slot, RETURNED)

    assert slots.overdue(0) == []


def test_supervisor_reads_when_a_child_was_last_ready(slots):
    assert slots.ready_at == 0

    before = time.monotonic()
    slots.tell_ready()

    assert before <= slots.ready_at <= time.monotonic()


def test_row_is_told_with_its_lane(slots):
    slots.begin(slots.take(1, 1, None, 513))

    [record] = slots.begun()

    assert record.lane == 513
