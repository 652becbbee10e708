"""One child: promote, claim, hand out, wait; with its threads, until told to stop."""

import logging
import random
import threading
import time
from datetime import timedelta
from typing import Final

from django.db import Error, connections

from leasejobs import executor, signals
from leasejobs.fencing import Lease
from leasejobs.heartbeat import Heartbeat, Held
from leasejobs.lanes import lanes
from leasejobs.leases import cancel_requested
from leasejobs.models import Job
from leasejobs.outcomes import Outcome, Released, Succeeded
from leasejobs.points import reached
from leasejobs.policy import Backoff
from leasejobs.redaction import say
from leasejobs.wakeup import THROTTLE_SECONDS, Listener, Wake
from leasejobs.worker import sessions
from leasejobs.worker.bench import Bench, Item
from leasejobs.worker.claimer import Claimer
from leasejobs.worker.lane_runner import LaneRunner
from leasejobs.worker.memory import rss_mb
from leasejobs.worker.options import Options
from leasejobs.worker.settler import Settler
from leasejobs.worker.slots import RETURNED, Slots

# How a child ends, as its slots tell: whatever status it exits with, a task may exit with, too.
STOPPED: Final = 1
DRAINED: Final = 2  # it found nothing due
RECYCLED: Final = 3  # it has done its share, or its code has changed: start another

# Work that has lain on the bench for so long behind busy threads goes back to the table.
_STALE_SECONDS: Final = 1.0
_RSS_SECONDS: Final = 1.0
_RECONNECT: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=5))


