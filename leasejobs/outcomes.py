"""What a task may answer, and how an attempt's end travels from its thread to the settler."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from leasejobs.states import AttemptOutcome

REASON_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Snooze:
    """Returned by a task: run me again after `delay`; the attempt is not charged."""

    delay: timedelta

    def __post_init__(self) -> None:
        if not isinstance(self.delay, timedelta) or self.delay < timedelta(0):
            raise ValueError(f"Snooze needs a timedelta that is not negative, not {self.delay!r}")


@dataclass(frozen=True, slots=True)
class Continue:
    """Returned by a task: this slice is done, run me again now from `checkpoint`.

    The attempt is not charged, and a checkpoint that differs from the stored one counts as
    durable progress: the attempt and crash budgets start afresh.
    """

    checkpoint: Any


class Retry(Exception):
    """Raised by a task: count a failure and try again after `delay` (None: the task's backoff)."""

    delay: timedelta | None = None

    def __init__(self, delay: timedelta | None = None) -> None:
        if delay is not None and (not isinstance(delay, timedelta) or delay < timedelta(0)):
            raise ValueError(f"Retry needs a timedelta that is not negative, not {delay!r}")
        self.delay = delay
        super().__init__("the task asked for a retry")


class Discard(Exception):
    """Raised by a task: fail for good with this reason code, `[a-z][a-z0-9_]{0,63}`."""

    code: str = "discarded"

    def __init__(self, code: str) -> None:
        if not isinstance(code, str) or not REASON_CODE.fullmatch(code):
            raise ValueError(f"Discard needs a code like 'card_expired', not {code!r}")
        self.code = code
        super().__init__(code)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended without success, safe to store: bounded, redacted, no locals."""

    code: str
    exception_path: str = ""
    detail: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The body returned a JSON value."""

    result: Any = None
    outcome = AttemptOutcome.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Failed:
    """The body raised. `delay` (None: the backoff) precedes the next attempt; `terminal`: none."""

    failure: Failure
    delay: timedelta | None = None
    terminal: bool = False
    outcome = AttemptOutcome.FAILED


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The body asked to wait."""

    delay: timedelta
    outcome = AttemptOutcome.SNOOZED


@dataclass(frozen=True, slots=True)
class Continued:
    """The body finished a slice."""

    checkpoint: Any
    outcome = AttemptOutcome.CONTINUED


@dataclass(frozen=True, slots=True)
class Parked:
    """The body may not go on until somebody has decided."""

    failure: Failure
    outcome = AttemptOutcome.PARKED


@dataclass(frozen=True, slots=True)
class Released:
    """The body never began: the row goes back uncharged."""

    outcome = AttemptOutcome.RELEASED


Outcome = Succeeded | Failed | Snoozed | Continued | Parked | Released
