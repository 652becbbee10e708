"""What a worker was asked for."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Options:
    """What `runleaseworker` was asked for; see its help. Durations are in seconds."""

    queues: tuple[str, ...]
    processes: int
    threads: int
    lease: float
    poll: float
    shutdown: float
    drain: bool
    holder: str = ""
    max_jobs: int = 0  # of a child, 0: no limit
    max_rss_mb: int = 0
    reload: bool = False

    @property
    def duration(self) -> timedelta:
        """How long a lease lasts."""
        return timedelta(seconds=self.lease)
