"""The producer's verb: put jobs into the table, in the caller's transaction, once per key."""

import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import OperationalError, connections, transaction
from django.db.models import Q

from leasejobs import conf, signals
from leasejobs.exceptions import DuplicateKeyRace, InvalidArguments
from leasejobs.models import Job, KeyScope
from leasejobs.models.job import LONGEST_TIMEOUT, MOST
from leasejobs.sessions import after_commit, bounded_wait, is_wait_over
from leasejobs.states import TERMINAL, State

_CHUNK: Final = 5_000
_ROUNDS: Final = 3
_CROSSED_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """One job to be enqueued; made by `Task.prepare`, which has validated its arguments.

    `args` and `kwargs` are JSON texts. `priority` is as in django.tasks, from -100 to 100, larger
    first. At most one of `run_after` (an instant) and `delay` (counted by the database's clock)
    says that the job has to wait; at most one of `expires_at` and `expires_after` until when it
    may start. `on_dead` and `metadata` are JSON texts, too.
    """

    task: str
    queue: str
    priority: int
    args: str
    kwargs: str
    tenant: str = ""
    key: str = ""
    key_scope: str = KeyScope.ALWAYS
    run_after: datetime | None = None
    delay: timedelta | None = None
    max_attempts: int
    max_crashes: int
    on_crash: str
    backoff: str
    lock_key: str = ""
    expires_at: datetime | None = None
    expires_after: timedelta | None = None
    timeout_seconds: float | None = None
    on_dead: str = "null"
    correlation_id: str = ""
    parent_id: int | None = None
    metadata: str = "null"


class Enqueued(NamedTuple):
    """What became of one `NewJob`: its row, and whether this call created it."""

    job_id: int
    created: bool
    state: State
    created_at: datetime


def enqueue_many(jobs: Iterable[NewJob]) -> list[Enqueued]:
    """Insert jobs and return what became of each, in the order given.

    Joins the caller's transaction on the alias `LEASEJOBS["DATABASE"]`; without one, a call of
    more than one statement is a transaction of its own, so all are enqueued or none. A job whose
    key is taken, by a row in the table or by an earlier one of this call, is not inserted: its
    `Enqueued` names the row that has the key, with `created=False`, and that row is not changed.
    Rows are inserted in the order of their keys, so that crossing calls do not deadlock; those
    of one statement (5,000 at most) are numbered in the order given. Workers are notified after
    commit.

    Under REPEATABLE READ or SERIALIZABLE, a key taken after the transaction's snapshot raises
    OperationalError (SQLSTATE 40001), as PostgreSQL has it; run the transaction again.
    Raises `DuplicateKeyRace` if a key was taken and freed again in three rounds.
    """
    rows = list(jobs)
    if not rows:
        return []
    for row in rows:
        if not isinstance(row, NewJob):
            raise InvalidArguments(f"enqueue_many takes what task.prepare(…) returns, not {row!r}")
    if conf.load().REQUIRE_TENANT and not all(row.tenant for row in rows):
        raise InvalidArguments("REQUIRE_TENANT is set, and a job names no tenant")
    alias = conf.database()
    found: list[Enqueued | None] = [None] * len(rows)
    if len(rows) <= _CHUNK and not any(row.key for row in rows):
        _insert(alias, rows, range(len(rows)), found)
    else:
        with transaction.atomic(using=alias):
            _insert_keyed(alias, rows, found)
    _announce(alias, rows, found)
    return [item for item in found if item is not None]


def insert_on_dead(row: Job, reason: str) -> None:
    """Enqueue what `row` asks for now that it failed or is parked; joins the transaction.

    By the policy its row keeps, so that any worker of any version can do it. The job has the
    tenant of the dead one, `kwargs={"job_id": …, "reason": …}`, and a key of job, epoch and
    revision: told of the same end twice, it is enqueued once; an operator may park, retry and park
    a job that nobody claimed in between. A policy somebody damaged is skipped, with an
    ERROR event, rather than hold up the row's own end.
    """
    if not row.on_dead:
        return
    alias = conf.database()
    try:
        handler = _handler_of(row, reason)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        signals.worker_changed.send_robust(
            sender=Job, event="on_dead_unreadable", level=logging.ERROR,
            fields={"job_id": row.pk, "task": row.task, "reason": repr(error)},
        )  # fmt: skip
        return
    found: list[Enqueued | None] = [None]
    _insert(alias, [handler], [0], found)
    _announce(alias, [handler], found)


