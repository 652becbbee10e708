"""The tables of the core app."""

from leasejobs.models.attempt import Attempt
from leasejobs.models.dead import FailedJob, ParkedJob
from leasejobs.models.job import Job, KeyScope
from leasejobs.models.operating import OperatorAction, Queue, Schedule, Worker

__all__ = [
    "Attempt",
    "FailedJob",
    "Job",
    "KeyScope",
    "OperatorAction",
    "ParkedJob",
    "Queue",
    "Schedule",
    "Worker",
]
