"""Which job this thread or async task is running, so that what it enqueues can say so."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol


class _Job(Protocol):
    pk: int
    correlation_id: str


@dataclass(frozen=True, slots=True)
class Running:
    """The job whose body is running here."""

    job: _Job

    @property
    def job_id(self) -> int:
        """The parent of jobs enqueued from here."""
        return self.job.pk

    @property
    def correlation_of_children(self) -> str:
        """What jobs enqueued from here inherit: the chain's id, or the name of its root."""
        return self.job.correlation_id or f"job:{self.job.pk}"


# Set by the executor around the body. Coroutines and `sync_to_async` inherit it; a thread that a
# task starts by itself does not, unless it is run in a copy of the context.
running_job: Final[ContextVar[Running | None]] = ContextVar("leasejobs_running", default=None)
