"""The errors leasejobs raises, all under `LeaseJobsError`."""


class LeaseJobsError(Exception):
    """The base of every error of this package."""


class LeaseLost(LeaseJobsError):
    """The row is no longer held under this lease; nothing of the holder's was written."""


class OutcomeNotAllowed(LeaseJobsError):
    """A task recorded an outcome where it cannot be kept, or recorded two."""


class UnfencedWrite(LeaseJobsError):
    """A statement inside `fenced()` would have written to a database the fence does not cover."""


class InvalidArguments(LeaseJobsError, ValueError):
    """`enqueue` was given something that cannot be stored; no row was written."""


class DuplicateKeyRace(LeaseJobsError):
    """A key was taken and freed again in every round of `enqueue`; nothing was written for it."""


class UnknownTask(LeaseJobsError, LookupError):
    """No task is registered under this name in this process."""


class NotConfigured(LeaseJobsError):
    """No alias in `TASKS` uses `LeaseBackend`, so there is nowhere to enqueue."""


class InvalidSchedule(LeaseJobsError, ValueError):
    """`@periodic` was given a schedule that can never be kept; nothing was declared."""
