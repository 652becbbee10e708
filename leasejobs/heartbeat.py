"""Renewal: keep the leases of a process alive while their work goes on, from a thread of its own.

The thread has a connection of its own too, so work that fills the others cannot starve it.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import Error, connections

from leasejobs.fencing import Lease
from leasejobs.renewal import renew

_RETRY_SHARE: Final = 10


class Held:
    """A lease in somebody's hands: the newest receipt, and what its holder has to know.

    `is_cancelled` says that somebody asked to cancel the row; `stop_at`, on CLOCK_MONOTONIC, when
    the work has used up its time.
    """

    __slots__ = ("_is_lost", "is_cancelled", "lease", "stop_at")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.is_cancelled = False
        self.stop_at = float("inf")
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether the holder must stop: told so, or not renewed in time by the local clock."""
        return self._is_lost or self.lease.is_presumed_lost

    @property
    def should_stop(self) -> bool:
        """Whether to come to an end: lost, cancelled, or out of time."""
        return self.is_lost or self.is_cancelled or time.monotonic() >= self.stop_at

    def lose(self) -> None:
        """Give the lease up locally; the database is not told."""
        self._is_lost = True


class Heartbeat(threading.Thread):
    """Renews every lease in its keeping each third of `duration`; see `renewal.renew`.

    `after_beat` is called with what is kept after each renewal, on the same connection. A lease
    that turns out lost is marked so and dropped. One whose row is locked is left to the
    `fenced()` that has it. While the database is away nothing is renewed, and each lease is lost
    by its own local deadline.
    """

    def __init__(
        self,
        duration: timedelta,
        on_lost: Callable[[Lease], None],
        after_beat: Callable[[list[Held]], None] = lambda kept: None,
    ) -> None:
        super().__init__(name="leasejobs-heartbeat", daemon=True)
        self._seconds = duration.total_seconds()
        self._on_lost = on_lost
        self._after_beat = after_beat
        self._held: dict[int, Held] = {}
        self._stopping = threading.Event()

    def keep(self, held: Held) -> None:
        """Take a lease into keeping."""
        self._held[id(held)] = held

    def drop(self, held: Held) -> None:
        """Stop renewing a lease: its work is written, or given up."""
        self._held.pop(id(held), None)

    def lose_all(self) -> None:
        """Give up every lease locally, so that whatever still runs is told to stop."""
        for held in list(self._held.values()):
            held.lose()
        self._held.clear()

    def run(self) -> None:
        """Renew until stopped."""
        pause = self._seconds / 3
        while not self._stopping.wait(pause):
            try:
                self.beat()
                pause = self._seconds / 3
            except Error:
                connections.close_all()
                pause = self._seconds / _RETRY_SHARE
        connections.close_all()

    def stop(self) -> None:
        """Ask the thread to end; it does after the beat it is in."""
        self._stopping.set()

    def beat(self) -> None:
        """Renew once."""
        kept = {(held.lease.pk, held.lease.token): held for held in list(self._held.values())}
        if not kept:
            return
        renewed, _, lost = renew([held.lease for held in kept.values()])
        for lease in renewed:
            held = kept[lease.pk, lease.token]
            # A fenced() that committed in between may have re-armed it further.
            if lease.deadline > held.lease.deadline:
                held.lease = lease
        for lease in lost:
            held = kept[lease.pk, lease.token]
            # Not lost if it was written meanwhile: then it is no longer kept.
            if id(held) in self._held and lease.deadline >= held.lease.deadline:
                held.lose()
                self.drop(held)
                self._on_lost(lease)
        self._after_beat(list(self._held.values()))
