"""Claim jobs: the hot path of `fencing.claim`, in one statement."""

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models.base import ModelState

from leasejobs import conf
from leasejobs.fencing import Lease, local_clock
from leasejobs.models import Job
from leasejobs.states import State


def claim_jobs(
    queue: str, *, holder: str, duration: timedelta, limit: int, suspects: bool = False
) -> list[tuple[Job, Lease]]:
    """Lease up to `limit` pending jobs of one queue, most urgent first; commits by itself.

    `suspects` claims from the rows that crashed a worker instead. Every attempt is charged here,
    so a job that kills its worker is bounded. The jobs come with the columns deferred that a run
    seldom needs.
    """
    # One statement in place of fencing.claim()'s three: 1.2 against 3.5 ms for 100 rows, 0.39
    # against 1.24 ms for one. ARRAY(...) is planned by the partial index whatever the
    # statistics say; the same selection as an IN is not.
    if limit < 0:
        raise ValueError(f"limit must not be negative, not {limit}")
    if limit == 0:
        return []
    alias = conf.database()
    connection = connections[alias]
    pending = Job.objects.using(alias)
    selected = (pending.suspect() if suspects else pending.claimable()).filter(queue=queue)
    compiler = selected.values("id")[:limit].query.get_compiler(alias)
    selection, selection_params = compiler.as_sql()
    token, deadline = uuid.uuid4(), local_clock() + duration.total_seconds()
    with connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{Job._meta.db_table}" SET state = %s, epoch = epoch + 1,'
            " attempts = attempts + 1, lease_token = %s, leased_by = %s,"
            " lease_expires_at = STATEMENT_TIMESTAMP() + %s, claimed_at = STATEMENT_TIMESTAMP(),"
            " started_at = COALESCE(started_at, STATEMENT_TIMESTAMP())"
            f" WHERE id = ANY(ARRAY({selection} FOR NO KEY UPDATE SKIP LOCKED))"
            # Numbers for timestamps, which psycopg parses in Python, one by one.
            " RETURNING priority, EXTRACT(EPOCH FROM due_at)::float8, id, epoch, task, tenant,"
            " args, kwargs, attempts, on_crash, checkpoint,"
            " EXTRACT(EPOCH FROM lease_expires_at)::float8",
            [State.RUNNING, token, holder, duration, *selection_params],  # type: ignore[list-item]
        )
        rows = sorted(cursor.fetchall(), key=lambda row: row[:3])  # RETURNING keeps no order
    if not rows:
        return []
    expires_at = datetime.fromtimestamp(rows[0][-1], tz=UTC)
    claimed = []
    for _, _, pk, epoch, task, tenant, args, kwargs, attempts, on_crash, checkpoint, _ in rows:
        job = _claimed_job(
            alias,
            {
                "id": pk, "epoch": epoch, "lease_token": token, "leased_by": holder,
                "lease_expires_at": expires_at, "task": task, "queue": queue, "tenant": tenant,
                "args": _read(args), "kwargs": _read(kwargs), "state": State.RUNNING,
                "attempts": attempts, "on_crash": on_crash,
                "checkpoint": None if checkpoint is None else _read(checkpoint),
            },
        )  # fmt: skip
        claimed.append((job, Lease(Job, pk, epoch, token, holder, expires_at, duration, deadline)))
    return claimed


class Unreadable:
    """Stands for JSON that PostgreSQL holds and Python does not: too many digits, too deep."""


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable()


def _claimed_job(alias: str, values: dict[str, Any]) -> Job:
    """Return the instance that `Job.from_db` would, with the columns not in `values` deferred.

    Past from_db and __init__, which walk over all thirty fields for every row claimed. A field is
    deferred by not being in __dict__.
    """
    job = Job.__new__(Job)
    job.__dict__.update(values)
    job._state = ModelState()
    job._state.adding = False
    job._state.db = alias
    return job