class Loop:
    """A child's main thread. `run` returns when it was stopped or, draining, found nothing due.

    Task threads may still be running then, if the grace period is over: their leases are given up
    locally, and the process must exit at once, for its supervisor to settle what they hold. A row
    is never freed while its thread lives. Without a supervisor (`is_alone`) nobody can kill a job
    that runs over its time: it is told to stop, and then renewed no longer.
    """

    def __init__(
        self,
        options: Options,
        holder: str,
        slots: Slots,
        turn_fd: int | None,
        is_alone: bool = False,
    ) -> None:
        self._options = options
        self._holder = holder
        self._slots = slots
        self._is_alone = is_alone
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._bench = Bench()
        self._heartbeat = Heartbeat(options.duration, self._lost, self._after_beat)
        self._settler = Settler(lambda: slots.in_use, self._settled, self._wake.set)
        self._listener = Listener(self._notified)
        self._lanes = [
            LaneRunner(
                lane, options, holder, slots, self._heartbeat, self._stopping, self._wake.set
            )
            for lane in lanes()
        ]
        reserved = sum(runner.lane.threads for runner in self._lanes)
        self._claimer = Claimer(options, holder, slots.count - reserved, turn_fd)
        self._again_at = float("inf")
        # At first it works for a while, however big it is: else it would be replaced for ever.
        self._rss_at = time.monotonic() + _RSS_SECONDS
        self._began = 0  # jobs claimed, less those handed back unbegun
        self._is_finishing = False
        self._is_recycled = False
        self._shutdown = options.shutdown
        self._threads = [
            threading.Thread(target=self._work, name=f"leasejobs-task-{number}", daemon=True)
            for number in range(options.threads)
        ]

    def stop(self, at_once: bool = False) -> None:
        """Stop claiming, tell running tasks, end within the grace period; from any thread."""
        if at_once:
            self._shutdown = 0.0
        self._stopping.set()
        self._wake.set()

    def recycle(self, reason: str) -> None:
        """Stop as `stop` does, for another child to take over; from any thread."""
        self._tell_recycled(reason)
        self.stop()

    def run(self) -> int:
        """Work until stopped, drained or recycled; return which."""
        self._listener.start()
        for thread in (self._heartbeat, self._settler, *self._threads):
            thread.start()
        for runner in self._lanes:
            runner.start()
        failures = 0
        is_drained = False
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                pause = self._tick()
                self._slots.tell_ready()
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
                is_drained = not self._is_finishing
                break
            self._wake.wait(pause)
        self._shut_down()
        if self._is_recycled:
            return RECYCLED
        return DRAINED if is_drained else STOPPED

    def _tick(self) -> float | None:
        """Do one round; return how many seconds there is nothing to do, None to come to an end."""
        pause = self._tick_jobs()
        is_quiet = self._is_finishing or self._claimer.wants_quiet
        pauses = [runner.tick(is_quiet) for runner in self._lanes]
        self._lanes = self._lanes[1:] + self._lanes[:1]
        if pause is None:
            # Jobs are through: so is the child once its lanes are.
            if all(pause is None for pause in pauses):
                return None
            pause = 0.05
        return min([pause, *(lane_pause for lane_pause in pauses if lane_pause is not None)])

    def _tick_jobs(self) -> float | None:
        if len(self._bench) and self._bench.oldest_age() > _STALE_SECONDS:
            self._claimer.observe(_STALE_SECONDS)
            self._hand_back()
        self._see_to_limits()
        in_use = self._held_jobs
        if self._is_finishing:
            return None if not in_use else 1.0
        most = self._options.max_jobs - self._began if self._options.max_jobs else self._slots.count
        claimed = self._claimer.claim(in_use, most, self._slots.in_use - in_use)
        if claimed:
            reached("claimed")
            self._began += len(claimed)
            items = []
            for job, lease in claimed:
                held = Held(lease)
                self._heartbeat.keep(held)
                slot = self._slots.take(job.pk, job.epoch, job.timeout_seconds)
                items.append(Item(job, held, slot))
            reached("slotted")
            self._bench.lay(items)
            if self._claimer.has_room(self._held_jobs):
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

    @property
    def _held_jobs(self) -> int:
        """How many jobs this child holds: what lanes hold takes none of their threads."""
        return self._slots.in_use - sum(runner.busy for runner in self._lanes)

    def _see_to_limits(self) -> None:
        """Finish what is held and end, once this child has done its share or grown too big."""
        options = self._options
        if self._is_finishing:
            return
        if options.max_jobs and self._began >= options.max_jobs:
            self._finish("max_jobs")
        elif options.max_rss_mb and time.monotonic() >= self._rss_at:
            self._rss_at = time.monotonic() + _RSS_SECONDS
            if rss_mb() > options.max_rss_mb:
                self._finish("max_rss_mb")

    def _finish(self, reason: str) -> None:
        self._is_finishing = True
        self._tell_recycled(reason)
        if reason != "max_jobs":
            self._hand_back()

    def _tell_recycled(self, reason: str) -> None:
        self._is_recycled = True
        signals.worker_changed.send_robust(
            sender=Loop, event="child_recycled", level=logging.INFO,
            fields={"holder": self._holder, "reason": reason},
        )  # fmt: skip

    def _hand_back(self) -> None:
        for item in self._bench.clear():
            self._began -= 1
            self._settler.put(item, Released())

    def _work(self) -> None:
        used_at = time.monotonic()
        while (item := self._bench.take()) is not None:
            sessions.close_cut(time.monotonic() - used_at)
            if item.held.is_lost:
                # Presumed lost before it began: hand it back if it is still ours after all.
                self._settler.put(item, Released())
                continue
            began = time.monotonic()
            if item.job.timeout_seconds:
                item.held.stop_at = began + item.job.timeout_seconds
            self._slots.begin(item.slot)
            reached("begun")
            outcome = executor.run(item.job, item.held, self._stopping.is_set)
            self._slots.mark(item.slot, RETURNED)
            reached("returned")
            sessions.discard_dirty()
            used_at = time.monotonic()
            item.seconds = used_at - began
            self._claimer.observe(item.seconds)
            self._settler.put(item, outcome)
        connections.close_all()

    def _settled(self, item: Item, outcome: Outcome | None) -> None:
        self._heartbeat.drop(item.held)
        self._slots.give_back(item.slot)
        if not isinstance(outcome, Succeeded | None) or item.job.lock_key:
            self._claimer.look_again()  # it, or who waited for its lock, may be claimable already

    def _after_beat(self, kept: list[Held]) -> None:
        jobs = {held.lease.pk: held for held in kept if held.lease.model is Job}
        for pk in cancel_requested(jobs) if jobs else ():
            jobs[pk].is_cancelled = True
        if self._is_alone:
            overdue = time.monotonic() - self._options.lease / 3
            for held in kept:
                if held.stop_at < overdue:
                    held.lose()
                    self._heartbeat.drop(held)

    def _lost(self, lease: Lease) -> None:
        signals.lease_lost.send_robust(sender=lease.model, lease=lease, outcome=None)

    def _notified(self, wake: Wake) -> None:
        if wake.lane is not None:
            for runner in self._lanes:
                runner.look_again(wake.lane)
            self._wake.set()
        elif wake.queue is None or not self._options.queues or wake.queue in self._options.queues:
            self._claimer.look_again(wake.queue, wake.priority)
            for runner in self._lanes if wake.queue is None else ():
                runner.look_again(None)
            self._again_at = time.monotonic() + THROTTLE_SECONDS * 1.2
            self._wake.set()

    def _shut_down(self) -> None:
        deadline = time.monotonic() + self._shutdown
        for item in self._bench.close():
            self._settler.put(item, Released())
        threads = [*self._threads]
        for runner in self._lanes:
            threads += runner.close()
        while any(thread.is_alive() for thread in threads):
            # In short waits: a second signal makes the deadline now.
            if time.monotonic() >= deadline or (self._shutdown == 0 and self._stopping.is_set()):
                self._heartbeat.lose_all()
                break
            next(thread for thread in threads if thread.is_alive()).join(0.05)
        self._settler.stop()
        self._settler.join(max(1.0, deadline - time.monotonic()))
        self._listener.stop()
        self._heartbeat.stop()
        self._claimer.close()
        connections.close_all()
