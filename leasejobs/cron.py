"""Which instants a cron expression names in a time zone: pure functions of what they are given.

A slot is an instant, in UTC, on a whole second. cronsim walks the wall clock; what a change of
that clock means is decided here, after Debian's cron:

- An expression with neither minute nor hour beginning with `*` names times of day. Each comes once
  a day: one that the clock jumps over comes at the jump, one that the clock shows twice comes the
  first time.
- Any other expression names intervals. It follows the clock: nothing comes while the clock jumps,
  and what it shows twice comes twice, as two instants.

cronsim's own walk in a zone is not used: with `*/15 2 * * *` in Australia/Lord_Howe, whose clock
is set back by 30 minutes, it loses the slots 2:00 and 2:15, or not, depending on where it starts.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from leasejobs.exceptions import InvalidSchedule

_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)


def check_expression(expression: str) -> str:
    """Return a cron expression of five fields, or six with seconds first, its spaces made single.

    Raises `InvalidSchedule` if it is malformed or names no instant in fifty years.
    """
    if not isinstance(expression, str):
        raise InvalidSchedule(f"a cron expression is a string, not {expression!r}")
    try:
        comes = next(CronSim(expression, datetime(2000, 1, 1)), None)  # noqa: DTZ001 - wall clock
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidSchedule(f"no cron expression: {expression!r}: {error}") from error
    if comes is None:
        raise InvalidSchedule(f"the cron expression {expression!r} never comes")
    return " ".join(expression.split())


def check_zone(name: str) -> ZoneInfo:
    """Return the time zone called `name`, as "Europe/Madrid"; else raise `InvalidSchedule`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise InvalidSchedule(f"no time zone: {name!r}: {error}") from error


def slots_between(
    expression: str, zone: ZoneInfo, after: datetime, until: datetime, limit: int
) -> list[datetime]:
    """Return the slots later than `after`, not later than `until`: the oldest, `limit` at most.

    Consecutive windows together name the same slots as one window over all.
    """
    slots = _slots(expression, zone, after)
    return list(islice(takewhile(lambda slot: slot <= until, slots), limit))


@lru_cache(maxsize=4_096)
def next_slot(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first slot later than `after`; None if there is none in fifty years."""
    return next(_slots(expression, zone, after), None)


def latest_slot(
    expression: str, zone: ZoneInfo, after: datetime, until: datetime
) -> datetime | None:
    """Return the last slot later than `after` and not later than `until`.

    Looks back from `until` in growing windows, so that a schedule of every second which nobody
    minded for a month costs no more than one that missed a minute.
    """
    window = _MINUTE
    while True:
        start = max(after, until - window)
        slots = takewhile(lambda slot: slot <= until, _slots(expression, zone, start))
        newest = max(slots, default=None)
        if newest is not None or start == after:
            return newest
        window *= 8


def _slots(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    start = after.astimezone(UTC)
    *_, minute, hour, _day, _month, _weekday = expression.split()
    if minute.startswith("*") or hour.startswith("*"):
        return _intervals(expression, zone, start)
    return _times_of_day(expression, zone, start)


def _times_of_day(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    last = after
    for wall in CronSim(expression, _wall(after, _offset(zone, after))):
        slot = _first_instant(wall, zone)
        # Two times that one jump skips come together; one shown twice may have come already.
        if slot > last:
            yield slot
            last = slot


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when the clock first shows `wall`, or when it jumps over it."""
    while True:
        instant = wall.replace(tzinfo=zone).astimezone(UTC)
        if _wall(instant, _offset(zone, instant)) == wall:
            return instant
        wall = wall.replace(second=0) + _MINUTE


def _intervals(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    # Between two changes of the clock, a wall time and its instant differ by a constant.
    while True:
        offset = _offset(zone, after + _SECOND)
        walls = CronSim(expression, _wall(after, offset))
        wall = next(walls, None)
        is_same = True
        while is_same:
            end = _last_with(offset, zone, after + _SECOND)
            while wall is not None and (slot := _instant(wall, offset)) <= end:
                yield slot
                wall = next(walls, None)
            if wall is None:
                return
            after = end
            is_same = _offset(zone, after + _SECOND) == offset


def _last_with(offset: timedelta, zone: ZoneInfo, start: datetime) -> datetime:
    """Return the last second of the day after `start` up to which the zone keeps `offset`."""
    low, high = start, start + _DAY
    if _offset(zone, high) == offset:
        return high
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return low


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _wall(instant: datetime, offset: timedelta) -> datetime:
    return instant.replace(tzinfo=None) + offset


def _instant(wall: datetime, offset: timedelta) -> datetime:
    return wall.replace(tzinfo=UTC) - offset
