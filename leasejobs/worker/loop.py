"""One child: promote, claim, hand out, wait; with its threads, until told to stop."""

import logging
import random
import select
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.db import Error, connections

from leasejobs import executor, signals
from leasejobs.fencing import Lease
from leasejobs.heartbeat import Heartbeat, Held
from leasejobs.models import Job
from leasejobs.outcomes import Outcome, Released, Succeeded
from leasejobs.points import reached
from leasejobs.policy import Backoff
from leasejobs.redaction import say
from leasejobs.wakeup import THROTTLE_SECONDS, Listener
from leasejobs.worker import sessions
from leasejobs.worker.bench import Bench, Item
from leasejobs.worker.claimer import Claimer
from leasejobs.worker.options import Options
from leasejobs.worker.settler import Settler
from leasejobs.worker.slots import BEGUN, RETURNED, Slots

# Work that has lain on the bench for so long behind busy threads goes back to the table.
_STALE_SECONDS: Final = 1.0
_RECONNECT: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=5))


class Loop:
    """A child's main thread. `run` returns when it was stopped or, draining, found nothing due.

    Task threads may still be running then, if the grace period is over: their leases are given up
    locally, and the process must exit at once, for its supervisor to settle what they hold. A row
    is never freed while its thread lives.
    """

    def __init__(self, options: Options, holder: str, slots: Slots, turn_fd: int | None) -> None:
        self._options = options
        self._holder = holder
        self._slots = slots
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._bench = Bench()
        self._heartbeat = Heartbeat(options.duration, self._lost)
        self._settler = Settler(lambda: slots.in_use, self._settled, self._wake.set)
        self._listener = Listener(self._notified)
        self._claimer = Claimer(options, holder, slots.count, turn_fd)
        self._again_at = float("inf")
        self._threads = [
            threading.Thread(target=self._work, name=f"leasejobs-task-{number}", daemon=True)
            for number in range(options.threads)
        ]

    def stop(self) -> None:
        """Stop claiming, tell running tasks, end within the grace period; from any thread."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> bool:
        """Work until stopped or drained; return whether it drained."""
        self._listener.start()
        for thread in (self._heartbeat, self._settler, *self._threads):
            thread.start()
        failures = 0
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                pause = self._tick()
                failures = 0
            except Error as error:
                # Also what no retry mends (a migration under way, a row made by hand): what this
                # child runs meanwhile goes on, and the warning says why it claims nothing.
                connections.close_all()
                failures += 1
                pause = _RECONNECT.delay(failures, random.random()).total_seconds()
                signals.worker_changed.send_robust(
                    sender=Loop, event="database_unavailable", level=logging.WARNING,
                    fields={"reason": say(error), "retry_seconds": round(pause, 2)},
                )  # fmt: skip
                self._stopping.wait(pause)
                continue
            if pause is None:
                break
            self._wake.wait(pause)
        is_drained = not self._stopping.is_set()
        self._shut_down()
        return is_drained

    def _tick(self) -> float | None:
        """Do one round; return how many seconds there is nothing to do, None when drained."""
        if len(self._bench) and self._bench.oldest_age() > _STALE_SECONDS:
            self._claimer.observe(_STALE_SECONDS)
            for item in self._bench.clear():
                self._settler.put(item, Released())
        in_use = self._slots.in_use
        claimed = self._claimer.claim(in_use)
        if claimed:
            reached("claimed")
            items = []
            for job, lease in claimed:
                held = Held(lease)
                self._heartbeat.keep(held)
                items.append(Item(job, held, self._slots.take(job.pk, job.epoch)))
            reached("slotted")
            self._bench.lay(items)
            if self._claimer.has_room(self._slots.in_use):
                return 0
        elif self._options.drain and not in_use and self._claimer.is_dry:
            return None
        now = time.monotonic()
        pause = self._claimer.pause()
        if self._again_at <= now:
            self._again_at = float("inf")
            self._claimer.look_again()
            return 0
        return max(0.0, min(pause, self._again_at - now))

    def _work(self) -> None:
        used_at = time.monotonic()
        while (item := self._bench.take()) is not None:
            sessions.close_cut(time.monotonic() - used_at)
            if item.held.is_lost:
                # Presumed lost before it began: hand it back if it is still ours after all.
                self._settler.put(item, Released())
                continue
            self._slots.mark(item.slot, BEGUN)
            reached("begun")
            began = time.monotonic()
            outcome = executor.run(item.job, item.held, self._stopping.is_set)
            self._slots.mark(item.slot, RETURNED)
            reached("returned")
            sessions.discard_dirty()
            used_at = time.monotonic()
            self._claimer.observe(used_at - began)
            self._settler.put(item, outcome)
        connections.close_all()

    def _settled(self, item: Item, outcome: Outcome | None) -> None:
        self._heartbeat.drop(item.held)
        self._slots.give_back(item.slot)
        if not isinstance(outcome, Succeeded | None):
            self._claimer.look_again()  # it may be due again already

    def _lost(self, lease: Lease) -> None:
        signals.lease_lost.send_robust(sender=Job, lease=lease, outcome=None)

    def _notified(self, queue: str | None) -> None:
        if queue is None or not self._options.queues or queue in self._options.queues:
            self._claimer.look_again(queue)
            self._again_at = time.monotonic() + THROTTLE_SECONDS * 1.2
            self._wake.set()

    def _shut_down(self) -> None:
        deadline = time.monotonic() + self._options.shutdown
        for item in self._bench.close():
            self._settler.put(item, Released())
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._heartbeat.lose_all()
        self._settler.stop()
        self._settler.join(max(1.0, deadline - time.monotonic()))
        self._listener.stop()
        self._heartbeat.stop()
        self._claimer.close()
        connections.close_all()


def stop_at_end_of(fds: Sequence[int], loop: Loop) -> None:
    """Stop `loop` when one of `fds` can be read: a signal's pipe, or the supervisor's that closed.

    From a thread, never from a signal handler: one may interrupt the main thread inside the very
    locks that `stop` takes.
    """

    def read() -> None:
        select.select(fds, (), ())
        loop.stop()

    threading.Thread(target=read, name="leasejobs-lifeline", daemon=True).start()
