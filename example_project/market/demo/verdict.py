"""The verdict: what the file held against what the tables hold, and nothing else.

No check trusts a counter of the demo or of a worker. The events are read from the file once more,
into a temporary table, and compared with jobs, notifications and attempts row by row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from example_project.market.events import Event
from example_project.market.tasks import notify_watchers
from leasejobs.models import Attempt
from leasejobs.states import AttemptOutcome, State


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    is_ok: bool
    text: str


def remember(events: Iterable[Event]) -> None:
    """Put the identity of each event into a temporary table of this session, once."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE read_event"
            " (market text, event_type text, event_ref text, key text)"
        )
        with cursor.copy("COPY read_event FROM STDIN") as copy:
            for event in events:
                copy.write_row((event.market, event.event_type, event.event_ref, event.key))
        cursor.execute("CREATE TEMPORARY TABLE demo_event AS SELECT DISTINCT * FROM read_event")
        cursor.execute("DROP TABLE read_event")
        cursor.execute("ANALYZE demo_event")


def jobs_line() -> Line:
    """Events in = jobs succeeded: one for each, and none beside."""
    events, succeeded, jobs = _row(
        """
        SELECT (SELECT count(*) FROM demo_event),
            (SELECT count(*) FROM demo_event JOIN leasejobs_job AS job
                ON job.key = demo_event.key AND job.task = %s AND job.state = %s),
            (SELECT count(*) FROM leasejobs_job WHERE task = %s)
        """,
        [notify_watchers.module_path, State.SUCCEEDED, notify_watchers.module_path],
    )
    text = f"{_count(events, 'event')} in, {_count(succeeded, 'job')} succeeded"
    if jobs != events:
        text += f", and the table holds {jobs:,} jobs"
    return Line(0 < events == succeeded == jobs, text)


def notifications_lines() -> list[Line]:
    """One notification per event and watcher of its market: none missing, twice, or unasked for."""
    due, recorded, missing, twice, stray = _row(
        """
        WITH due AS (
            SELECT watch.watcher_id, market.id AS market_id, event_type, event_ref
            FROM demo_event
            JOIN market_market AS market ON market.ref = demo_event.market
            JOIN market_watch AS watch ON watch.market_id = market.id
        ), told AS (
            SELECT watcher_id, market_id, event_type, event_ref, count(*) AS times
            FROM market_notification GROUP BY 1, 2, 3, 4
        )
        SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM market_notification),
            count(*) FILTER (WHERE times IS NULL), count(*) FILTER (WHERE times > 1),
            count(*) FILTER (WHERE NOT is_due)
        FROM (SELECT told.times, due.watcher_id IS NOT NULL AS is_due
              FROM due FULL JOIN told USING (watcher_id, market_id, event_type, event_ref)
             ) AS compared
        """
    )
    total = (
        f"{due:,} notifications due (each event, each watcher of its market), {recorded:,} recorded"
    )
    if stray:
        total += f", {stray:,} that nobody asked for"
    return [
        Line(due == recorded and not stray, total),
        Line(not missing, f"{missing:,} missing"),
        Line(not twice, f"{twice:,} recorded more than once"),
    ]


def stale_line() -> Line:
    """At least one outcome came too late and was refused."""
    refused = Attempt.objects.exclude(late_outcome="").count()
    return Line(refused >= 1, f"{_count(refused, 'stale outcome')} refused")


def killed_line(holder: str, killed_at: datetime, limit: timedelta) -> Line:
    """How long after its death the last of a killed child's jobs was taken back.

    From just before the SIGKILL to the end of the attempt, both by the database's clock. With
    a `limit` of half the lease (renewal leaves two thirds of it at least), whatever is faster was
    noticed, and not waited for.
    """
    (lost, ended_at) = _row(
        "SELECT count(*) FILTER (WHERE outcome = %s), max(ended_at) FROM leasejobs_attempt"
        " WHERE worker = %s AND ended_at >= %s AND outcome IN (%s, %s)",
        [AttemptOutcome.LOST, holder, killed_at, AttemptOutcome.LOST, AttemptOutcome.RELEASED],
    )
    if not lost:
        return Line(False, "no job of the killed child was taken back")
    took = ended_at - killed_at
    return Line(
        took < limit,
        f"killed child: {_count(lost, 'job')} taken back {_seconds(took)} after the SIGKILL"
        f" (at most {_seconds(limit)})",
    )


def frozen_line(job_id: int, epoch: int, frozen_at: datetime, limit: timedelta) -> Line:
    """How long after its freeze a child's job was taken back, and then claimed by another.

    From just before the SIGSTOP to the end of the attempt, and to the next claim, by the
    database's clock. The lease has to run out first.
    """
    ended_at, next_claim_at = _row(
        "SELECT (SELECT ended_at FROM leasejobs_attempt"
        "         WHERE job_id = %s AND epoch = %s AND outcome = %s),"
        " (SELECT min(claimed_at) FROM leasejobs_attempt WHERE job_id = %s AND epoch > %s)",
        [job_id, epoch, AttemptOutcome.LOST, job_id, epoch],
    )
    if ended_at is None or next_claim_at is None:
        return Line(False, "no job of the frozen child was taken over")
    took = ended_at - frozen_at
    return Line(
        took < limit,
        f"frozen child: its job taken back {_seconds(took)} after the SIGSTOP (at most"
        f" {_seconds(limit)}), claimed by another after {_seconds(next_claim_at - frozen_at)}",
    )


def _row(sql: str, parameters: Any = ()) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(parameters) or None)
        row: tuple[Any, ...] = cursor.fetchone()
    return row


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.2f} s"
