"""The claimer: what this child claims next, how much of it, and when to look again."""

import random
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import Final, TypeAlias

from django.db import Error

from leasejobs import recovery
from leasejobs.claiming import Stream, claim_jobs
from leasejobs.fencing import Lease
from leasejobs.models import Job
from leasejobs.worker.chores import Chores
from leasejobs.worker.heads import Cursor, KnownTasks, heads_of
from leasejobs.worker.options import Options
from leasejobs.worker.turn import Turn

Head: TypeAlias = tuple[Stream, str]

LARGEST_BATCH: Final = 500
_PREFETCH_SECONDS: Final = 0.050
_HEADS_SECONDS: Final = 1.0
_BLOCKED_SECONDS: Final = 0.050
# How urgent a head is that a notification told of: all that is known is its priority.
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = (1_000, _LONG_AGO)
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
        self._turn = Turn(turn_fd, options.lease)
        self._tasks = KnownTasks()
        self._chores = Chores(options)
        self._cursors: dict[str, Cursor] = {}
        self._short: set[tuple[Stream, str]] = set()
        self._job_seconds = _PREFETCH_SECONDS
        self._heads: dict[Head, tuple[int, datetime]] = {}
        self._served: dict[Head, int] = {}  # rows claimed of each
        self._told: deque[tuple[str, int]] = deque()
        self._asked = False
        self._heads_at = 0.0
        self._suspects: list[str] = []
        self._runs_suspect = False
        self._suspect_since = 0.0
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

    @property
    def wants_quiet(self) -> bool:
        """Whether nothing else may begin in this child: a suspect runs, or is about to."""
        return self._turn.is_taken

    def claim(self, held: int, most: int, beside: int = 0) -> list[tuple[Job, Lease]]:
        """Do what is due by the clock, then claim one batch of `most` at most, if there is room.

        `held` counts the jobs this child holds, `beside` the rows its lanes hold.
        """
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
            known = self._heads.get((Stream.PLAIN, queue), _LAST)
            self._add_head((Stream.PLAIN, queue), min(known, (priority, _LONG_AGO)))
        if most <= 0:
            return []
        if self._suspects or self._runs_suspect:
            claimed = self._claim_suspect(held, beside)
            if claimed is not None:
                return claimed
        return self._claim_batch(held, most)

    def close(self) -> None:
        """Hand the turn on."""
        self._turn.give_back()

    def _claim_batch(self, held: int, most: int) -> list[tuple[Job, Lease]]:
        """Claim from the most urgent head; of equally urgent ones, from the one served least.

        So neither queue nor stream waits for the backlog of another that is no more urgent.
        """
        while self._heads and self.has_room(held):
            head = stream, queue = min(self._heads, key=self._turn_of)
            limit = min(max(self._capacity - held, 1), self._slots - held, most)
            claimed, is_exhausted = self._take(stream, queue, limit)
            if is_exhausted:
                del self._heads[head]
                self._is_blocked = self._is_blocked or stream is Stream.LOCKED
            if claimed:
                last = claimed[-1][0]
                self._heads[head] = last.priority, last.due_at
                self._served[head] += len(claimed)
                return claimed
        self.is_dry = not self._heads and not self._suspects and not self._is_blocked
        return []

    def _turn_of(self, head: Head) -> tuple[int, int, datetime]:
        priority, due_at = self._heads[head]
        return priority, self._served[head], due_at

    def _add_head(self, head: Head, urgency: tuple[int, datetime]) -> None:
        """Serve a head; one that is new here begins level with the one served least so far."""
        if head not in self._heads:
            least = min((self._served[other] for other in self._heads), default=0)
            self._served[head] = max(self._served.get(head, 0), least)
        self._heads[head] = urgency

    def _claim_suspect(self, held: int, beside: int) -> list[tuple[Job, Lease]] | None:
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
        if (held or beside) and not self._turn.is_taken:
            # An idle child of this supervisor may run it at once: it has a second to take the turn.
            self._suspect_since = self._suspect_since or time.monotonic()
            if time.monotonic() - self._suspect_since < _HEADS_SECONDS:
                return None
        self._suspect_since = 0.0
        if not self._turn.take():
            return None
        if held or beside:
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
        found = {
            (stream, queue): (priority, due_at)
            for stream in (Stream.PLAIN, Stream.LOCKED)
            for queue, priority, due_at in heads_of(stream)
            if self._is_wanted(queue)
        }
        self._heads = {head: self._heads[head] for head in self._heads if head in found}
        for head, urgency in found.items():
            self._add_head(head, urgency)
        self._suspects = [queue for queue, *_ in heads_of(Stream.SUSPECT) if self._is_wanted(queue)]
        self._is_blocked = False
        self._short.clear()
        self._heads_at = now + _HEADS_SECONDS
        self._poll_at = now + self._options.poll * random.uniform(0.8, 1.0)

    def _is_wanted(self, queue: str) -> bool:
        return not self._options.queues or queue in self._options.queues
