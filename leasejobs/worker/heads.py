"""The heads of queues: where the last claim got to, and tasks there that this process lacks."""

import logging
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from django.db import connections

from leasejobs import conf, registry, signals
from leasejobs.claiming import Stream, put_back, tasks_at_head
from leasejobs.exceptions import UnknownTask
from leasejobs.models import Job, Queue
from leasejobs.states import State

# A task this process does not know may be one that a newer version brings.
UNKNOWN_TASK_DELAY: Final = timedelta(seconds=30)
_HEAD: Final = 500
_RESCAN_SHARE: Final = 20  # a full rescan may take a twentieth of the time
_RESCAN_SECONDS: Final = (1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row claimed from a queue, and what the last look from its very head cost.

    A more urgent row that arrives unnoticed lies behind the cursor: it wears out after a second,
    or two where the head is so slow to read that this would take over 5 % of the time.
    """

    job: Job
    rescan_seconds: float
    since: float = field(default_factory=time.monotonic)

    def is_behind(self, priority: int) -> bool:
        """Whether a row of this (stored, so smaller is first) priority may be more urgent."""
        return priority < self.job.priority

    def is_worn(self) -> bool:
        """Whether it is time to look from the head again."""
        least, most = _RESCAN_SECONDS
        lasts = min(max(self.rescan_seconds * _RESCAN_SHARE, least), most)
        return time.monotonic() - self.since > lasts

    def moved(self, job: Job) -> "Cursor":
        """Return the cursor at a later row; it wears out no later for that."""
        return replace(self, job=job)


class KnownTasks:
    """The names this process can run; anything else at the head of a queue is put back."""

    def __init__(self) -> None:
        self.names: list[str] = registry.known()

    def clear_head(self, stream: Stream, queue: str) -> bool:
        """Learn the tasks at the head of a queue, or put their rows back; whether that changed it.

        Rows somebody has locked are left where they are, for a later look.

        A task outside the modules that are imported at start is found by its name, which is its
        import path.
        """
        foreign = tasks_at_head(queue, stream, _HEAD).difference(self.names)
        if not foreign:
            return False
        unknown = [name for name in sorted(foreign) if not self._learns(name)]
        # Rows that somebody has locked stay where they are: asked for again at the next poll.
        is_moved = bool(unknown) and put_back(queue, stream, _HEAD, unknown, UNKNOWN_TASK_DELAY) > 0
        return is_moved or len(unknown) < len(foreign)

    def _learns(self, name: str) -> bool:
        try:
            registry.find(name)
        except UnknownTask as error:
            signals.worker_changed.send_robust(
                sender=KnownTasks, event="task_unknown", level=logging.WARNING,
                fields={"task": name, "reason": str(error)},
            )  # fmt: skip
            return False
        self.names = sorted({*registry.known(), name})
        return True


_CONDITIONS: Final = {
    Stream.PLAIN: "crashes = 0 AND lock_key = ''",
    Stream.LOCKED: "crashes = 0 AND lock_key <> ''",
    Stream.SUSPECT: "crashes > 0",
}


def heads_of(stream: Stream) -> list[tuple[str, int, datetime]]:
    """Return the queues that have pending rows of a stream with their heads' urgency, in its order.

    A skip scan, one index probe per queue: the index of the claim begins with the queue, and a
    DISTINCT would read all of it. Paused ones are left out.
    """
    table = f'"{Job._meta.db_table}"'
    pending = f"state = {State.PENDING:d} AND {_CONDITIONS[stream]}"
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
        heads: list[tuple[str, int, datetime]] = cursor.fetchall()
        return heads
