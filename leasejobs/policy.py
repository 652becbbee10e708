"""Decisions that need no database: backoff, and what becomes of a row whose holder is gone.

Pure functions of a row's own snapshot; randomness and time come in as arguments.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from leasejobs.outcomes import (
    Continued,
    Failed,
    Failure,
    Outcome,
    Parked,
    Released,
    Snoozed,
    Succeeded,
)
from leasejobs.states import AttemptOutcome, State

ON_CRASH: Final = ("retry", "park")
LONGEST_DELAY: Final = timedelta(days=365)


class LenientDecoder(json.JSONDecoder):
    """Reads a policy that somebody damaged as none, so that its row can still be moved."""

    def decode(self, s: str, *args: Any) -> Any:
        """Return the value, or None where Python cannot hold it (digits, depth)."""
        try:
            return super().decode(s, *args)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: `base * 2 ** (n - 1)`, at most `cap`, less up to `jitter` of itself.

    `jitter` is a share from 0 to 1 and only ever shortens a delay, so the cap holds.
    """

    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.base <= self.cap <= LONGEST_DELAY:
            raise ValueError(f"Backoff needs 0 <= base <= cap <= 365 days, not {self!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff needs a jitter from 0 to 1, not {self.jitter!r}")

    def delay(self, failures: int, draw: float) -> timedelta:
        """Return the wait after the `failures`-th failure; `draw` is uniform on [0, 1)."""
        # The exponent is clamped before it is used: 2.0 ** 1100 raises OverflowError.
        doublings = min(max(failures, 1) - 1, 40)
        seconds = min(self.base.total_seconds() * 2.0**doublings, self.cap.total_seconds())
        return timedelta(seconds=seconds * (1 - self.jitter * draw))

    def to_json(self) -> dict[str, float]:
        """Return the form a job's row keeps."""
        return {
            "base": self.base.total_seconds(),
            "cap": self.cap.total_seconds(),
            "jitter": self.jitter,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Backoff":
        """Read what a row keeps; a row somebody damaged gets the default, never an error."""
        try:
            return cls(
                timedelta(seconds=value["base"]), timedelta(seconds=value["cap"]), value["jitter"]
            )
        except (TypeError, KeyError, ValueError, OverflowError):
            return cls()


class Row(Protocol):
    """What a decision reads of a job."""

    attempts: int
    max_attempts: int
    crashes: int
    max_crashes: int
    interruptions: int
    on_crash: str
    backoff: Any
    checkpoint: Any
    cancel_requested_at: Any


@dataclass(frozen=True, slots=True)
class Move:
    """Where a job goes as its attempt ends: its state, its budgets, and what is recorded."""

    outcome: AttemptOutcome
    state: State
    attempts: int
    crashes: int
    interruptions: int
    delay: timedelta = timedelta(0)
    failure: Failure | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def after(outcome: Outcome, row: Row, draw: float) -> Move:
    """The holder reports how its attempt ended."""
    return _unless_cancelled(_after(outcome, row, draw), row)


def _after(outcome: Outcome, row: Row, draw: float) -> Move:
    match outcome:
        case Succeeded(result):
            return _move(row, outcome.outcome, State.SUCCEEDED, columns={"result": result})
        case Failed(failure, delay, terminal):
            if terminal or row.attempts >= row.max_attempts:
                return _move(row, outcome.outcome, State.FAILED, failure=failure)
            if delay is None:
                delay = Backoff.from_json(row.backoff).delay(row.attempts, draw)
            return _move(row, outcome.outcome, State.RETRYABLE, failure=failure, delay=delay)
        case Snoozed(delay):
            refunded = max(row.attempts - 1, 0)
            return _move(row, outcome.outcome, State.SCHEDULED, attempts=refunded, delay=delay)
        case Continued(checkpoint):
            kept = {"checkpoint": checkpoint}
            if checkpoint != row.checkpoint:
                return _move(
                    row, outcome.outcome, State.PENDING, columns=kept,
                    attempts=0, crashes=0, interruptions=0,
                )  # fmt: skip
            refunded = max(row.attempts - 1, 0)
            return _move(row, outcome.outcome, State.PENDING, columns=kept, attempts=refunded)
        case Parked(failure):
            return _move(row, outcome.outcome, State.PARKED, failure=failure)
        case Released():
            refunded = max(row.attempts - 1, 0)
            return _move(row, outcome.outcome, State.PENDING, attempts=refunded)


def after_crash(
    row: Row, code: str, draw: float, outcome: AttemptOutcome = AttemptOutcome.LOST
) -> Move:
    """The holder died, ran over its time, or let its lease run out, and the body may have begun."""
    return _unless_cancelled(
        _crashed(row, outcome, Failure(str(code)), draw, row.interruptions), row
    )


def after_interrupt(row: Row, max_interruptions: int, draw: float) -> Move:
    """The body was stopped midway on purpose (a shutdown); past the bound it is a crash."""
    return _unless_cancelled(_interrupted(row, max_interruptions, draw), row)


def _unless_cancelled(move: Move, row: Row) -> Move:
    """Whatever but success ends a run somebody asked to cancel, ends the job."""
    if row.cancel_requested_at is None or move.state == State.SUCCEEDED:
        return move
    told = move.outcome in _TELLING
    return replace(
        move,
        outcome=move.outcome if told else AttemptOutcome.CANCELLED,
        state=State.CANCELLED,
        failure=move.failure or Failure("cancelled"),
    )


# What is told of an attempt although its job was cancelled; of others only the cancel is.
_TELLING: Final = frozenset(
    {AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.TIMED_OUT, AttemptOutcome.PARKED}
)


def _interrupted(row: Row, max_interruptions: int, draw: float) -> Move:
    outcome, failure, times = (
        AttemptOutcome.INTERRUPTED,
        Failure("interrupted"),
        row.interruptions + 1,
    )
    if row.on_crash == "park":
        return _move(row, outcome, State.PARKED, failure=failure, interruptions=times)
    if times > max_interruptions:
        return _crashed(row, outcome, failure, draw, times)
    refunded = max(row.attempts - 1, 0)
    return _move(row, outcome, State.PENDING, attempts=refunded, interruptions=times)


def _crashed(
    row: Row, outcome: AttemptOutcome, failure: Failure, draw: float, interruptions: int
) -> Move:
    move = partial(
        _move, row, outcome, failure=failure, crashes=row.crashes + 1, interruptions=interruptions
    )
    if row.on_crash == "park":
        return move(State.PARKED)
    if row.crashes + 1 >= row.max_crashes or row.attempts >= row.max_attempts:
        return move(State.FAILED)
    if row.crashes == 0:  # the first crash is due at once
        return move(State.PENDING)
    return move(State.RETRYABLE, delay=Backoff.from_json(row.backoff).delay(row.crashes, draw))


def _move(
    row: Row,
    outcome: AttemptOutcome,
    state: State,
    *,
    delay: timedelta = timedelta(0),
    failure: Failure | None = None,
    columns: Mapping[str, Any] | None = None,
    attempts: int | None = None,
    crashes: int | None = None,
    interruptions: int | None = None,
) -> Move:
    return Move(
        outcome,
        state,
        row.attempts if attempts is None else attempts,
        row.crashes if crashes is None else crashes,
        row.interruptions if interruptions is None else interruptions,
        delay,
        failure,
        columns or {},
    )
