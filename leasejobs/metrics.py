"""What is measured, in prometheus-client's default registry; `METRICS` is the table of it.

Everything is added per batch: one call for each label set. Labels come from closed sets only: a
name that is in none of them counts as `other`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client import Counter, Gauge, Histogram

OTHER: Final = "other"
_LONGEST_NAME: Final = 200


class Metric(NamedTuple):
    """One line of the reference."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


METRICS: Final[dict[str, Metric]] = {}


class Names:
    """A set of label values that may grow to a limit: those `knows` tells of, and `limit` more."""

    def __init__(self, limit: int, knows: Callable[[str], bool] = lambda name: False) -> None:
        self.knows = knows
        self._room = limit
        self._admitted: set[str] = set()

    def admit(self, name: str) -> str:
        """Return `name`, or OTHER if the set is full and the name is new to it, or long."""
        if name in self._admitted:
            return name
        if len(name) > _LONGEST_NAME:
            return OTHER
        if not self.knows(name):
            if self._room <= 0:
                return OTHER
            self._room -= 1
        self._admitted.add(name)
        return name


# `knows` is the registry's, set when the app is ready: a row may name a task nobody has.
TASKS: Final = Names(100)
QUEUES: Final = Names(500)
_SETS: Final = {"task": TASKS, "queue": QUEUES}


class BatchHistogram(Histogram):
    """A histogram that takes a batch for about the price of one observation."""

    def observe_many(self, amounts: Sequence[float]) -> None:
        """Observe every amount."""
        # Not public, but the same since 2018: with one call each, two histograms cost 5.4 us a
        # job. A test compares the two ways.
        counts: dict[int, int] = {}
        for amount in amounts:
            at = bisect_left(self._upper_bounds, amount)
            counts[at] = counts.get(at, 0) + 1
        self._sum.inc(sum(amounts))
        for at, count in counts.items():
            self._buckets[at].inc(count)


class Children:
    """The children of one labelled metric, remembered by the values they were asked for with."""

    def __init__(self, metric: Any, labels: tuple[str, ...]) -> None:
        self._metric = metric
        self._sets = [_SETS.get(label) for label in labels]
        self._known: dict[tuple[str, ...], Any] = {}

    def of(self, *values: str) -> Any:
        """Return the child for these label values, in the order of the labels."""
        found = self._known.get(values)
        if found is None:
            admitted = tuple(
                value if names is None else names.admit(value)
                for value, names in zip(values, self._sets, strict=True)
            )
            found = self._metric.labels(*admitted)
            if admitted == values:  # or this memory would have no bound
                self._known[values] = found
        return found


def _declare(name: str, kind: str, help_text: str, *labels: str) -> tuple[str, str, list[str]]:
    METRICS[name] = Metric(name, kind, labels, help_text)
    return name, help_text, list(labels)


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(*_declare(name, "counter", help_text, *labels))


def _counters(name: str, help_text: str, *labels: str) -> Children:
    return Children(_counter(name, help_text, *labels), labels)


def _histograms(name: str, help_text: str, *labels: str, buckets: Sequence[float]) -> Children:
    declared = _declare(name, "histogram", help_text, *labels)
    return Children(BatchHistogram(*declared, buckets=buckets), labels)


def _sampled(name: str, help_text: str, *labels: str) -> Metric:
    _declare(name, "gauge", help_text, *labels)
    return METRICS[name]


_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200)

RUNS: Final = _counters(
    "leasejobs_runs_total", "Attempts that ended, by how.", "queue", "task", "outcome"
)
RETRIES: Final = _counters(
    "leasejobs_retries_total", "Attempts that failed and will be followed by another.",
    "queue", "task",
)  # fmt: skip
RUN_SECONDS: Final = _histograms(
    "leasejobs_run_seconds", "How long task bodies ran.",
    "queue", "task", buckets=(0.001, *_BUCKETS),
)  # fmt: skip
QUEUE_WAIT_SECONDS: Final = _histograms(
    "leasejobs_queue_wait_seconds", "How long after it was due a job was claimed.",
    "queue", buckets=_BUCKETS,
)  # fmt: skip
RECOVERIES: Final = _counters(
    "leasejobs_recoveries_total", "Runs taken back from a dead or silent holder.", "cause"
)
RECOVERY_SECONDS: Final = _histograms(
    "leasejobs_recovery_seconds",
    "How long after its lease expired, or its process was seen dead, a run was taken back.",
    "cause", buckets=_BUCKETS,
)  # fmt: skip
LEASE_CONFLICTS: Final = _counter(
    "leasejobs_lease_conflicts_total", "Leases that their holder could not renew in time."
)
STALE_COMMITS_REJECTED: Final = _counter(
    "leasejobs_stale_commits_rejected_total", "Outcomes refused because their lease was gone."
)
LISTENER_RECONNECTS: Final = _counter(
    "leasejobs_listener_reconnects_total", "Times a worker lost its LISTEN session."
)
LISTENERS_CONNECTED: Final = Gauge(
    *_declare(
        "leasejobs_listeners_connected", "gauge", "Worker processes whose LISTEN session is up."
    ),
    multiprocess_mode="livesum",
)

# Sampled from the database when the worker's own port is scraped: see worker/sampling.py.
DATABASE_UP: Final = _sampled(
    "leasejobs_database_up", "1 if the database answered the last sample, else 0."
)
JOBS_DUE: Final = _sampled(
    "leasejobs_jobs_due", "Jobs that may start now, counted up to 100,000."
)  # fmt: skip
OLDEST_DUE_AGE: Final = _sampled(
    "leasejobs_oldest_due_age_seconds", "For how long the oldest due job has been due; 0 if none."
)
JOBS_RUNNING_LIVE: Final = _sampled(
    "leasejobs_jobs_running_live", "Running jobs whose lease holds, counted up to 100,000."
)
JOBS_RUNNING_EXPIRED: Final = _sampled(
    "leasejobs_jobs_running_expired",
    "Running jobs whose lease has run out, counted up to 100,000.",
)
JOBS_SCHEDULED: Final = _sampled(
    "leasejobs_jobs_scheduled",
    "Jobs that wait for a later time, retries included, counted up to 100,000.",
)
JOBS_DEAD: Final = _sampled(
    "leasejobs_jobs_dead",
    "Jobs kept as failed, cancelled or parked, of the newest 100,000 of them.", "state",
)  # fmt: skip
QUEUES_PAUSED: Final = _sampled("leasejobs_queues_paused", "Queues an operator has paused.")
NOTIFICATION_QUEUE_USAGE: Final = _sampled(
    "leasejobs_notification_queue_usage", "How full the server's NOTIFY queue is, from 0 to 1."
)
