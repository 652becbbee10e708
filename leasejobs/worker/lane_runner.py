"""A registered lane inside one child: its threads, and when it is looked at again."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import Error, connections

from leasejobs import signals
from leasejobs.heartbeat import Heartbeat, Held
from leasejobs.lanes import Lane, lane_number
from leasejobs.policy import Backoff
from leasejobs.redaction import describe
from leasejobs.worker import sessions
from leasejobs.worker.bench import Bench, Item
from leasejobs.worker.options import Options
from leasejobs.worker.slots import RETURNED, Slots

_HOUSEKEEP_SECONDS: Final = 1.0
_RETRY: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=5))


class LaneRunner:
    """Claims at most as many rows as the lane has idle threads; `tick` is the main thread's."""

    def __init__(
        self,
        lane: Lane,
        options: Options,
        holder: str,
        slots: Slots,
        heartbeat: Heartbeat,
        stopping: threading.Event,
        wake: Callable[[], None],
    ) -> None:
        self.lane = lane
        self._options = options
        self._holder = holder
        self._slots = slots
        self._heartbeat = heartbeat
        self._stopping = stopping
        self._wake = wake
        self._bench = Bench()
        self._busy: set[int] = set()
        self._look_at = 0.0
        self._asked = False
        self._housekeep_at = 0.0
        self._failures = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"leasejobs-{lane.name}-{number}", daemon=True)
            for number in range(lane.threads)
        ]

    @property
    def busy(self) -> int:
        """How many rows this lane holds."""
        return len(self._busy)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def look_again(self, name: str | None) -> None:
        """Do not wait for the next poll; from any thread."""
        if name is None or name == self.lane.name:
            self._asked = True

    def close(self) -> list[threading.Thread]:
        """Let no thread begin anything more; return the threads, which end with what they do."""
        for item in self._bench.close():
            self._let_go(item)  # leased but not begun: its lease runs out, or `settle` takes it
        return self._threads

    def tick(self, is_quiet: bool) -> float | None:
        """Claim for idle threads unless it is to be quiet; return the seconds until the next look.

        None where the lane is through: nothing in hand, and nothing due or nothing wanted.
        """
        now = time.monotonic()
        try:
            if now >= self._housekeep_at:
                self._housekeep_at = now + _HOUSEKEEP_SECONDS
                self.lane.housekeep()
            idle = self.lane.threads - len(self._busy)
            if is_quiet or not idle:
                return None if not self._busy else 1.0
            if now < self._look_at and not self._asked:
                return self._rest(now)
            # Lowered before anything is read: what another thread reports from here on asks again.
            self._asked = False
            self._look_at = now + self._options.poll
            claimed = self.lane.claim(self._holder, self._options.duration, idle)
            for row, lease in claimed:
                held = Held(lease)
                self._heartbeat.keep(held)
                slot = self._slots.take(lease.pk, lease.epoch, None, lane_number(self.lane.name))
                self._busy.add(slot)
                self._bench.lay([Item(row, held, slot)])
            self._failures = 0
            if claimed:
                self._look_at = 0.0
                return 0.0 if len(claimed) < idle else 1.0
            self._look_at = now + min(self._options.poll, self.lane.seconds_to_next_due())
            return self._rest(now)
        except Exception as error:  # noqa: BLE001 - a lane is somebody's code: it must not end ours
            if isinstance(error, Error):  # its session may be unfit for the jobs, or gone
                connections.close_all()
            self._failures += 1
            self._look_at = now + _RETRY.delay(self._failures, 0).total_seconds()
            tell_failed(self.lane, error)
            return self._rest(now)

    def _rest(self, now: float) -> float | None:
        if self._asked:
            return 0.0
        if self._options.drain and not self._busy:
            return None
        return max(0.0, min(self._look_at, self._housekeep_at) - now)

    def _work(self) -> None:
        used_at = time.monotonic()
        while (item := self._bench.take()) is not None:
            sessions.close_cut(time.monotonic() - used_at)
            if not item.held.is_lost:
                self._slots.begin(item.slot)
                try:
                    self.lane.run(item.job, item.held, partial(self._should_stop, item.held))
                except BaseException as error:  # noqa: BLE001 - as above; its lease runs out
                    tell_failed(self.lane, error)
                self._slots.mark(item.slot, RETURNED)
                sessions.discard_dirty()
            used_at = time.monotonic()
            self._let_go(item)
            self._asked = True
            self._wake()
        connections.close_all()

    def _should_stop(self, held: Held) -> bool:
        return held.should_stop or self._stopping.is_set()

    def _let_go(self, item: Item) -> None:
        self._heartbeat.drop(item.held)
        self._busy.discard(item.slot)
        self._slots.give_back(item.slot)


def tell_failed(lane: Lane, error: BaseException) -> None:
    """Tell that a method of a lane raised."""
    path, detail, _ = describe(error)
    fields: dict[str, Any] = {"lane": lane.name, "exception_path": path, "detail": detail}
    signals.worker_changed.send_robust(
        sender=LaneRunner, event="lane_failed", level=logging.ERROR, fields=fields
    )
