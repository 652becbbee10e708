"""`@periodic`: enqueue a task by the clock, each slot once, from any number of workers.

A schedule's row keeps the last slot that was dealt with. The transaction that enqueues a slot's
job, the tick, also moves the row on, if it still says what was read: no leader is needed, and what
was pruned is not fired again. Two workers at the same slot: A locks the row, B passes it by; or B
has read the row before A commits, and moves 0 rows on. A dies before COMMIT: the row is as it was,
and B fires the slot in its next round.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar, overload
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import Error, connections, transaction
from django.db.models.functions import Now

from leasejobs import conf, declare, signals
from leasejobs.arguments import check_identity, check_text, dump_arguments
from leasejobs.compat import InvalidTask, is_task
from leasejobs.cron import check_expression, check_zone, latest_slot, next_slot, slots_between
from leasejobs.declare import Task
from leasejobs.enqueue import NewJob, enqueue_many
from leasejobs.exceptions import InvalidArguments, InvalidSchedule, LeaseJobsError
from leasejobs.models import KeyScope, Schedule
from leasejobs.policy import Backoff
from leasejobs.redaction import say
from leasejobs.sessions import bound_transaction, is_database_away

AnyTask: TypeAlias = Task[..., Any]
T = TypeVar("T", bound=AnyTask)

CATCH_UP: Final = ("latest", "all", "none")

# With catch_up="none", a slot is no longer fired when it is older than this.
LATE: Final = timedelta(seconds=60)

_MAX_NAME: Final = 200
_EXAMPLE: Final = datetime(2000, 1, 1, tzinfo=UTC)
_RETRY: Final = Backoff(timedelta(seconds=1), timedelta(seconds=60))
# After another worker was first: it may die before it commits.
_LOOK_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodic:
    """One schedule as it was declared."""

    name: str
    task: AnyTask
    expression: str
    zone: ZoneInfo
    catch_up: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def tick(self, slot: datetime) -> NewJob:
        """Return the job of one slot. Raises as `Task.prepare` does."""
        prepared = self.task.prepare(*self.args, **self.kwargs)
        metadata = json.loads(prepared.metadata) or {}
        metadata |= {"schedule": self.name, "slot": slot.isoformat()}
        key = f"periodic:{self.name}:{slot.isoformat()}"
        check_identity(prepared.tenant, prepared.task, key)
        return replace(
            prepared, key=key, key_scope=KeyScope.ALWAYS,
            metadata=dump_arguments("metadata", metadata),
        )  # fmt: skip

    def problem(self) -> str:
        """Say why no tick of this schedule could be enqueued; empty if one could."""
        if conf.load().REQUIRE_TENANT and not self.task.tenant:
            return "REQUIRE_TENANT is set, and its task names no tenant"
        try:
            self.tick(_EXAMPLE)
        except InvalidArguments as error:
            return str(error)
        return ""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first slot later than `instant`."""
        return next_slot(self.expression, self.zone, instant)

    def due(self, last: datetime, now: datetime, limit: int) -> tuple[list[datetime], datetime]:
        """Return the slots to fire, and up to which slot that deals with the schedule.

        `last` is the last slot dealt with; where nothing came since, it is returned again.
        """
        first = self.next_after(last)
        if first is None or first > now:
            return [], last
        if self.catch_up == "all":
            slots = slots_between(self.expression, self.zone, last, now, limit)
            return slots, slots[-1]
        newest = latest_slot(self.expression, self.zone, last, now) or first
        is_wanted = self.catch_up == "latest" or now - newest <= LATE
        return ([newest] if is_wanted else []), newest


_declared: dict[str, Periodic] = {}
_failures: dict[str, int] = {}
_retry_at: dict[str, float] = {}  # by the monotonic clock, as is the next
_look_at = 0.0


