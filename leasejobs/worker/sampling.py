"""Gauges read from the database when the worker is scraped: seldom, briefly, on a connection of
their own, and without letting the scrape wait for a database that does not answer."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import psycopg
from django.db import Error, connections
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from leasejobs import conf, metrics
from leasejobs.models import Job, Queue
from leasejobs.models.job import DEAD
from leasejobs.states import WAITING, State

KEEP_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 0.5
PING_KEEP_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 3
_STATEMENT_MS: Final = 2_000
_MOST: Final = 100_000
_MOST_HEADS: Final = 1_000

T = TypeVar("T")


class Sample(NamedTuple):
    """The queue at one instant, by the database's clock."""

    due: int
    oldest_due_age: float
    running_live: int
    running_expired: int
    scheduled: int
    dead: dict[State, int]
    queues_paused: int
    notification_queue_usage: float


class Asked(Generic[T]):
    """The answer to a question that may hang: kept for a while, asked by one thread at a time."""

    def __init__(
        self, ask: Callable[[], T], keep: float = KEEP_SECONDS, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._ask = ask
        self._keep = keep
        self._patience = patience
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_asking = False
        self._answer: T | None = None
        self._answered_at = float("-inf")

    def get(self) -> T | None:
        """Return an answer no older than `keep` seconds; None if there is none within patience."""
        with self._lock:
            if self._is_fresh():
                return self._answer
            if not self._is_asking:
                self._is_asking = True
                self._done.clear()
                threading.Thread(target=self._run, name="leasejobs-sampler", daemon=True).start()
        self._done.wait(self._patience)
        with self._lock:
            return self._answer if self._is_fresh() else None

    def _is_fresh(self) -> bool:
        # A failure is not kept as long: the database may be back.
        keep = self._keep if self._answer is not None else min(self._keep, PING_KEEP_SECONDS)
        return time.monotonic() - self._answered_at < keep

    def _run(self) -> None:
        answer: T | None = None
        try:
            answer = self._ask()
        except (Error, psycopg.Error):
            pass  # None says so: the scrape tells of it, and whoever works logs it
        finally:
            with self._lock:
                self._answer, self._answered_at = answer, time.monotonic()
                self._is_asking = False
                self._done.set()


class DatabaseGauges(Collector):
    """What `sample` found, for a registry."""

    def __init__(self, asked: Asked[Sample]) -> None:
        self._asked = asked

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges; without an answer only that the database is not up."""
        found = self._asked.get()
        yield _gauge(metrics.DATABASE_UP, found is not None)
        if found is None:
            return
        yield _gauge(metrics.JOBS_DUE, found.due)
        yield _gauge(metrics.OLDEST_DUE_AGE, found.oldest_due_age)
        yield _gauge(metrics.JOBS_RUNNING_LIVE, found.running_live)
        yield _gauge(metrics.JOBS_RUNNING_EXPIRED, found.running_expired)
        yield _gauge(metrics.JOBS_SCHEDULED, found.scheduled)
        dead = _family(metrics.JOBS_DEAD)
        for state, count in sorted(found.dead.items()):
            dead.add_metric([state.name.lower()], count)
        yield dead
        yield _gauge(metrics.QUEUES_PAUSED, found.queues_paused)
        yield _gauge(metrics.NOTIFICATION_QUEUE_USAGE, found.notification_queue_usage)


def ping() -> bool:
    """Return True once the database has answered; raise its error if it does not."""
    _read("SELECT 1")
    return True


def sample() -> Sample:
    """Ask for all of it in one statement."""
    due, age, live, expired, scheduled, dead, paused, usage = _read(_SAMPLE)
    counts = dict.fromkeys(DEAD, 0) | {State(int(state)): count for state, count in dead.items()}
    return Sample(due, age, live, expired, scheduled, counts, paused, usage)


def _read(statement: str) -> tuple[Any, ...]:
    """Return the only row of a statement, by a session that lives no longer than it."""
    connection = connections.create_connection(conf.database())
    # Its own: not one that a pool of the project would have to spare.
    options = {k: v for k, v in connection.settings_dict["OPTIONS"].items() if k != "pool"}
    options |= {"connect_timeout": _CONNECT_SECONDS, "tcp_user_timeout": _STATEMENT_MS + 1_000}
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}
    try:
        # In a transaction, or a pooler would hand these settings on to somebody else.
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute(_SETTINGS)
            cursor.execute(statement)
            row: tuple[Any, ...] = cursor.fetchone()
            return row
    finally:
        connection.close()


# Each count is made for one partial index; statistics of a young table would rather read all of
# it, finished rows included.
_SETTINGS: Final = f"""
SELECT set_config('statement_timeout', '{_STATEMENT_MS}', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('jit', 'off', true)
"""

_TABLE: Final = f'"{Job._meta.db_table}"'
_PENDING: Final = tuple(
    f"state = {State.PENDING:d} AND {stream}"
    for stream in ("crashes = 0 AND lock_key = ''", "crashes = 0 AND lock_key <> ''", "crashes > 0")
)
_IS_WAITING: Final = f"state IN ({', '.join(str(int(state)) for state in sorted(WAITING))})"
_IS_DEAD: Final = f"state IN ({', '.join(str(int(state)) for state in sorted(DEAD))})"


def _count(condition: str) -> str:
    return (
        f"(SELECT count(*) FROM (SELECT FROM {_TABLE} WHERE {condition} LIMIT {_MOST}) AS counted)"
    )


def _oldest(stream: str) -> str:
    """Return SQL for the least `due_at` of a stream: one probe for each queue and priority."""
    return f"""
    (WITH RECURSIVE head AS (
        (SELECT queue, priority, due_at FROM {_TABLE} WHERE {stream}
         ORDER BY queue, priority, due_at, id LIMIT 1)
        UNION ALL
        SELECT following.* FROM head, LATERAL (
            SELECT queue, priority, due_at FROM {_TABLE}
            WHERE {stream} AND (queue, priority) > (head.queue, head.priority)
            ORDER BY queue, priority, due_at, id LIMIT 1) AS following
    ) SELECT min(due_at) FROM (SELECT due_at FROM head LIMIT {_MOST_HEADS}) AS heads)"""


_WAITING_DUE: Final = f"{_IS_WAITING} AND due_at <= STATEMENT_TIMESTAMP()"
_OLDEST_WAITING: Final = (
    f"(SELECT due_at FROM {_TABLE} WHERE {_WAITING_DUE} ORDER BY due_at, id LIMIT 1)"
)
_OLDEST_DUE: Final = ", ".join([*map(_oldest, _PENDING), _OLDEST_WAITING])
_SAMPLE: Final = f"""
SELECT
    LEAST({_MOST}, {" + ".join(map(_count, (*_PENDING, _WAITING_DUE)))}),
    COALESCE(GREATEST(0,
        EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP() - LEAST({_OLDEST_DUE}))), 0)::float8,
    running.live, running.total - running.live,
    {_count(f"{_IS_WAITING} AND due_at > STATEMENT_TIMESTAMP()")},
    (SELECT COALESCE(json_object_agg(state, count), '{{}}') FROM (
        SELECT state, count(*) FROM (
            SELECT state FROM {_TABLE} WHERE {_IS_DEAD} ORDER BY id DESC LIMIT {_MOST}) AS newest
        GROUP BY state) AS dead),
    (SELECT count(*) FROM "{Queue._meta.db_table}" WHERE paused_at IS NOT NULL),
    pg_notification_queue_usage()
FROM (
    SELECT count(*) AS total,
        count(*) FILTER (WHERE lease_expires_at > STATEMENT_TIMESTAMP()) AS live
    FROM (SELECT lease_expires_at FROM {_TABLE} WHERE state = {State.RUNNING:d} LIMIT {_MOST})
        AS leased) AS running
"""


def _family(line: metrics.Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(line.name, line.help, labels=line.labels)


def _gauge(line: metrics.Metric, value: float) -> GaugeMetricFamily:
    family = _family(line)
    family.add_metric([], float(value))
    return family
