"""The settler: writes outcomes in batches, at the latest 10 ms after the first unwritten one."""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import Error, connections

from leasejobs import leases, signals
from leasejobs.leases import Written
from leasejobs.outcomes import Failed, Failure, Outcome, Succeeded
from leasejobs.points import reached
from leasejobs.policy import Backoff
from leasejobs.redaction import say
from leasejobs.sessions import is_content_refused, is_database_away
from leasejobs.worker.bench import Item

FLUSH_SECONDS: Final = 0.010
_FULL: Final = 500
# How soon a locked row is tried again: at first at once, as its lock is as a rule a short one.
_BUSY: Final = Backoff(timedelta(seconds=0.020), timedelta(seconds=0.5), jitter=0)
_MOST_FAILURES: Final = 5
_RECONNECT: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=5))

Done = tuple[Item, Outcome | None]


class Settler(threading.Thread):
    """Takes (item, outcome) from the task threads; calls `on_settled(item, outcome)` for each.

    None as outcome means that the task wrote it itself in `fenced()`. A row that is locked waits
    for a later flush and holds up nobody. While the database is away, outcomes wait here; a
    write whose reply was lost is found by its attempt row and not made twice. An outcome that
    the database refuses again and again is given up by `on_settled`, with an ERROR event: its
    lease then runs out and the row is recovered.
    """

    def __init__(
        self,
        outstanding: Callable[[], int],
        on_settled: Callable[[Item, Outcome | None], None],
        on_flushed: Callable[[], None],
    ) -> None:
        super().__init__(name="leasejobs-settler", daemon=True)
        self._outstanding = outstanding
        self._on_settled = on_settled
        self._on_flushed = on_flushed
        self._done: deque[Done] = deque()
        self._ran: list[tuple[str, str, float]] = []
        self._some = threading.Event()
        self._enough = threading.Event()
        self._stopping = False

    def put(self, item: Item, outcome: Outcome | None) -> None:
        """Hand over a finished item; never blocks."""
        self._done.append((item, outcome))
        count = len(self._done)
        # Of a task that parks on a crash, no finished run may be lost for the sake of a batch.
        is_urgent = item.job.on_crash == "park"
        if is_urgent or count >= _FULL or count >= self._outstanding():
            self._enough.set()
        if not self._some.is_set():
            self._some.set()

    def stop(self) -> None:
        """Ask the thread to end once everything handed over is written or lost."""
        self._stopping = True
        self._enough.set()
        self._some.set()

    def run(self) -> None:
        """Write until stopped."""
        failures = 0
        busy = 0
        while True:
            self._some.wait()
            if not self._stopping:
                self._enough.wait(FLUSH_SECONDS)
            # Cleared before the batch is taken: what comes after sets them again.
            self._some.clear()
            self._enough.clear()
            batch = [self._done.popleft() for _ in range(len(self._done))]
            try:
                waiting = self._flush(batch)
                failures = 0
            except Error as error:
                connections.close_all()
                failures += 1
                pause = _RECONNECT.delay(failures, 0).total_seconds()
                _tell("outcomes_delayed", logging.WARNING, error, count=len(batch))
                waiting = [pair for pair in batch if pair[0].slot >= 0]
                time.sleep(pause)
            if waiting:
                self._done.extendleft(reversed(waiting))
                if failures == 0:
                    busy = busy + 1 if len(waiting) == len(batch) else 1
                    # What is handed over meanwhile ends the pause.
                    self._some.wait(_BUSY.delay(busy, 0).total_seconds())
                self._some.set()
            elif self._stopping and not self._done:
                break
        connections.close_all()

    def _flush(self, batch: list[Done]) -> list[Done]:
        """Write a batch; return the pairs that wait, for a lock or for another try."""
        reached("settling")
        singles: list[Done] = []
        completed: dict[object, list[tuple[Item, Succeeded]]] = defaultdict(list)
        for item, outcome in batch:
            match outcome:
                case None:
                    self._settled(item, None)
                case Succeeded():
                    completed[item.held.lease.token].append((item, outcome))
                case _:
                    singles.append((item, outcome))
        waiting: list[Done] = []
        for pairs in completed.values():
            try:
                waiting += self._complete(pairs)
            except Error as error:
                if is_database_away(error):
                    raise
                singles += pairs  # one row broke the statement: row by row, so that only it waits
        for item, outcome in singles:
            if outcome is not None and self._end(item, outcome) is Written.BUSY:
                waiting.append((item, outcome))
        reached("settled")
        if self._ran:
            ran, self._ran = self._ran, []
            signals.bodies_returned.send_robust(sender=Settler, runs=ran)
        if batch:
            self._on_flushed()
        return waiting

    def _complete(self, pairs: list[tuple[Item, Succeeded]]) -> list[Done]:
        held = [(item.job, item.held.lease) for item, _ in pairs]
        results = {item.job.pk: out.result for item, out in pairs if out.result is not None}
        written = leases.complete_many(held, results)
        for item, outcome in pairs:
            if written[item.job.pk] is not Written.BUSY:
                self._settled(item, outcome)
        return [(item, out) for item, out in pairs if written[item.job.pk] is Written.BUSY]

    def _end(self, item: Item, outcome: Outcome) -> Written:
        try:
            written = leases.end(item.held.lease, outcome)
        except Error as error:
            if is_database_away(error):
                raise
            item.failures += 1
            if is_content_refused(error) and item.failures == 1:
                return self._end(item, Failed(Failure("unrecordable_outcome"), terminal=True))
            if item.failures < _MOST_FAILURES:
                time.sleep(_RECONNECT.delay(item.failures, 0).total_seconds())
                return Written.BUSY
            _tell("outcome_given_up", logging.ERROR, error, job_id=item.job.pk)
            written = Written.LOST
        if written is not Written.BUSY:
            self._settled(item, outcome)
        return written

    def _settled(self, item: Item, outcome: Outcome | None) -> None:
        self._on_settled(item, outcome)
        item.slot = -1
        if item.seconds is not None:
            self._ran.append((item.job.queue, item.job.task, item.seconds))


def _tell(event: str, level: int, error: Error, **fields: object) -> None:
    fields["reason"] = say(error)
    signals.worker_changed.send_robust(sender=Settler, event=event, level=level, fields=fields)
