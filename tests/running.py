"""Run a job the way a worker's thread does, in this thread: claim, run, write the outcome."""

from dataclasses import dataclass
from typing import Any

from leasejobs import claiming, executor, leases
from leasejobs.claiming import Stream
from leasejobs.fencing import Lease
from leasejobs.heartbeat import Held
from leasejobs.models import Job
from leasejobs.outcomes import Outcome
from tests.factories import HOLDER, LEASE, attempts_of, whole


@dataclass
class Run:
    """What one run left behind."""

    job: Job
    lease: Lease
    outcome: Outcome | None

    @property
    def row(self) -> dict[str, Any]:
        """The job's columns now."""
        return whole(self.job)

    @property
    def attempt(self) -> dict[str, Any]:
        """The columns of the attempt of this run."""
        [found] = [row for row in attempts_of(self.job) if row["epoch"] == self.lease.epoch]
        return found


def run_next(*, stopping: bool = False, stream: Stream = Stream.PLAIN) -> Run:
    """Claim the next job of the default queue, run it and write its outcome."""
    [(job, lease)] = claiming.claim_jobs(
        "default", holder=HOLDER, duration=LEASE, limit=1, stream=stream
    )
    outcome = executor.run(job, Held(lease), lambda: stopping)
    if outcome is not None:
        leases.end(lease, outcome)
    return Run(job, lease, outcome)