def _handler_of(row: Job, reason: str) -> NewJob:
    policy: Any = row.on_dead
    timeout = policy.get("timeout_seconds")
    if timeout is not None and not 0 < timeout <= LONGEST_TIMEOUT:
        raise ValueError(f"no timeout: {timeout!r}")
    return NewJob(
        task=str(policy["task"]),
        queue=str(policy["queue"]),
        priority=max(-100, min(100, int(policy.get("priority", 0)))),
        args="[]",
        kwargs=json.dumps({"job_id": row.pk, "reason": reason}),
        tenant=row.tenant,
        key=f"dead:{row.pk}:{row.epoch}:{row.revision}",
        max_attempts=max(1, min(MOST, int(policy["max_attempts"]))),
        max_crashes=max(1, min(MOST, int(policy["max_crashes"]))),
        on_crash="park" if policy.get("on_crash") == "park" else "retry",
        backoff=json.dumps(policy.get("backoff", {})),
        timeout_seconds=None if timeout is None else float(timeout),
        correlation_id=row.correlation_id,
        parent_id=row.pk,
    )


def _insert_keyed(alias: str, rows: Sequence[NewJob], found: list[Enqueued | None]) -> None:
    order = sorted(range(len(rows)), key=lambda index: _identity(rows[index]))
    for start in range(0, len(order), _CHUNK):
        places = order[start : start + _CHUNK]
        if not any(_insert_or_find(alias, rows, places, found) for _ in range(_ROUNDS)):
            missing = next(place for place in places if found[place] is None)
            raise DuplicateKeyRace(
                f"the key {rows[missing].key!r} was taken and freed again {_ROUNDS} times"
            )


def _insert_or_find(
    alias: str, rows: Sequence[NewJob], places: Sequence[int], found: list[Enqueued | None]
) -> bool:
    """Insert jobs in the order of their keys, or find who has the key; False, and nothing done.

    A key that was taken at the insert and free at the look is inserted on its own, after keys that
    come later in the order. A waits for B there while B waits for one of those: so it waits only
    briefly, gives all its keys up, and the caller begins again.
    """
    is_one = len(places) == 1  # and holds no other key while it waits
    missing = list(places)
    with (
        contextlib.suppress(_Crossed),
        contextlib.nullcontext() if is_one else transaction.atomic(using=alias),
    ):
        for number in range(_ROUNDS):
            if number == 0 or is_one:
                _insert(alias, rows, missing, found)
            else:
                _insert_out_of_order(alias, rows, missing, found)
            missing = [place for place in missing if found[place] is None]
            if missing:
                # A new statement, so a new snapshot under READ COMMITTED: it sees the winner.
                _find_existing(alias, rows, missing, found)
                missing = [place for place in missing if found[place] is None]
            if not missing:
                return True
        raise _Crossed
    for place in places:
        found[place] = None
    return False


class _Crossed(Exception):
    pass


def _insert_out_of_order(
    alias: str, rows: Sequence[NewJob], places: Sequence[int], found: list[Enqueued | None]
) -> None:
    try:
        with bounded_wait(alias, _CROSSED_SECONDS):
            _insert(alias, rows, places, found)
    except OperationalError as error:
        if not is_wait_over(error):
            raise
        raise _Crossed from error


def _identity(row: NewJob) -> tuple[str, str, str, str]:
    return row.key_scope, row.tenant, row.task, row.key


