"""The turn to run a suspect: one child of a supervisor at a time."""

import contextlib
import time


class Turn:
    """The turn to run suspects, one child per supervisor at a time; freed when its holder dies.

    A POSIX record lock, which belongs to a process even where the descriptor is shared.
    """

    def __init__(self, fd: int | None, lease: float) -> None:
        self._fd = fd
        self._lease = lease
        self._taken_at: float | None = None
        self._banned_until = 0.0

    @property
    def is_taken(self) -> bool:
        """Whether this child has the turn."""
        return self._taken_at is not None

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
