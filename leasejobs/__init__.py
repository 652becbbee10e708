"""leasejobs: background jobs that survive their process and are not done twice.

The public names are imported on first use, so that importing the package touches no model, no
setting and no network.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasejobs.context import JobContext as JobContext
    from leasejobs.declare import Task as Task
    from leasejobs.declare import task as task
    from leasejobs.enqueue import Enqueued as Enqueued
    from leasejobs.enqueue import NewJob as NewJob
    from leasejobs.enqueue import enqueue_many as enqueue_many
    from leasejobs.exceptions import (
        DuplicateKeyRace as DuplicateKeyRace,
    )
    from leasejobs.exceptions import (
        InvalidArguments as InvalidArguments,
    )
    from leasejobs.exceptions import (
        InvalidSchedule as InvalidSchedule,
    )
    from leasejobs.exceptions import (
        LeaseJobsError as LeaseJobsError,
    )
    from leasejobs.exceptions import (
        LeaseLost as LeaseLost,
    )
    from leasejobs.exceptions import (
        NotConfigured as NotConfigured,
    )
    from leasejobs.exceptions import (
        OutcomeNotAllowed as OutcomeNotAllowed,
    )
    from leasejobs.exceptions import (
        UnfencedWrite as UnfencedWrite,
    )
    from leasejobs.exceptions import (
        UnknownTask as UnknownTask,
    )
    from leasejobs.fencing import FencedModel as FencedModel
    from leasejobs.fencing import Lease as Lease
    from leasejobs.outcomes import (
        Continue as Continue,
    )
    from leasejobs.outcomes import (
        Discard as Discard,
    )
    from leasejobs.outcomes import (
        Retry as Retry,
    )
    from leasejobs.outcomes import (
        Snooze as Snooze,
    )
    from leasejobs.policy import Backoff as Backoff
    from leasejobs.results import TaskResult as TaskResult
    from leasejobs.schedules import periodic as periodic

_HOMES = {
    "context": ("JobContext",),
    "declare": ("Task", "task"),
    "enqueue": ("Enqueued", "NewJob", "enqueue_many"),
    "exceptions": (
        "DuplicateKeyRace", "InvalidArguments", "InvalidSchedule", "LeaseJobsError", "LeaseLost",
        "NotConfigured", "OutcomeNotAllowed", "UnfencedWrite", "UnknownTask",
    ),
    "fencing": ("FencedModel", "Lease"),
    "outcomes": ("Continue", "Discard", "Retry", "Snooze"),
    "policy": ("Backoff",),
    "results": ("TaskResult",),
    "schedules": ("periodic",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


if not TYPE_CHECKING:  # or every name would seem to exist

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