# Raw, for ON CONFLICT on partial indexes, and so that the database's clock decides what is due.
_INSERT_ONE: Final = f"""
INSERT INTO "{Job._meta.db_table}" AS job
    (task, queue, priority, tenant, args, kwargs, key, key_scope, state, due_at, created_at,
     max_attempts, max_crashes, on_crash, backoff, lock_key, deadline_at, timeout_seconds,
     on_dead, correlation_id, parent_id, metadata)
SELECT %s, %s, %s, %s, %s, %s, %s, %s,
    CASE WHEN due_at > STATEMENT_TIMESTAMP() THEN {State.SCHEDULED:d} ELSE {State.PENDING:d} END,
    due_at, STATEMENT_TIMESTAMP(), %s, %s, %s, %s, %s,
    COALESCE(%s::timestamptz, STATEMENT_TIMESTAMP() + %s::interval), %s,
    NULLIF(%s, 'null')::jsonb, %s, %s, NULLIF(%s, 'null')::jsonb
FROM (SELECT GREATEST(COALESCE(%s::timestamptz, STATEMENT_TIMESTAMP())
                      + COALESCE(%s::interval, '0'), STATEMENT_TIMESTAMP()) AS due_at) AS given
ON CONFLICT DO NOTHING
RETURNING id, state, created_at
"""

# Ids are drawn in the order given, rows inserted in the order of their keys. Two JSON texts carry
# everything: psycopg adapts an array element by element in Python, fifteen times for each row.
_INSERT: Final = f"""
WITH input AS MATERIALIZED (
    SELECT nextval((SELECT pg_get_serial_sequence('{Job._meta.db_table}', 'id'))) AS id, given.*
    FROM (
        SELECT job.*, policy.*,
            GREATEST(COALESCE(run_after, STATEMENT_TIMESTAMP()) + COALESCE(delay, '0'),
                     STATEMENT_TIMESTAMP()) AS due_at
        FROM json_to_recordset(%s) AS job
            (place int, shared int, key text, lock_key text, args jsonb, kwargs jsonb)
        JOIN json_to_recordset(%s) AS policy
            (number int, task text, queue text, priority int, tenant text, key_scope text,
             run_after timestamptz, delay interval, max_attempts int, max_crashes int,
             on_crash text, backoff jsonb, expires_at timestamptz, expires_after interval,
             timeout_seconds float8, on_dead jsonb, correlation_id text, parent_id bigint,
             metadata jsonb)
            ON policy.number = job.shared
        ORDER BY place
    ) AS given
), inserted AS (
    INSERT INTO "{Job._meta.db_table}"
        (id, task, queue, priority, tenant, args, kwargs, key, key_scope, state, due_at,
         created_at, max_attempts, max_crashes, on_crash, backoff, lock_key, deadline_at,
         timeout_seconds, on_dead, correlation_id, parent_id, metadata)
    SELECT id, task, queue, priority, tenant, args, kwargs, key, key_scope,
        CASE WHEN due_at > STATEMENT_TIMESTAMP()
             THEN {State.SCHEDULED:d} ELSE {State.PENDING:d} END,
        due_at, STATEMENT_TIMESTAMP(), max_attempts, max_crashes, on_crash, backoff, lock_key,
        COALESCE(expires_at, STATEMENT_TIMESTAMP() + expires_after), timeout_seconds,
        NULLIF(on_dead, 'null'), correlation_id, parent_id, NULLIF(metadata, 'null')
    FROM input
    -- Not by the database's collation: chunks are in the order of code points.
    ORDER BY key_scope COLLATE "C", tenant COLLATE "C", task COLLATE "C", key COLLATE "C", place
    ON CONFLICT DO NOTHING
    RETURNING id, state, created_at
)
SELECT place, id, state, created_at FROM input JOIN inserted USING (id)
"""


def _insert(
    alias: str, rows: Sequence[NewJob], places: Sequence[int], found: list[Enqueued | None]
) -> None:
    if len(places) == 1:
        (place,) = places
        found[place] = _insert_one(alias, rows[place])
        return
    policies: dict[tuple[Any, ...], int] = {}
    jobs = []
    for place in places:
        row = rows[place]
        shared = policies.setdefault(_policy(row), len(policies))
        key = json.dumps(row.key) if row.key else '""'
        lock_key = json.dumps(row.lock_key) if row.lock_key else '""'
        jobs.append(
            f'{{"place":{place},"shared":{shared},"key":{key},"lock_key":{lock_key},'
            f'"args":{row.args},"kwargs":{row.kwargs}}}'
        )
    shared_texts = [
        f'{{"number":{number},"backoff":{backoff},"on_dead":{on_dead},"metadata":{metadata},'
        f"{json.dumps(dict(named), default=str)[1:]}"
        for (backoff, on_dead, metadata, *named), number in policies.items()
    ]
    with connections[alias].cursor() as cursor:
        cursor.execute(_INSERT, [f"[{','.join(jobs)}]", f"[{','.join(shared_texts)}]"])
        for place, pk, state, created_at in cursor.fetchall():
            found[place] = Enqueued(pk, True, _STATES[state], created_at)


