"""A schedule of every second, and what a process does that fires it.

With `LEASEJOBS_TEST_DIE` in its environment, the process kills itself between the statements of
the first slot it fires and their COMMIT.
"""

import os
import signal
import time
from typing import Any

from leasejobs import JobContext, periodic, schedules, task
from tests.tasks import QUICK
from tests.worker.tasks import tell


@periodic("* * * * * *", name="every-second", catch_up="all")
@task(takes_context=True, backoff=QUICK, max_crashes=100)
def tick(context: JobContext) -> None:
    """Tell the slot, and complete in the same fenced transaction."""
    with context.fenced():
        tell(context.job.metadata["slot"])
        context.complete()


def die_before_commit() -> None:
    """Let the first slot that is fired be this process' last."""
    enqueue_many = schedules.enqueue_many

    def enqueue_and_die(jobs: Any) -> Any:
        enqueue_many(jobs)
        os.kill(os.getpid(), signal.SIGKILL)

    schedules.enqueue_many = enqueue_and_die


def main() -> None:
    """Fire what is due, until killed."""
    if os.environ.get("LEASEJOBS_TEST_DIE"):
        die_before_commit()
    parent = os.getppid()
    while os.getppid() == parent:  # not longer than the suite, if that is killed
        schedules.fire_due()
        # Late by a little at most, so that several are at the same slot at the same time.
        time.sleep(min(1.0, schedules.seconds_to_next_slot()))