def periodic(
    expression: str,
    *,
    timezone: str | None = None,
    catch_up: str = "latest",
    name: str = "",
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> "_Decorator":
    """Enqueue a task, called with `args` and `kwargs`, at each slot of a cron expression.

    Stands above `@task`, or on a plain function, which it makes a task with the default options.
    Several may stand on one task if each has a `name`; by default it is the task's. The name is
    what the database knows the schedule by: a schedule renamed is another one.

    `expression` has five fields as in cron, or six with seconds first. It is read in `timezone`,
    by default Django's TIME_ZONE; `leasejobs.cron` says what a change of the clock means.

    `catch_up` says what becomes of slots nobody fired in time because no worker ran: "latest"
    fires the newest of them, "all" each of them, "none" the newest if it is at most `LATE` old.
    A schedule seen for the first time begins then: nothing of the past is fired.

    A tick is a job with the task's options, except that its key is that of the slot;
    `context.job.metadata` holds `schedule`, the name, and `slot`, the instant in UTC as ISO 8601
    text. Ticks of a paused queue are enqueued and wait. Raises `InvalidSchedule`, or
    `InvalidArguments` if the call does not fit the task.
    """
    written = check_expression(expression)
    zone = check_zone(settings.TIME_ZONE if timezone is None else timezone)
    if catch_up not in CATCH_UP:
        raise InvalidSchedule(f"catch_up must be one of {CATCH_UP}, not {catch_up!r}")
    call = tuple(args), dict(kwargs or {})

    def schedule(target: Any) -> Any:
        task = target if isinstance(target, Task) else _made_a_task(target)
        declared = Periodic(
            name=check_text("name", name or task.module_path, _MAX_NAME),
            task=task, expression=written, zone=zone, catch_up=catch_up,
            args=call[0], kwargs=call[1],
        )  # fmt: skip
        _declare(declared)
        return task

    return schedule


class _Decorator(Protocol):
    @overload
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(self, target: Callable[..., Any], /) -> AnyTask: ...


def declared() -> tuple[Periodic, ...]:
    """Return every schedule declared in this process so far."""
    return tuple(_declared.values())


def fire_due(limit: int = 1_000) -> int:
    """Enqueue what is due by the database's clock; return how many jobs this call has created.

    Workers call it when `seconds_to_next_slot` says so, and now and then besides. It costs one
    query where nothing is due, and none where nothing is declared. Each schedule is a transaction
    of its own with `limit` jobs at most, oldest first; the next call goes on. One that cannot be
    enqueued is told as `schedule_failed`, stays where it is, is tried again after a while, and
    holds up no other. Rows of schedules that are declared no more are left alone.

    Raises the database's error where no statement would succeed now.
    """
    global _look_at
    schedules = declared()
    if not schedules:
        return 0
    alias = conf.database()
    names = [schedule.name for schedule in schedules]
    rows = Schedule.objects.using(alias).filter(name__in=names)
    seen = {name: (last, now) for name, last, now in rows.values_list("name", "last_slot", Now())}
    if missing := [Schedule(name=name, last_slot=Now()) for name in names if name not in seen]:
        Schedule.objects.using(alias).bulk_create(missing, ignore_conflicts=True)
    fired = 0
    pauses = [0.0] if missing else []
    for schedule in schedules:
        if schedule.name in seen:
            last, now = seen[schedule.name]
            created, pause = _attend(schedule, last, now, limit)
            fired += created
            pauses.append(pause)
    _look_at = time.monotonic() + min(pauses)
    return fired


def seconds_to_next_slot() -> float:
    """Return in how many seconds `fire_due` will have work, as the last call of it saw things.

    0 if there is some now or it was not called yet, infinity if no schedule is declared.
    """
    return max(0.0, _look_at - time.monotonic()) if _declared else float("inf")


def _made_a_task(target: Any) -> AnyTask:
    made = target if is_task(target) else declare.task(target)
    if not isinstance(made, Task):
        raise InvalidSchedule(f"{made.module_path} is a task of another backend than LeaseBackend")
    return made


def _declare(schedule: Periodic) -> None:
    other = _declared.get(schedule.name)
    # The same function decorated twice, or two functions; a reloaded module makes another one.
    if other is not None and (
        other.task.func is schedule.task.func or other.task.module_path != schedule.task.module_path
    ):
        raise InvalidSchedule(f"two schedules are called {schedule.name!r}; give one a name=…")
    if schedule.task.backend != declare.NO_BACKEND:
        schedule.tick(_EXAMPLE)
    _declared[schedule.name] = schedule


def _attend(schedule: Periodic, last: datetime, now: datetime, limit: int) -> tuple[int, float]:
    """Fire what is due of one schedule; return how many jobs, and seconds to look again."""
    wait = _retry_at.get(schedule.name, 0.0) - time.monotonic()
    if wait > 0:
        return 0, wait
    slots, upto = schedule.due(last, now, limit)
    created = 0
    if upto > last:
        try:
            fired = _fire(schedule, last, slots, upto)
        except (LeaseJobsError, InvalidTask, Error) as error:
            if isinstance(error, Error) and is_database_away(error):
                raise
            return 0, _failed(schedule, error)
        if fired is None:
            return 0, _LOOK_AGAIN_SECONDS
        created = fired
    _failures.pop(schedule.name, None)
    following = schedule.next_after(upto)
    if following is None:
        return created, float("inf")
    return created, max(0.0, (following - now).total_seconds())


def _fire(schedule: Periodic, last: datetime, slots: list[datetime], upto: datetime) -> int | None:
    """Move the row on from `last` and enqueue; return how many jobs, None if another was first."""
    alias = conf.database()
    ticks = [schedule.tick(slot) for slot in slots]
    is_outermost = not connections[alias].in_atomic_block
    with transaction.atomic(using=alias):
        if is_outermost:
            # If this process is frozen in here, the server frees the row for the others.
            bound_transaction(connections[alias], conf.load().lease)
        row = Schedule.objects.using(alias).filter(name=schedule.name, last_slot=last)
        # Whoever has the row locked is firing this slot: no reason to wait for it.
        if not list(row.select_for_update(skip_locked=True, no_key=True).values_list("pk")):
            return None
        row.update(last_slot=upto)
        return sum(enqueued.created for enqueued in enqueue_many(ticks))


def _failed(schedule: Periodic, error: Exception) -> float:
    failures = _failures[schedule.name] = _failures.get(schedule.name, 0) + 1
    pause = _RETRY.delay(failures, random.random()).total_seconds()
    _retry_at[schedule.name] = time.monotonic() + pause
    signals.worker_changed.send_robust(
        sender=Schedule, event="schedule_failed", level=logging.ERROR,
        fields={"schedule": schedule.name, "task": schedule.task.module_path,
                "reason": say(error), "retry_seconds": round(pause, 2)},
    )  # fmt: skip
    return pause
