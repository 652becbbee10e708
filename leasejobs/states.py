"""The states of a job and which verb moves a job between them: the one table of both.

The check constraint of `Job`, the partial indexes and the verbs read these names; a test
holds the table and the verbs together, pair by pair.
"""

from collections.abc import Mapping
from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class State(models.IntegerChoices):
    """Where a job stands; stored as a smallint."""

    SCHEDULED = 1, _("scheduled")
    PENDING = 2, _("pending")
    RUNNING = 3, _("running")
    RETRYABLE = 4, _("retryable")
    SUCCEEDED = 5, _("succeeded")
    FAILED = 6, _("failed")
    CANCELLED = 7, _("cancelled")
    PARKED = 8, _("parked")


class AttemptOutcome(models.TextChoices):
    """How one attempt ended."""

    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    LOST = "lost", _("lost")
    RELEASED = "released", _("released")
    INTERRUPTED = "interrupted", _("interrupted")
    SNOOZED = "snoozed", _("snoozed")
    CONTINUED = "continued", _("continued")


TERMINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
WAITING: Final = frozenset({State.SCHEDULED, State.RETRYABLE})

# verb -> (the states it moves a job from, the states it may leave it in)
TRANSITIONS: Final[Mapping[str, tuple[frozenset[State], frozenset[State]]]] = {
    "promote": (WAITING, frozenset({State.PENDING})),
    "claim": (frozenset({State.PENDING}), frozenset({State.RUNNING})),
    "complete": (frozenset({State.RUNNING}), frozenset({State.SUCCEEDED})),
    "fail": (frozenset({State.RUNNING}), frozenset({State.RETRYABLE, State.FAILED})),
    "snooze": (frozenset({State.RUNNING}), frozenset({State.SCHEDULED})),
    "continue": (frozenset({State.RUNNING}), frozenset({State.PENDING})),
    "release": (frozenset({State.RUNNING}), frozenset({State.PENDING})),
    "interrupt": (
        frozenset({State.RUNNING}),
        frozenset({State.PENDING, State.RETRYABLE, State.FAILED, State.PARKED}),
    ),
    "recover": (
        frozenset({State.RUNNING}),
        frozenset({State.PENDING, State.RETRYABLE, State.FAILED, State.PARKED}),
    ),
}
