"""The tables of the core app."""

from leasejobs.models.attempt import Attempt
from leasejobs.models.job import Job, KeyScope
from leasejobs.models.operating import OperatorAction, Queue, Schedule, Worker

__all__ = ["Attempt", "Job", "KeyScope", "OperatorAction", "Queue", "Schedule", "Worker"]
