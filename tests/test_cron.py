"""Which instants an expression names: over changes of the clock, in windows, and on leap days."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasejobs.cron import check_expression, check_zone, latest_slot, next_slot, slots_between
from leasejobs.exceptions import InvalidSchedule

MANY = 1_000_000

# Zone, a day on which its clock jumps ahead, a day on which it is set back.
ZONES = {
    "Europe/Warsaw": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Lord_Howe": (date(2026, 10, 4), date(2026, 4, 5)),  # by 30 minutes
}
TRANSITIONS = [
    pytest.param(ZoneInfo(zone), day, id=f"{zone}-{name}")
    for zone, days in ZONES.items()
    for name, day in zip(("gap", "fold"), days, strict=True)
]
COUNTS = {
    "30 2 * * *": (1, 1),
    "30 1 * * *": (1, 1),
    "*/15 * * * *": (92, 100),
    "0 * * * *": (23, 25),
}


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(expression: str, zone: str, after: str, until: str) -> list[str]:
    found = slots_between(expression, ZoneInfo(zone), utc(after), utc(until), MANY)
    return [slot.strftime("%d %H:%M") for slot in found]


@pytest.mark.parametrize(("zone", "day"), TRANSITIONS)
@pytest.mark.parametrize("expression", COUNTS)
@pytest.mark.field_case("B042")
def test_every_real_day_around_a_transition_has_its_number_of_slots(expression, zone, day):
    first = datetime(day.year, day.month, day.day, tzinfo=zone) - timedelta(days=3)
    # Midnight itself belongs to the day that begins.
    after = first.astimezone(UTC) - timedelta(seconds=1)
    until = (first + timedelta(days=7)).astimezone(UTC) - timedelta(seconds=1)

    found = slots_between(expression, zone, after, until, MANY)

    assert all(earlier < later for earlier, later in pairwise(found))
    assert all(slot.tzinfo is UTC for slot in found)
    per_day = Counter(slot.astimezone(zone).date() for slot in found)
    least, most = COUNTS[expression]
    assert len(per_day) == 7
    assert all(least <= count <= most for count in per_day.values()), per_day


@pytest.mark.parametrize(("zone", "day"), TRANSITIONS)
def test_intervals_keep_their_distance_over_a_transition(zone, day):
    start = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)

    found = slots_between("*/15 * * * *", zone, start, start + timedelta(days=1), MANY)

    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=15)}


def test_time_of_day_the_clock_jumps_over_comes_at_the_jump():
    found = slots("30 2 * * *", "Europe/Warsaw", "2026-03-28T00:00", "2026-03-31T00:00")

    assert found == ["28 01:30", "29 01:00", "30 00:30"]


def test_two_times_of_day_the_clock_jumps_over_come_together():
    found = slots("0,30 2,3 * * *", "Europe/Warsaw", "2026-03-28T12:00", "2026-03-29T12:00")

    assert found == ["29 01:00", "29 01:30"]


def test_time_of_day_the_clock_shows_twice_comes_the_first_time():
    found = slots("30 2 * * *", "Europe/Warsaw", "2026-10-24T12:00", "2026-10-26T12:00")

    assert found == ["25 00:30", "26 01:30"]


def test_time_of_day_is_not_repeated_for_who_looks_between_its_two_showings():
    found = slots("30 2 * * *", "Europe/Warsaw", "2026-10-25T01:10", "2026-10-26T00:00")

    assert found == []


def test_seconds_change_nothing_in_what_a_time_of_day_is():
    found = slots("15 30 2 * * *", "Europe/Warsaw", "2026-03-28T12:00", "2026-03-30T12:00")

    assert found == ["29 01:00", "30 00:30"]


def test_intervals_come_in_both_showings_and_not_in_the_jump():
    gap = slots("*/30 2 * * *", "Europe/Warsaw", "2026-03-28T12:00", "2026-03-30T12:00")
    fold = slots("*/30 2 * * *", "Europe/Warsaw", "2026-10-24T12:00", "2026-10-25T12:00")

    assert gap == ["30 00:00", "30 00:30"]
    assert fold == ["25 00:00", "25 00:30", "25 01:00", "25 01:30"]


def test_interval_after_a_fold_of_half_an_hour_is_not_lost():
    found = slots("*/15 2 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", "2026-04-05T00:00")

    assert found == ["04 15:30", "04 15:45", "04 16:00", "04 16:15"]


def test_interval_shown_twice_months_ahead_comes_both_times():
    found = slots("*/30 2 25 10 *", "Europe/Warsaw", "2026-01-01T00:00", "2026-12-01T00:00")

    assert found == ["25 00:00", "25 00:30", "25 01:00", "25 01:30"]


def test_midnight_the_clock_jumps_over_comes_at_the_jump():
    found = slots("0 0 * * *", "Africa/Cairo", "2026-04-22T23:00", "2026-04-24T12:00")

    assert found == ["23 22:00"]


@pytest.mark.field_case("B042")
def test_leap_day_comes_every_four_years():
    found = slots_between("0 0 29 2 *", ZoneInfo("UTC"), utc("2023-01-01"), utc("2033-01-01"), 9)

    assert found == [utc("2024-02-29"), utc("2028-02-29"), utc("2032-02-29")]


def test_window_is_open_at_its_start_and_closed_at_its_end():
    zone, after, until = ZoneInfo("UTC"), utc("2026-01-01T10:00"), utc("2026-01-01T10:02")

    assert slots_between("* * * * *", zone, after, until, MANY) == [utc("2026-01-01T10:01"), until]


def test_slot_of_the_second_a_window_starts_in_belongs_to_the_window_before():
    zone, after = ZoneInfo("UTC"), utc("2026-01-01T10:00:00.5")

    assert next_slot("* * * * *", zone, after) == utc("2026-01-01T10:01")
    assert next_slot("* * * * * *", zone, after) == utc("2026-01-01T10:00:01")


def test_limit_keeps_the_oldest():
    found = slots_between("0 * * * *", ZoneInfo("UTC"), utc("2026-01-01"), utc("2026-01-02"), 2)

    assert found == [utc("2026-01-01T01:00"), utc("2026-01-01T02:00")]


@pytest.mark.parametrize("expression", ["* * * * * *", "* * * * *", "0 4 * * *", "0 0 29 2 *"])
def test_latest_is_the_last_of_a_window(expression):
    zone, until = ZoneInfo("Europe/Warsaw"), utc("2026-10-25T03:00:30")
    after = until - (timedelta(hours=2) if expression.startswith("*") else timedelta(days=1_500))

    latest = latest_slot(expression, zone, after, until)

    assert latest == slots_between(expression, zone, after, until, MANY)[-1]


def test_latest_of_an_empty_window_is_none():
    zone = ZoneInfo("UTC")

    assert latest_slot("0 4 * * *", zone, utc("2026-01-01T04:00"), utc("2026-01-02T03:59")) is None


times = st.timedeltas(timedelta(0), timedelta(days=366)).map(lambda age: utc("2026-01-01") + age)
near_transitions = st.builds(
    lambda day, seconds: (
        datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=seconds)
    ),
    st.sampled_from([day for days in ZONES.values() for day in days]),
    st.floats(-86_400, 2 * 86_400),
)
step = st.sampled_from(["*", "*/7", "*/15", "*/30", "0", "30", "5,45", "10-20", "0-59/20"])
hour = st.sampled_from(["*", "*/2", "*/3", "0", "1", "2", "3", "1,2", "1-3", "23"])
expressions = st.builds("{} {} * * *".format, step, hour)


@settings(deadline=None)  # the machine may be busy
@given(
    expression=expressions,
    zone=st.sampled_from([*ZONES, "Africa/Cairo", "UTC"]).map(ZoneInfo),
    start=times | near_transitions,
    lengths=st.lists(st.floats(0.001, 20_000), min_size=1, max_size=8),
)
def test_consecutive_windows_lose_and_repeat_no_slot(expression, zone, start, lengths):
    edges = [start]
    for length in lengths:
        edges.append(edges[-1] + timedelta(seconds=length))

    whole = slots_between(expression, zone, edges[0], edges[-1], MANY)
    parts = [
        slot
        for after, until in pairwise(edges)
        for slot in slots_between(expression, zone, after, until, MANY)
    ]

    assert parts == whole
    assert all(earlier < later for earlier, later in pairwise(whole))
    assert all(edges[0] < slot <= edges[-1] for slot in whole)
    assert latest_slot(expression, zone, edges[0], edges[-1]) == max(whole, default=None)


@settings(deadline=None)  # the machine may be busy
@given(expression=expressions, zone=st.sampled_from([*ZONES]).map(ZoneInfo), start=times)
def test_wall_clock_shows_what_the_expression_says_except_at_a_jump(expression, zone, start):
    for slot in slots_between(expression, zone, start, start + timedelta(days=2), 100):
        wall = slot.astimezone(zone).replace(tzinfo=None)
        before = (slot - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None)
        is_jump = wall - before > timedelta(seconds=1)
        naive = slots_between(
            expression, ZoneInfo("UTC"), wall.replace(tzinfo=UTC) - timedelta(seconds=1),
            wall.replace(tzinfo=UTC), 1,
        )  # fmt: skip
        assert naive or is_jump


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "61 * * * *",
        "* * * * * * *",
        "@daily",
        "0 0 30 2 *",
        "a * * * *",
        "1-0 * * * *",
    ],
)
def test_bad_expression_is_refused(expression):
    with pytest.raises(InvalidSchedule, match="cron expression"):
        check_expression(expression)


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *"])
def test_expression_that_is_no_string_is_refused(expression):
    with pytest.raises(InvalidSchedule, match="string"):
        check_expression(expression)


def test_expression_keeps_its_meaning_and_loses_its_spaces():
    assert check_expression("  0   4 * * mon-FRI ") == "0 4 * * mon-FRI"


@pytest.mark.parametrize("name", ["", "Europe", "Europe/Madird", "../etc/passwd", "\0", None, 5])
def test_bad_zone_is_refused(name):
    with pytest.raises(InvalidSchedule, match="time zone"):
        check_zone(name)
