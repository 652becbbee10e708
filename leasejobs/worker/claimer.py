"""The claimer: what this child claims next, how much of it, and when to look again."""

import contextlib
import fcntl
import random
import time
from collections import deque
from typing import Final

from django.db import connections

from leasejobs import conf, recovery
from leasejobs.claiming import claim_jobs
from leasejobs.fencing import Lease
from leasejobs.models import Job
from leasejobs.states import WAITING, State
from leasejobs.worker.options import Options

LARGEST_BATCH: Final = 500
_PREFETCH_SECONDS: Final = 0.050
_HEADS_SECONDS: Final = 1.0
_PROMOTE_SECONDS: Final = 0.020
_LOCKED_SECONDS: Final = 0.1
# Nobody notifies of a job enqueued for later: how late it may be seen, however rare the polls.
_UNTOLD_SECONDS: Final = 1.0
_NEVER: Final = float("inf")


class Claimer:
    """Decides from what is held, how long jobs take, and which queues have rows; main thread only.

    `observe` and `look_again` may be called by any thread.
    """

    def __init__(self, options: Options, holder: str, slots: int, turn_fd: int | None) -> None:
        self._options = options
        self._holder = holder
        self._slots = slots
        self._turn = _Turn(turn_fd, options.lease)
        self._job_seconds = _PREFETCH_SECONDS
        self._heads: list[str] = []
        self._told: deque[str] = deque()
        self._asked = False
        self._heads_at = 0.0
        self._suspects: list[str] = []
        self._runs_suspect = False
        self._promote_at = 0.0
        self._recover_at = time.monotonic() + random.random() * self._recover_seconds
        self._poll_at = 0.0
        self.is_dry = False

    @property
    def _recover_seconds(self) -> float:
        return min(1.0, self._options.lease / 3)

    @property
    def _capacity(self) -> int:
        prefetch = int(_PREFETCH_SECONDS / max(self._job_seconds, 1e-6))
        batch = max(1, min(prefetch, LARGEST_BATCH // self._options.threads))
        return min(batch * self._options.threads, self._slots)

    def has_room(self, held: int) -> bool:
        """Whether to claim: a thread is idle, or half of what we would hold is used up."""
        capacity = self._capacity
        return held < self._options.threads or capacity - held >= max(1, capacity // 2)

    def observe(self, seconds: float) -> None:
        """Learn how long jobs take; quick to believe that they became long."""
        share = 0.05 if seconds < self._job_seconds else 0.3
        self._job_seconds += (seconds - self._job_seconds) * share

    def look_again(self, queue: str | None = None) -> None:
        """Do not wait for the next poll: `queue`, or (None) any, may have something by now."""
        if queue is None:
            self._asked = True
        else:
            self._told.append(queue)

    def pause(self) -> float:
        """Return the seconds until there is something to do by the clock alone."""
        now = time.monotonic()
        if self._heads and not self.is_dry:
            return 0.05
        return max(0.001, min(self._poll_at, self._promote_at, self._recover_at) - now)

    def claim(self, held: int) -> list[tuple[Job, Lease]]:
        """Promote and recover what is due by the clock, then claim one batch, if there is room."""
        now = time.monotonic()
        if self._asked:
            # Lowered before anything is read: what another thread reports from here on asks again.
            self._asked = False
            self._poll_at = now
            self._promote_at = min(self._promote_at, now + _PROMOTE_SECONDS)
        # Draining ends on what the table says now, not on what it said a moment ago.
        is_last_look = self._options.drain and not held and not self._heads
        if now >= self._promote_at or is_last_look:
            self._promote(now)
        if now >= self._recover_at:
            recovery.recover_expired()
            self._recover_at = now + self._recover_seconds * random.uniform(0.7, 1.0)
        has_some = self._heads or self._suspects
        if now >= self._poll_at or (has_some and now >= self._heads_at) or is_last_look:
            self._find_heads(now)
        while self._told:
            if (queue := self._told.popleft()) not in self._heads:
                self._heads.insert(0, queue)
        if self._suspects or self._runs_suspect:
            claimed = self._claim_suspect(held)
            if claimed is not None:
                return claimed
        return self._claim_batch(held)

    def close(self) -> None:
        """Hand the turn on."""
        self._turn.give_back()

    def _claim_batch(self, held: int) -> list[tuple[Job, Lease]]:
        while self._heads and self.has_room(held):
            queue, limit = self._heads[0], self._capacity - held
            claimed = self._take(queue, min(max(limit, 1), self._slots - held))
            if len(claimed) < limit:
                self._heads.pop(0)
            if claimed:
                return claimed
        self.is_dry = not self._heads and not self._suspects
        return []

    def _claim_suspect(self, held: int) -> list[tuple[Job, Lease]] | None:
        """Run a row that crashed a worker alone; None where plain work goes on meanwhile.

        One child per supervisor has the turn: it stops claiming, finishes what it holds, claims
        one, and runs nothing beside it.
        """
        if self._runs_suspect and held:
            return []
        if self._runs_suspect:
            self._runs_suspect = False
            self._turn.give_back()
            self._poll_at = 0.0
            return None
        if not self._turn.take():
            return None
        if held:
            return [] if not self._turn.is_overdue() else None
        for queue in self._suspects:
            claimed = self._take(queue, 1, suspects=True)
            if claimed:
                self._runs_suspect = True
                return claimed
        self._suspects = []
        self._turn.give_back()
        return None

    def _take(self, queue: str, limit: int, suspects: bool = False) -> list[tuple[Job, Lease]]:
        return claim_jobs(
            queue, holder=self._holder, duration=self._options.duration, limit=limit,
            suspects=suspects,
        )  # fmt: skip

    def _promote(self, now: float) -> None:
        if recovery.promote():
            self._poll_at = 0.0
            self._promote_at = now
            return
        # A row that is due already was not promoted because somebody has it locked.
        next_due = _seconds_to_next_due() or _LOCKED_SECONDS
        self._promote_at = now + min(self._options.poll, _UNTOLD_SECONDS, next_due)

    def _find_heads(self, now: float) -> None:
        self._heads = self._wanted(_queues("crashes = 0 AND lock_key = ''"))
        self._suspects = self._wanted(_queues("crashes > 0"))
        self._heads_at = now + _HEADS_SECONDS
        self._poll_at = now + self._options.poll * random.uniform(0.8, 1.0)

    def _wanted(self, queues: list[str]) -> list[str]:
        return [
            queue for queue in queues if not self._options.queues or queue in self._options.queues
        ]


def _queues(stream: str) -> list[str]:
    """Return the queues that have pending rows of a stream, the most urgent head first.

    A skip scan, one index probe per queue: the index of the claim begins with the queue, and a
    DISTINCT would read all of it.
    """
    table, pending = f'"{Job._meta.db_table}"', f"state = {State.PENDING:d} AND {stream}"
    with connections[conf.database()].cursor() as cursor:
        cursor.execute(
            f"""
            WITH RECURSIVE head AS (
                (SELECT queue, priority, due_at FROM {table} WHERE {pending}
                 ORDER BY queue, priority, due_at, id LIMIT 1)
                UNION ALL
                SELECT following.* FROM head, LATERAL (
                    SELECT queue, priority, due_at FROM {table}
                    WHERE {pending} AND queue > head.queue
                    ORDER BY queue, priority, due_at, id LIMIT 1) AS following
            )
            SELECT queue FROM head ORDER BY priority, due_at
            """
        )
        return [row[0] for row in cursor.fetchall()]


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


class _Turn:
    """The turn to run suspects, one child per supervisor at a time; freed when its holder dies.

    A POSIX record lock, which belongs to a process even where the descriptor is shared.
    """

    def __init__(self, fd: int | None, lease: float) -> None:
        self._fd = fd
        self._lease = lease
        self._taken_at: float | None = None
        self._banned_until = 0.0

    def take(self) -> bool:
        now = time.monotonic()
        if self._taken_at is not None:
            return True
        if now < self._banned_until:
            return False
        if self._fd is not None:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        self._taken_at = now
        return True

    def is_overdue(self) -> bool:
        """Hand the turn on, and say so, if running work blocked it for longer than a lease."""
        if self._taken_at is None or time.monotonic() - self._taken_at <= self._lease:
            return False
        self._banned_until = time.monotonic() + self._lease
        self.give_back()
        return True

    def give_back(self) -> None:
        if self._taken_at is not None:
            self._taken_at = None
            if self._fd is not None:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._fd, fcntl.LOCK_UN)
