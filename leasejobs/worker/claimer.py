"""The claimer: what this child claims next, how much of it, and when to look again."""

import contextlib
import random
import time
import uuid
from collections import deque
from typing import Any, Final

from django.db import Error, connections

from leasejobs import conf, recovery
from leasejobs.claiming import Stream, claim_jobs
from leasejobs.fencing import Lease
from leasejobs.models import Job, Queue
from leasejobs.states import State
from leasejobs.worker.chores import Chores
from leasejobs.worker.heads import Cursor, KnownTasks
from leasejobs.worker.options import Options

LARGEST_BATCH: Final = 500
_PREFETCH_SECONDS: Final = 0.050
_HEADS_SECONDS: Final = 1.0
_BLOCKED_SECONDS: Final = 0.050
# A claim whose session died may still be running on the server for a moment.
_DOUBT_SECONDS: Final = 5.0


class Claimer:
    """Decides from what is held, how long jobs take, and which queues have rows; main thread only.

    `observe` and `look_again` may be called by any thread.
    """

    def __init__(self, options: Options, holder: str, slots: int, turn_fd: int | None) -> None:
        self._options = options
        self._holder = holder
        self._slots = slots
        self._turn = _Turn(turn_fd, options.lease)
        self._tasks = KnownTasks()
        self._chores = Chores(options)
        self._cursors: dict[str, Cursor] = {}
        self._short: set[tuple[Stream, str]] = set()
        self._job_seconds = _PREFETCH_SECONDS
        self._heads: list[tuple[Stream, str]] = []
        self._told: deque[tuple[str, int]] = deque()
        self._asked = False
        self._heads_at = 0.0
        self._suspects: list[str] = []
        self._runs_suspect = False
        self._is_blocked = False
        self._poll_at = 0.0
        self._doubtful: list[tuple[uuid.UUID, float]] = []
        self.is_dry = False

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

    def look_again(self, queue: str | None = None, priority: int = 0) -> None:
        """Do not wait for the next poll: `queue`, or (None) any, may have something by now."""
        if queue is None:
            self._asked = True
        else:
            self._told.append((queue, priority))

    def pause(self) -> float:
        """Return the seconds until there is something to do by the clock alone."""
        now = time.monotonic()
        if self._heads and not self.is_dry:
            return 0.05
        pause = max(0.001, min(self._poll_at, self._chores.next_at) - now)
        return min(pause, _BLOCKED_SECONDS) if self._is_blocked and self._options.drain else pause

    def claim(self, held: int, most: int) -> list[tuple[Job, Lease]]:
        """Do what is due by the clock, then claim one batch of `most` at most, if there is room."""
        now = time.monotonic()
        if self._doubtful:
            self._release_doubtful(now)
        if self._asked:
            # Lowered before anything is read: what another thread reports from here on asks again.
            self._asked = False
            self._poll_at = now
            self._chores.hasten(now)
        # Draining ends on what the table says now, not on what it said a moment ago.
        is_last_look = self._options.drain and not held and not self._heads
        if self._chores.run(now, is_last_look):
            self._poll_at = 0.0
            self._cursors.clear()  # what was promoted may be due earlier than what was claimed
        has_some = self._heads or self._suspects
        if now >= self._poll_at or (has_some and now >= self._heads_at) or is_last_look:
            self._find_heads(now)
        while self._told:
            queue, priority = self._told.popleft()
            if (cursor := self._cursors.get(queue)) is not None and cursor.is_behind(priority):
                del self._cursors[queue]
            self._short.discard((Stream.PLAIN, queue))
            if (Stream.PLAIN, queue) not in self._heads:
                self._heads.insert(0, (Stream.PLAIN, queue))
        if most <= 0:
            return []
        if self._suspects or self._runs_suspect:
            claimed = self._claim_suspect(held)
            if claimed is not None:
                return claimed
        return self._claim_batch(held, most)

    def close(self) -> None:
        """Hand the turn on."""
        self._turn.give_back()

    def _claim_batch(self, held: int, most: int) -> list[tuple[Job, Lease]]:
        while self._heads and self.has_room(held):
            stream, queue = self._heads[0]
            limit = min(max(self._capacity - held, 1), self._slots - held, most)
            claimed, is_exhausted = self._take(stream, queue, limit)
            if is_exhausted:
                self._heads.pop(0)
                self._is_blocked = self._is_blocked or stream is Stream.LOCKED
            elif stream is Stream.LOCKED:
                self._heads.append(self._heads.pop(0))  # one a transaction: others in between
            if claimed:
                return claimed
        self.is_dry = not self._heads and not self._suspects and not self._is_blocked
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
            is_exhausted = False
            while not is_exhausted:
                claimed, is_exhausted = self._take(Stream.SUSPECT, queue, 1)
                if claimed:
                    self._runs_suspect = True
                    return claimed
        self._suspects = []
        self._turn.give_back()
        return None

    def _take(self, stream: Stream, queue: str, limit: int) -> tuple[list[tuple[Job, Lease]], bool]:
        """Claim from one head; return what was claimed and whether nothing claimable is left.

        Behind the queue's cursor where there is one: a claim that comes back short from there
        tells nothing of what lies before it.
        """
        if stream is not Stream.PLAIN:
            limit = 1
        cursor = self._cursors.get(queue) if stream is Stream.PLAIN else None
        if cursor is not None and not cursor.is_worn():
            claimed = self._claim(stream, queue, limit, cursor)
            if len(claimed) == limit:
                self._cursors[queue] = cursor.moved(claimed[-1][0])
                return claimed, False
            del self._cursors[queue]
            if claimed:
                return claimed, False
        if (stream, queue) in self._short:
            # It came back short, and what it brought is handed out by now.
            self._short.discard((stream, queue))
            if not self._tasks.clear_head(stream, queue):
                return [], True
        began = time.monotonic()
        claimed = self._claim(stream, queue, limit, None)
        if len(claimed) == limit:
            if stream is Stream.PLAIN:
                self._cursors[queue] = Cursor(claimed[-1][0], time.monotonic() - began)
            return claimed, False
        self._cursors.pop(queue, None)
        if claimed:
            self._short.add((stream, queue))
            return claimed, False
        # Nothing claimable, or only rows of tasks that are unknown as yet stood in front.
        return [], not self._tasks.clear_head(stream, queue)

    def _claim(
        self, stream: Stream, queue: str, limit: int, cursor: Cursor | None
    ) -> list[tuple[Job, Lease]]:
        token = uuid.uuid4()
        try:
            return claim_jobs(
                queue, holder=self._holder, duration=self._options.duration, limit=limit,
                stream=stream, known=self._tasks.names, token=token,
                behind=None if cursor is None else cursor.job,
            )  # fmt: skip
        except Error:
            self._doubtful.append((token, time.monotonic() + _DOUBT_SECONDS))
            raise

    def _release_doubtful(self, now: float) -> None:
        """Give back what a claim took whose reply was lost: nobody knows of those rows."""
        recovery.release_forgotten(self._holder, [token for token, _ in self._doubtful])
        self._doubtful = [(token, until) for token, until in self._doubtful if until > now]

    def _find_heads(self, now: float) -> None:
        plain = [(*urgency, Stream.PLAIN, queue) for queue, *urgency in _queues(PLAIN)]
        locked = [(*urgency, Stream.LOCKED, queue) for queue, *urgency in _queues(LOCKED)]
        heads = sorted(plain + locked, key=lambda head: head[:2])
        self._heads = [(stream, queue) for *_, stream, queue in heads if self._is_wanted(queue)]
        self._suspects = [queue for queue, *_ in _queues(SUSPECT) if self._is_wanted(queue)]
        self._is_blocked = False
        self._short.clear()
        self._heads_at = now + _HEADS_SECONDS
        self._poll_at = now + self._options.poll * random.uniform(0.8, 1.0)

    def _is_wanted(self, queue: str) -> bool:
        return not self._options.queues or queue in self._options.queues


PLAIN: Final = "crashes = 0 AND lock_key = ''"
LOCKED: Final = "crashes = 0 AND lock_key <> ''"
SUSPECT: Final = "crashes > 0"


def _queues(stream: str) -> list[tuple[str, int, Any]]:
    """Return the queues that have pending rows of a stream with their heads' urgency, in its order.

    A skip scan, one index probe per queue: the index of the claim begins with the queue, and a
    DISTINCT would read all of it. Paused ones are left out.
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
            SELECT queue, priority, due_at FROM head WHERE queue NOT IN
                (SELECT name FROM "{Queue._meta.db_table}" WHERE paused_at IS NOT NULL)
            ORDER BY priority, due_at
            """
        )
        heads: list[tuple[str, int, Any]] = cursor.fetchall()
        return heads


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
            import fcntl  # there is none on Windows, nor a supervisor

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
                import fcntl

                with contextlib.suppress(OSError):
                    fcntl.lockf(self._fd, fcntl.LOCK_UN)
