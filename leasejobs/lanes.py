"""Lanes: kinds of leased work beside jobs that the worker's children run.

`register_lane` is called in `AppConfig.ready()`. Every child gives each lane threads of its own,
so that neither a backlog of jobs starves a lane nor the reverse, and visits the lanes in turn.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol
from zlib import crc32

from leasejobs.fencing import FencedModel, Lease
from leasejobs.heartbeat import Held
from leasejobs.recovery import Cause

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_lanes: "dict[str, Lane]" = {}


class Lane(Protocol):
    """A kind of work: rows of one `FencedModel` with an integer primary key.

    A lane's methods run in a child but for `settle`, which its supervisor calls. What they raise
    is reported (`lane_failed`) and stops neither the lane nor others: they are called again.
    """

    name: str
    threads: int  # how many rows a child runs at a time

    def housekeep(self) -> None:
        """Recover what nobody holds any more, promote what came due; about once a second.

        Every child of every worker calls it: bounded work, safe with any number of callers.
        """

    def claim(
        self, holder: str, duration: timedelta, limit: int
    ) -> Sequence[tuple[FencedModel, Lease]]:
        """Lease up to `limit` rows that are due, committed; see `fencing.claim`."""

    def run(self, row: Any, held: Held, should_stop: Callable[[], bool]) -> None:
        """Do the work of one row and write its outcome behind the fence, in a thread of the lane.

        The lease is renewed meanwhile. `should_stop()` turns true when the worker shuts down or
        the lease is or may be lost; `held.lease` is the newest receipt.
        """

    def settle(self, holder: str, begun: Mapping[tuple[int, int], Cause]) -> int:
        """Take back the rows of a holder that is certainly dead; return how many it still holds.

        `begun` names, by (pk, epoch), those whose `run` was called.
        """

    def seconds_to_next_due(self) -> float:
        """Return in how many seconds, by the database's clock, a row comes due; inf for none."""


def register_lane(lane: Lane) -> None:
    """Let every worker run `lane`; registering one of the same name and type again replaces it.

    Raises ValueError if the name is malformed or taken by another lane.
    """
    if not _NAME.fullmatch(lane.name) or lane.name == "jobs":
        raise ValueError(f"a lane is named like 'cells', not {lane.name!r}")
    if lane.threads < 1:
        raise ValueError(f"the lane {lane.name!r} needs a thread at least")
    for other in _lanes.values():
        is_same = other.name == lane.name
        if lane_number(other.name) == lane_number(lane.name) and not (
            is_same and type(other).__qualname__ == type(lane).__qualname__
        ):
            raise ValueError(f"the name of lane {lane.name!r} collides with {other.name!r}")
    _lanes[lane.name] = lane


def unregister_lane(name: str) -> None:
    """Forget a lane; for tests."""
    _lanes.pop(name, None)


def lanes() -> tuple[Lane, ...]:
    """Return the registered lanes in the order of their names."""
    return tuple(_lanes[name] for name in sorted(_lanes))


def lane_number(name: str) -> int:
    """Return the number by which a child's slots name a lane: 0 is that of the jobs."""
    return 0 if name == "jobs" else crc32(name.encode()) % 65_535 + 1
