"""Every event the package emits: `EVENTS`, the table of their levels, meanings and fields."""

from collections.abc import Mapping
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Final, NamedTuple

from leasejobs.states import AttemptOutcome


class Event(NamedTuple):
    """What a name in the log means."""

    levels: tuple[int, ...]  # more than one where it depends on what came of it
    meaning: str
    fields: tuple[str, ...]


_ATTEMPT: Final = (
    "job_id", "task", "queue", "epoch", "attempt", "state", "failure_code",
)  # fmt: skip
# WARNING where the job will be tried again, ERROR where it failed or waits for a decision.
_BY_STATE: Final = (DEBUG, WARNING, ERROR)

_OUTCOMES: Final[Mapping[AttemptOutcome, tuple[tuple[int, ...], str]]] = {
    AttemptOutcome.SUCCEEDED: ((DEBUG,), "The task returned, and the job is done."),
    AttemptOutcome.FAILED: (_BY_STATE, "The task raised, or what it returned is no result."),
    AttemptOutcome.TIMED_OUT: (_BY_STATE, "The task ran past its timeout and was stopped."),
    AttemptOutcome.LOST: (_BY_STATE, "The run was taken back from a dead or silent holder."),
    AttemptOutcome.RELEASED: ((DEBUG,), "The job was put back before its body began."),
    AttemptOutcome.INTERRUPTED: (_BY_STATE, "The body was stopped midway by a shutdown."),
    AttemptOutcome.SNOOZED: ((DEBUG,), "The task asked to be run again later."),
    AttemptOutcome.CONTINUED: ((DEBUG,), "The task asked to be continued from its checkpoint."),
    AttemptOutcome.CANCELLED: ((DEBUG,), "The attempt ended after a cancel was asked for."),
    AttemptOutcome.PARKED: ((ERROR,), "The job waits for a person's decision."),
}

EVENTS: Final[Mapping[str, Event]] = {
    **{
        f"job_{outcome.value}": Event(levels, meaning, _ATTEMPT)
        for outcome, (levels, meaning) in _OUTCOMES.items()
    },
    "lease_lost": Event(
        (WARNING,),
        "A holder was too late: its lease is gone, and what it reported was refused.",
        ("job_id", "epoch", "holder", "refused"),
    ),
    "job_recovered": Event(
        (WARNING,),
        "A running job was taken back from a dead or silent holder.",
        ("job_id", "holder", "cause", "state"),
    ),
    "recovery_failed": Event(
        (ERROR,),
        "A job could not be taken back this time; the next sweep tries again.",
        ("job_id", "reason"),
    ),
    "raised_after_completion": Event(
        (ERROR,),
        "A task raised after it had completed itself; the job stays succeeded.",
        ("job_id", "task", "exception_path", "detail"),
    ),
    "task_unknown": Event(
        (WARNING,),
        "This process has no task of that name; its jobs were put back for later, uncharged.",
        ("task", "reason"),
    ),
    "jobs_expired": Event(
        (INFO,), "Jobs were cancelled because their deadline passed before a start.", ("job_ids",)
    ),
    "jobs_operated": Event(
        (INFO,),
        "Somebody moved jobs, or paused or resumed a queue.",
        ("verb", "target", "targets", "actor", "reason"),
    ),
    "on_dead_unreadable": Event(
        (ERROR,),
        "A job ended, and the job that should tell of it could not be made from its row.",
        ("job_id", "task", "reason"),
    ),
    "schedule_failed": Event(
        (ERROR,),
        "A schedule's job could not be enqueued; it is tried again.",
        ("schedule", "task", "reason", "retry_seconds"),
    ),
    "worker_started": Event((INFO,), "A supervisor began.", ("processes", "pid")),
    "worker_stopped": Event((INFO,), "A supervisor ended as it was told to.", ("pid",)),
    "child_started": Event((INFO,), "A supervisor started a child.", ("holder", "pid")),
    "child_died": Event(
        (ERROR,),
        "A child ended by itself; what it held is settled and another is started.",
        ("holder", "pid", "status"),
    ),
    "child_killed": Event(
        (ERROR,),
        "A supervisor killed a child: a job ran past its timeout and did not stop when told.",
        ("holder", "reason", "job_ids"),
    ),
    "child_recycled": Event(
        (INFO,), "A child ends for another to take over, as it was told to.", ("holder", "reason")
    ),
    "lane_failed": Event(
        (ERROR,),
        "The code of a lane raised; the lane goes on, and a lease it held runs out.",
        ("lane", "exception_path", "detail"),
    ),
    "shutdown_began": Event(
        (INFO,), "A supervisor was told to stop and lets its children finish.", ("children",)
    ),
    "metrics_listening": Event(
        (INFO,), "The supervisor answers /healthz, /readyz and /metrics.", ("port",)
    ),
    "metrics_lost": Event(
        (WARNING,), "What a dead child had counted could not be read.", ("holder", "reason")
    ),
    "listener_connected": Event((DEBUG,), "A worker listens for notifications.", ()),
    "listener_lost": Event(
        (WARNING,),
        "A worker lost its LISTEN session; it polls until it has another.",
        ("reason", "retry_seconds"),
    ),
    "database_unavailable": Event(
        (WARNING,),
        "A round failed on the database; the child claims nothing until one succeeds.",
        ("reason", "retry_seconds"),
    ),
    "outcomes_delayed": Event(
        (WARNING,),
        "Outcomes could not be written; they are kept and tried again.",
        ("reason", "count"),
    ),
    "outcome_given_up": Event(
        (ERROR,),
        "The database refused an outcome again and again; the job will be recovered.",
        ("reason", "job_id"),
    ),
}
