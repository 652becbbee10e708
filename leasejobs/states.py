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
    TIMED_OUT = "timed_out", _("timed out")
    LOST = "lost", _("lost")
    RELEASED = "released", _("released")
    INTERRUPTED = "interrupted", _("interrupted")
    SNOOZED = "snoozed", _("snoozed")
    CONTINUED = "continued", _("continued")
    CANCELLED = "cancelled", _("cancelled")
    PARKED = "parked", _("parked")


TERMINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
WAITING: Final = frozenset({State.SCHEDULED, State.RETRYABLE})

UNSTARTED: Final = WAITING | {State.PENDING}
_RUNNING: Final = frozenset({State.RUNNING})
_CANCELLED: Final = frozenset({State.CANCELLED})

# verb -> (the states it moves a job from, the states it may leave it in)
#
# Every exit from running but success leads to cancelled where a cancel was asked for meanwhile.
TRANSITIONS: Final[Mapping[str, tuple[frozenset[State], frozenset[State]]]] = {
    "promote": (WAITING, frozenset({State.PENDING})),
    "claim": (frozenset({State.PENDING}), _RUNNING),
    "put back": (frozenset({State.PENDING}), frozenset({State.SCHEDULED})),
    "complete": (_RUNNING, frozenset({State.SUCCEEDED})),
    "fail": (_RUNNING, frozenset({State.RETRYABLE, State.FAILED}) | _CANCELLED),
    "snooze": (_RUNNING, frozenset({State.SCHEDULED}) | _CANCELLED),
    "continue": (_RUNNING, frozenset({State.PENDING}) | _CANCELLED),
    "release": (_RUNNING, frozenset({State.PENDING}) | _CANCELLED),
    "interrupt": (
        _RUNNING,
        frozenset({State.PENDING, State.RETRYABLE, State.FAILED, State.PARKED}) | _CANCELLED,
    ),
    "recover": (
        _RUNNING,
        frozenset({State.PENDING, State.RETRYABLE, State.FAILED, State.PARKED}) | _CANCELLED,
    ),
    "expire": (UNSTARTED, _CANCELLED),
    "cancel": (UNSTARTED | {State.PARKED}, _CANCELLED),
    "retry": (
        frozenset({State.FAILED, State.CANCELLED, State.PARKED}),
        frozenset({State.PENDING}),
    ),
    "park": (UNSTARTED, frozenset({State.PARKED})),
    "park running": (_RUNNING, frozenset({State.PARKED}) | _CANCELLED),
}
