"""What `status` and the admin count: live jobs by queue, from partial indexes alone and capped.

No COUNT(*) over the table: it stays quick over ten million finished rows. A count that reached
`CAP` says "at least".
"""

from collections import defaultdict
from datetime import datetime
from typing import Any, Final

from django.db import connections
from django.db.models import Count, Min, QuerySet

from leasejobs import conf
from leasejobs.models import Job, Queue, Worker
from leasejobs.states import WAITING, State

CAP: Final = 10_000


def survey() -> dict[str, Any]:
    """Return queues, workers, expired leases and what waits for a decision, ready for JSON."""
    alias = conf.database()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT STATEMENT_TIMESTAMP()")
        [(now,)] = cursor.fetchall()
    expired = Job.objects.using(alias).running().expired().order_by("pk")
    dead = Job.objects.using(alias).dead().order_by("-pk").values_list("state", flat=True)
    states = list(dead[:CAP])
    return {
        "cap": CAP,
        "queues": _queues(alias, now),
        "expired_leases": len(expired.values_list("pk", flat=True)[:CAP]),
        # Of the newest `CAP` jobs that are failed, cancelled or parked.
        "failed": states.count(State.FAILED),
        "parked": states.count(State.PARKED),
        "workers": [
            {
                "name": worker.name, "host": worker.host, "pid": worker.pid,
                "version": worker.version, "processes": worker.processes,
                "threads": worker.threads, "queues": worker.queues,
                "seen_seconds_ago": _seconds(now, worker.seen_at),
            }
            for worker in Worker.objects.using(alias).order_by("name")
        ],
    }  # fmt: skip


def _queues(alias: str, now: datetime) -> list[dict[str, Any]]:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    oldest: dict[str, datetime] = {}
    jobs = Job.objects.using(alias)
    for stream in (jobs.claimable(), jobs.locked(), jobs.suspect()):
        for queue in _names(stream):
            rows = stream.filter(queue=queue)[:CAP]
            found = rows.aggregate(count=Count("pk"), oldest=Min("due_at"))
            counts[queue]["pending"] += found["count"]
            oldest[queue] = min(oldest.get(queue, found["oldest"]), found["oldest"])
    waiting = jobs.filter(state__in=sorted(WAITING)).order_by("due_at", "pk")
    for queue, state, due_at in waiting.values_list("queue", "state", "due_at")[:CAP]:
        counts[queue][State(state).name.lower()] += 1
        if due_at <= now:
            oldest[queue] = min(oldest.get(queue, due_at), due_at)
    for queue in jobs.running().order_by("pk").values_list("queue", flat=True)[:CAP]:
        counts[queue]["running"] += 1
    paused = dict(
        Queue.objects.using(alias).filter(paused_at__isnull=False).values_list("name", "paused_at")
    )
    return [
        {
            "name": name,
            **{state: counts[name][state] for state in ("pending", "running", "scheduled",
                                                        "retryable")},
            "oldest_due_seconds": _seconds(now, oldest.get(name)),
            "paused_at": paused.get(name),
        }
        for name in sorted({*counts, *paused})
    ]  # fmt: skip


def _names(stream: QuerySet[Job]) -> list[str]:
    """Return the queues of a stream by skipping from one to the next along its index."""
    names: list[str] = []
    while True:
        following = stream.filter(queue__gt=names[-1]) if names else stream
        name = following.order_by("queue").values_list("queue", flat=True).first()
        if name is None:
            return names
        names.append(name)


def _seconds(now: datetime, then: datetime | None) -> float | None:
    return None if then is None else round((now - then).total_seconds(), 3)
