"""What every child does by the clock, safely with any number of others: from promote to prune."""

import random
import time
from typing import Final

from django.db import connections

from leasejobs import conf, pruning, recovery, schedules
from leasejobs.models import Job
from leasejobs.states import WAITING
from leasejobs.worker.options import Options

_PROMOTE_SECONDS: Final = 0.020
_LOCKED_SECONDS: Final = 0.1
# Nobody notifies of a job enqueued for later: how late it may be seen, however rare the polls.
_UNTOLD_SECONDS: Final = 1.0
_PRUNE_SECONDS: Final = 600.0
_FIRE_SECONDS: Final = 10.0
_NEVER: Final = float("inf")


class Chores:
    """The instants at which each chore is due again, on the monotonic clock."""

    def __init__(self, options: Options) -> None:
        self._poll = options.poll
        self._recover_seconds = min(1.0, options.lease / 3)
        self._promote_at = 0.0
        self._expire_at = 0.0
        self._recover_at = time.monotonic() + random.random() * self._recover_seconds
        self._prune_at = time.monotonic() + random.random() * _PRUNE_SECONDS
        self._prune_after = 0
        self._fire_at = 0.0

    @property
    def next_at(self) -> float:
        """When there is something to do again."""
        return min(
            self._promote_at, self._recover_at, self._expire_at, self._prune_at, self._fire_at
        )

    def hasten(self, now: float) -> None:
        """Look soon for what came due: something ended that may be due again already."""
        self._promote_at = min(self._promote_at, now + _PROMOTE_SECONDS)

    def run(self, now: float, at_once: bool) -> bool:
        """Do what is due; `at_once`: promote in any case. Return whether rows became claimable."""
        has_fired = now >= self._fire_at and schedules.fire_due() > 0
        if now >= self._fire_at:
            self._fire_at = now + min(schedules.seconds_to_next_slot(), _FIRE_SECONDS)
        if now >= self._expire_at:
            recovery.expire()
            self._expire_at = now + _UNTOLD_SECONDS * random.uniform(0.7, 1.0)
        if now >= self._recover_at:
            recovery.recover_expired()
            self._recover_at = now + self._recover_seconds * random.uniform(0.7, 1.0)
        if now >= self._prune_at:
            self._prune(now)
        has_promoted = (now >= self._promote_at or at_once) and self._promote(now)
        return has_fired or has_promoted

    def _prune(self, now: float) -> None:
        """Look at one batch; the next follows soon until the walk over the old rows is done."""
        pruned = pruning.prune(after=self._prune_after)
        self._prune_after = pruned.cursor or 0
        pause = _PRUNE_SECONDS if pruned.cursor is None else _UNTOLD_SECONDS
        self._prune_at = now + pause * random.uniform(0.7, 1.0)

    def _promote(self, now: float) -> bool:
        if recovery.promote():
            self._promote_at = now
            return True
        # A row that is due already was not promoted because somebody has it locked.
        next_due = _seconds_to_next_due() or _LOCKED_SECONDS
        self._promote_at = now + min(self._poll, _UNTOLD_SECONDS, next_due)
        return False


def _seconds_to_next_due() -> float:
    """Return how long, by the database's clock, until the next waiting row is due."""
    states = ", ".join(str(int(state)) for state in sorted(WAITING))
    with connections[conf.database()].cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM due_at - STATEMENT_TIMESTAMP())"
            f' FROM "{Job._meta.db_table}" WHERE state IN ({states}) ORDER BY due_at, id LIMIT 1'
        )
        row = cursor.fetchone()
    return max(0.0, float(row[0])) if row else _NEVER