def _insert_one(alias: str, row: NewJob) -> Enqueued | None:
    with connections[alias].cursor() as cursor:
        cursor.execute(_INSERT_ONE, [
            row.task, row.queue, -row.priority, row.tenant, row.args, row.kwargs, row.key,
            row.key_scope, row.max_attempts, row.max_crashes, row.on_crash, row.backoff,
            row.lock_key, row.expires_at, row.expires_after,  # type: ignore[list-item]
            row.timeout_seconds, row.on_dead, row.correlation_id, row.parent_id, row.metadata,
            row.run_after, row.delay,  # type: ignore[list-item]  # the stubs miss timedelta
        ])  # fmt: skip
        for pk, state, created_at in cursor.fetchall():
            return Enqueued(pk, True, _STATES[state], created_at)
    return None


_STATES: Final = {int(state): state for state in State}


def _policy(row: NewJob) -> tuple[Any, ...]:
    """Everything of a job that jobs of one call as a rule share; three JSON texts come first."""
    return (
        row.backoff,
        row.on_dead,
        row.metadata,
        ("task", row.task),
        ("queue", row.queue),
        ("priority", -row.priority),
        ("tenant", row.tenant),
        ("key_scope", row.key_scope),
        ("run_after", row.run_after),
        ("delay", _interval(row.delay)),
        ("max_attempts", row.max_attempts),
        ("max_crashes", row.max_crashes),
        ("on_crash", row.on_crash),
        ("expires_at", row.expires_at),
        ("expires_after", _interval(row.expires_after)),
        ("timeout_seconds", row.timeout_seconds),
        ("correlation_id", row.correlation_id),
        ("parent_id", row.parent_id),
    )


def _interval(value: timedelta | None) -> str | None:
    # In microseconds: a float has an exponent where it is tiny, which PostgreSQL does not read.
    return None if value is None else f"{value // timedelta(microseconds=1)} microseconds"


def _find_existing(
    alias: str, rows: Sequence[NewJob], places: Sequence[int], found: list[Enqueued | None]
) -> None:
    groups: dict[tuple[str, str, str], dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for place in places:
        row = rows[place]
        groups[row.key_scope, row.tenant, row.task][row.key].append(place)
    for (scope, tenant, task), keys in groups.items():
        taken = Job.objects.using(alias).filter(
            _taken(scope), key_scope=scope, tenant=tenant, task=task, key__in=list(keys)
        )
        for key, pk, state, created_at in taken.values_list("key", "pk", "state", "created_at"):
            for place in keys[key]:
                found[place] = Enqueued(pk, False, State(state), created_at)


def _taken(scope: str) -> Q:
    """The rows that hold a key of this scope: the conditions of the three unique indexes."""
    if scope == KeyScope.ALWAYS:
        return ~Q(key="")
    live = ~Q(key="") & ~Q(state__in=sorted(TERMINAL))
    return live if scope == KeyScope.LIVE else live & Q(epoch=0)


def _announce(alias: str, rows: Sequence[NewJob], found: Sequence[Enqueued | None]) -> None:
    urgent: dict[str, int] = {}
    for row, item in zip(rows, found, strict=True):
        if item is not None and item.created and item.state == State.PENDING:
            urgent[row.queue] = min(urgent.get(row.queue, 100), -row.priority)
    announce_claimable(urgent, alias)


def announce_claimable(queues: Mapping[str, int], alias: str) -> None:
    """Tell, on commit, which queues have something claimable now, with the most urgent priority."""
    if queues:
        send = partial(signals.jobs_claimable.send_robust, sender=Job, alias=alias, queues=queues)
        after_commit(send, alias)
