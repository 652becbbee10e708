"""`task_started` and `task_finished` of django.tasks, sent where somebody listens.

They are sent after the claim and after the commit that ends the job. Django's own receivers only
log, which our events do already; for them alone no result is built, once per job.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from django.db import Error
from django.dispatch import Signal, receiver

from leasejobs import results, signals
from leasejobs.backend import LeaseBackend
from leasejobs.compat import task_finished, task_started
from leasejobs.models import Job
from leasejobs.states import TERMINAL

_OF_DJANGO = 1  # the receiver with which Django logs each of them


def is_heard(signal: Signal) -> bool:
    """Whether anybody but Django's own log listens."""
    return len(signal.receivers) > _OF_DJANGO


def started(job: Job) -> None:
    """Tell that an attempt begins; receivers run in the worker's thread before the body.

    The attempt does not depend on it: where the row cannot be told of, nothing is.
    """
    if not is_heard(task_started):
        return
    with contextlib.suppress(Error, RecursionError, TypeError, ValueError):
        task_started.send_robust(LeaseBackend, task_result=results.result_of_job(job))


@receiver(signals.attempts_ended, dispatch_uid="leasejobs.task_signals")
def finished(attempts: Sequence[Any], **_: Any) -> None:
    """Tell of each job that reached its end with an attempt; retries are no end."""
    if not is_heard(task_finished):
        return
    for attempt in attempts:
        if attempt.state in TERMINAL:
            result = results.load(str(attempt.job_id))
            task_finished.send_robust(LeaseBackend, task_result=result)
