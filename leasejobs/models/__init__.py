"""The tables of the core app."""

from leasejobs.models.attempt import Attempt
from leasejobs.models.job import Job, KeyScope

__all__ = ["Attempt", "Job", "KeyScope"]
