"""What must hold once a soak has drained, whatever happened: read from the tables."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q

from leasejobs.models import Attempt, Job, OperatorAction
from leasejobs.states import State

_MODULE = "tests.soak.tasks."
_WITHOUT_EFFECT = (f"{_MODULE}returns", f"{_MODULE}bury")


def violations(enqueued: Collection[int], last_verbs: Mapping[int, str | None]) -> Iterator[str]:
    """Say in a line each what does not hold."""
    jobs = Job.objects.all()
    yield from _told("is lost", set(enqueued) - set(jobs.values_list("pk", flat=True)))
    ended = Q(state__in=[State.SUCCEEDED, State.FAILED, State.CANCELLED, State.PARKED])
    yield from _told("did not come to rest", jobs.exclude(ended).values_list("pk", "state"))
    reasoned = Q(failure_code="") & ~Q(state=State.SUCCEEDED)
    yield from _told("says no reason", jobs.filter(reasoned, ended).values_list("pk", "state"))
    counted = jobs.annotate(rows=Count("attempt_set"))
    odd = counted.exclude(rows=F("epoch")).values_list("pk", "task", "epoch", "rows")
    yield from _told("has not one attempt for each claim", odd)
    over = jobs.filter(
        Q(attempts__gt=F("max_attempts")) | Q(crashes__gt=F("max_crashes")) | Q(interruptions__gt=6)
    )
    spent = over.values_list("pk", "task", "attempts", "crashes", "interruptions")
    yield from _told("spent more than its budgets", spent)
    yield from _told("succeeded in an attempt and not as a job", _unsteady())
    yield from _told("has effects that are not its success, once", _effects())
    yield from _told("ran beside another with its lock", _overlaps())
    yield from _told("was cancelled and is something else", _uncancelled(last_verbs))
    yield from _told("has not one handler for its death", _deaths())
    yield from _told("is a handler of no death", _needless_handlers())
    yield from _told("handled its death not once", _rows(_HANDLED))


def _told(what: str, found: Any) -> Iterator[str]:
    for one in found:
        yield f"{what}: {one}"


def _rows(statement: str, *values: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchall()


def _unsteady() -> Any:
    succeeded = Attempt.objects.filter(outcome="succeeded")
    wrong = succeeded.exclude(job__state=State.SUCCEEDED).values_list("job_id", "epoch")
    twice = succeeded.values("job_id").annotate(times=Count("pk")).filter(times__gt=1)
    return [*wrong, *twice.values_list("job_id", "times")]


def _effects() -> Any:
    return _rows(_EFFECTS, list(_WITHOUT_EFFECT))


_EFFECTS = f"""
SELECT job.id, task, state, count(effect.*), array_agg(effect.epoch)
FROM "{Job._meta.db_table}" job LEFT JOIN soak_effect effect ON effect.job_id = job.id
WHERE task <> ALL(%s) GROUP BY job.id
HAVING count(effect.*) <> (CASE WHEN state = {State.SUCCEEDED:d} THEN 1 ELSE 0 END)
"""

# A run is inside its lock from its fenced beginning until it says so, or its attempt ends.
_OVERLAPS = f"""
WITH inside AS (
    SELECT run.*, LEAST(run.ended_at, attempt.ended_at) AS until
    FROM soak_inside run JOIN "{Attempt._meta.db_table}" attempt USING (job_id, epoch)
)
SELECT a.tenant, a.lock_key, a.job_id, a.epoch, b.job_id, b.epoch, a.until - b.began_at
FROM inside a JOIN inside b USING (tenant, lock_key)
WHERE a.began_at < b.began_at AND b.began_at < a.until
"""

_HANDLED = f"""
SELECT job.id, count(death.*) FROM "{Job._meta.db_table}" job
LEFT JOIN soak_death death ON death.handler_id = job.id
WHERE task = '{_MODULE}bury' GROUP BY job.id
HAVING count(death.*) <> (CASE WHEN state = {State.SUCCEEDED:d} THEN 1 ELSE 0 END)
"""


def _overlaps() -> Any:
    return _rows(_OVERLAPS)


def _uncancelled(last_verbs: Mapping[int, str | None]) -> Any:
    cancelled = [pk for pk, verb in last_verbs.items() if verb == "cancel"]
    found = Job.objects.filter(pk__in=cancelled).exclude(state=State.CANCELLED)
    return found.values_list("pk", "state", "epoch")


def _deaths() -> Any:
    dead = Job.objects.filter(state__in=[State.FAILED, State.PARKED], on_dead__isnull=False)
    handlers = Job.objects.filter(task=f"{_MODULE}bury").values_list("key", flat=True)
    keys = {key.rpartition(":")[0] for key in handlers}  # without the revision
    return [
        (pk, epoch)
        for pk, epoch in dead.values_list("pk", "epoch")
        if f"dead:{pk}:{epoch}" not in keys
    ]


def _needless_handlers() -> Any:
    parked = set(OperatorAction.objects.filter(verb="park").values_list("target_pk", flat=True))
    failing = ("failed", "lost", "timed_out", "parked", "interrupted")
    ended = Attempt.objects.filter(outcome__in=failing).values_list("job_id", "epoch")
    explained = {f"dead:{pk}:{epoch}" for pk, epoch in ended}
    keys = Job.objects.filter(task=f"{_MODULE}bury").values_list("key", flat=True)
    return [
        key
        for key in keys
        if key.rpartition(":")[0] not in explained and key.split(":")[1] not in parked
    ]
