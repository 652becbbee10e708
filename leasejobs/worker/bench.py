"""The bench: claimed work between the loop that lays it out and the threads that run it."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leasejobs.heartbeat import Held


@dataclass(slots=True, eq=False)
class Item:
    """One claimed row in this process: a job, or what a lane has claimed."""

    job: Any
    held: Held
    slot: int
    laid_at: float = field(default_factory=time.monotonic)
    failures: int = 0  # to write its outcome
    seconds: float | None = None  # its body ran; None while it has not returned


class Bench:
    """A queue of items; a batch costs one wake-up, not one per item."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def lay(self, items: Sequence[Item]) -> None:
        """Put a batch on the bench."""
        with self._changed:
            self._items.extend(items)
            self._changed.notify(len(items))

    def take(self) -> Item | None:
        """Return the next item, waiting for one; None once the bench is closed."""
        while not self._closed:
            try:
                return self._items.popleft()  # atomic: no lock while there is work
            except IndexError:
                with self._changed:
                    if not self._items and not self._closed:
                        self._changed.wait()
        return None

    def clear(self) -> list[Item]:
        """Take back every item no thread has taken."""
        taken = []
        while self._items:
            try:
                taken.append(self._items.popleft())
            except IndexError:
                break
        return taken

    def oldest_age(self) -> float:
        """Return for how many seconds the first item has lain here; 0 on an empty bench."""
        try:
            return time.monotonic() - self._items[0].laid_at
        except IndexError:
            return 0.0

    def close(self) -> list[Item]:
        """Let no thread take anything more; return what was not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return self.clear()
