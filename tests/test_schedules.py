"""`@periodic`: each slot fires once, whoever fires it, whatever was missed, and however it ends."""

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any

import pytest
from django.core import checks
from django.db import ProgrammingError, connection
from django.test import override_settings
from django.utils import timezone

from leasejobs import (
    InvalidArguments,
    InvalidSchedule,
    JobContext,
    periodic,
    registry,
    schedules,
    signals,
    task,
)
from leasejobs.checks import check_schedules
from leasejobs.compat import Task as DjangoTask
from leasejobs.cron import slots_between
from leasejobs.declare import Task
from leasejobs.models import Job, KeyScope, Queue, Schedule
from leasejobs.schedules import LATE, fire_due, seconds_to_next_slot
from tests import tasks
from tests.running import run_next
from tests.two_connections import acting, second_session, together, wait_until_blocked

two_sessions = pytest.mark.django_db(transaction=True)
MINUTELY = "* * * * *"
LONG_AGO = timedelta(minutes=5)


@task(takes_context=True)
def tell_slot(context: JobContext) -> Any:
    """Return what the job knows of its slot."""
    return context.job.metadata


@task
def greet(name: str, *, loudly: bool = False) -> str:
    """Take arguments."""
    return name.upper() if loudly else name


def plain() -> None:
    """Be no task yet."""


@pytest.fixture(autouse=True)
def _no_other_schedules(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(schedules, "_declared", {})
    monkeypatch.setattr(schedules, "_failures", {})
    monkeypatch.setattr(schedules, "_retry_at", {})
    monkeypatch.setattr(schedules, "_look_at", 0.0)


@pytest.fixture
def events() -> Any:
    """Collect what is told of workers, as (level, event, fields)."""
    told: list[tuple[int, str, dict[str, Any]]] = []

    def receive(event: str, fields: dict[str, Any], level: int, **_: Any) -> None:
        told.append((level, event, fields))

    signals.worker_changed.connect(receive)
    yield told
    signals.worker_changed.disconnect(receive)


def declare(expression: str = MINUTELY, target: Any = tasks.noop, **options: Any) -> str:
    """Declare a schedule and return its name."""
    options.setdefault("name", "tick")
    periodic(expression, **options)(target)
    return str(options["name"])


def last_fired(name: str, ago: timedelta) -> datetime:
    """Let a schedule have been dealt with a while ago; return up to when."""
    Schedule.objects.update_or_create(name=name, defaults={"last_slot": timezone.now() - ago})
    return last_slot(name)


def last_slot(name: str = "tick") -> datetime:
    return Schedule.objects.get(name=name).last_slot


def fired_slots(name: str = "tick") -> list[datetime]:
    """Return the slots of the jobs of a schedule, in the order of their ids."""
    jobs = Job.objects.filter(metadata__schedule=name).order_by("pk")
    return [datetime.fromisoformat(job.metadata["slot"]) for job in jobs]


def minute_of(ago: timedelta) -> str:
    """Return an expression that came so long ago, and comes next in an hour less that."""
    return f"{(timezone.now() - ago).minute} * * * *"


# what a slot becomes


@pytest.mark.django_db
def test_schedule_seen_for_the_first_time_begins_now_and_fires_nothing():
    name = declare("* * * * * *")
    before = timezone.now()

    fired = fire_due()

    assert fired == 0
    assert before - timedelta(seconds=5) < last_slot(name) < timezone.now() + timedelta(seconds=5)
    assert not Job.objects.exists()


@two_sessions
def test_two_workers_that_see_a_schedule_for_the_first_time_make_one_row():
    declare()

    with second_session() as winner:
        winner.execute("INSERT INTO leasejobs_schedule VALUES ('tick', '2020-01-01T00:00Z')")
        with acting(fire_due) as loser:
            wait_until_blocked(loser.pid)
            winner.commit()
            assert loser.result() == 0

    assert last_slot().year == 2020


@pytest.mark.django_db
def test_due_slot_becomes_a_job_of_the_task_that_knows_it():
    name = declare(target=greet.using(priority=7, queue_name="bells"), args=["x"],
                   kwargs={"loudly": True})  # fmt: skip
    last_fired(name, timedelta(minutes=1))

    fired = fire_due()

    assert fired == 1
    job = Job.objects.get()
    slot = last_slot(name)
    assert (job.task, job.queue, job.args, job.kwargs) == (
        "tests.test_schedules.greet", "bells", ["x"], {"loudly": True},
    )  # fmt: skip
    assert job.priority == -7
    assert (slot.second, slot.microsecond) == (0, 0)
    assert job.metadata == {"schedule": "tick", "slot": slot.isoformat()}
    assert job.key == f"periodic:tick:{slot.isoformat()}"
    assert job.key_scope == KeyScope.ALWAYS


@pytest.mark.django_db
def test_running_task_learns_its_slot_from_its_context():
    name = declare(target=tell_slot)
    last_fired(name, timedelta(minutes=1))
    fire_due()

    run = run_next()

    assert run.row["result"] == {"schedule": "tick", "slot": last_slot(name).isoformat()}


@pytest.mark.django_db
def test_slot_is_in_utc_whatever_the_zone():
    name = declare("0 0 * * *", timezone="Asia/Kathmandu")
    last_fired(name, timedelta(days=1))

    fire_due()

    assert last_slot(name).strftime("%H:%M") == "18:15"
    assert Job.objects.get().metadata["slot"].endswith("T18:15:00+00:00")


@pytest.mark.django_db
def test_key_of_the_task_gives_way_to_that_of_the_slot():
    name = declare(target=tasks.noop.using(key="mine", key_scope=KeyScope.LIVE))
    last_fired(name, timedelta(minutes=1))

    fire_due()

    assert Job.objects.get().key.startswith("periodic:tick:")
    assert Job.objects.get().key_scope == KeyScope.ALWAYS


@pytest.mark.django_db
def test_schedule_of_a_paused_queue_still_enqueues():
    Queue.objects.create(name="default", paused_at=timezone.now())
    last_fired(declare(), timedelta(minutes=1))

    assert fire_due() == 1


# once


@pytest.mark.django_db
@pytest.mark.field_case("B109")
def test_slot_fires_once():
    name = declare(minute_of(LONG_AGO))
    last_fired(name, timedelta(minutes=30))

    assert [fire_due() for _ in range(3)] == [1, 0, 0]


@pytest.mark.django_db
def test_pruned_slot_is_not_fired_again():
    name = declare(minute_of(LONG_AGO))
    last_fired(name, timedelta(minutes=30))
    fire_due()
    Job.objects.all().delete()

    assert fire_due() == 0
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_key_keeps_out_a_slot_whose_row_was_set_back_by_hand():
    name = declare(minute_of(LONG_AGO))
    last_fired(name, timedelta(minutes=30))
    fire_due()
    dealt_with = last_slot(name)
    last_fired(name, timedelta(minutes=30))

    assert fire_due() == 0
    assert Job.objects.count() == 1
    assert last_slot(name) == dealt_with


@pytest.mark.django_db
def test_clock_that_went_back_fires_nothing_and_moves_nothing_back():
    name = declare()
    ahead = last_fired(name, -timedelta(hours=1))

    assert fire_due() == 0
    assert last_slot(name) == ahead


@two_sessions
def test_worker_that_read_the_row_before_another_fired_it_changes_nothing():
    name = declare(minute_of(LONG_AGO))
    stale = last_fired(name, timedelta(minutes=30))
    (schedule,) = schedules.declared()

    with acting(fire_due) as winner:
        assert winner.result() == 1
    dealt_with = last_slot(name)
    later = dealt_with + timedelta(minutes=1)
    loser = schedules._fire(schedule, stale, [later], later)

    assert loser is None
    assert last_slot(name) == dealt_with
    assert Job.objects.count() == 1


@two_sessions
def test_worker_passes_by_a_slot_another_is_firing():
    name = declare(minute_of(LONG_AGO))
    last_fired(name, timedelta(minutes=30))

    with second_session() as winner:
        winner.execute("SELECT 1 FROM leasejobs_schedule WHERE name = 'tick' FOR NO KEY UPDATE")
        with acting(fire_due) as loser:
            assert loser.result() == 0
        assert seconds_to_next_slot() <= 1
        winner.rollback()  # it died

    assert fire_due() == 1


@two_sessions
def test_many_workers_fire_a_slot_once():
    name = declare(minute_of(LONG_AGO), catch_up="all")
    last_fired(name, timedelta(hours=3))
    due = len(slots_between(minute_of(LONG_AGO), schedules.check_zone("UTC"), last_slot(name),
                            timezone.now(), 9))  # fmt: skip

    fired = together(*[fire_due] * 5)

    assert sorted(fired) == [0, 0, 0, 0, due]
    assert Job.objects.count() == due


@two_sessions
def test_server_frees_the_row_of_a_frozen_worker(monkeypatch):
    last_fired(declare(), timedelta(minutes=1))
    found = []

    def enqueue_many(jobs: Any) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('idle_in_transaction_session_timeout')")
            found.extend(cursor.fetchone())
        return []

    monkeypatch.setattr(schedules, "enqueue_many", enqueue_many)

    with override_settings(LEASEJOBS={"LEASE_SECONDS": 7}):
        fire_due()

    assert found == ["7s"]


# what was missed


@pytest.mark.django_db
def test_latest_fires_the_newest_of_the_missed_slots():
    name = declare()
    last_fired(name, LONG_AGO)

    assert fire_due() == 1
    assert fired_slots() == [last_slot(name)]
    assert timezone.now() - last_slot(name) < timedelta(minutes=1, seconds=10)


@pytest.mark.django_db
def test_all_fires_every_missed_slot_the_oldest_first():
    name = declare(catch_up="all")
    missed_since = last_fired(name, LONG_AGO)

    fired = fire_due()

    zone = schedules.check_zone("UTC")
    assert fired_slots() == slots_between(MINUTELY, zone, missed_since, last_slot(name), 99)
    assert fired == len(fired_slots()) >= 5


@pytest.mark.django_db
def test_all_goes_on_where_the_limit_stopped_it():
    name = declare(catch_up="all")
    missed_since = last_fired(name, LONG_AGO)

    assert fire_due(limit=2) == 2
    assert seconds_to_next_slot() == 0
    assert fire_due(limit=2) == 2
    while fire_due(limit=2):
        pass

    zone = schedules.check_zone("UTC")
    assert fired_slots() == slots_between(MINUTELY, zone, missed_since, last_slot(name), 99)


@pytest.mark.django_db
def test_backlog_of_one_schedule_does_not_delay_another():
    last_fired(declare("* * * * * *", catch_up="all", name="long"), LONG_AGO)
    last_fired(declare(minute_of(LONG_AGO), name="short"), timedelta(minutes=30))

    fire_due(limit=3)

    assert len(fired_slots("long")) == 3
    assert len(fired_slots("short")) == 1


@pytest.mark.django_db
def test_none_lets_a_late_slot_go_and_moves_on():
    name = declare(minute_of(LONG_AGO), catch_up="none")
    before = last_fired(name, timedelta(minutes=30))

    assert fire_due() == 0
    assert last_slot(name) > before
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_none_fires_the_newest_slot_if_it_is_not_late():
    name = declare("* * * * * *", catch_up="none")
    last_fired(name, LATE * 2)

    assert fire_due() == 1
    assert fired_slots() == [last_slot(name)]


# what goes wrong


@pytest.mark.django_db
@override_settings(LEASEJOBS={"REQUIRE_TENANT": True})
def test_schedule_that_cannot_be_enqueued_stops_no_other(events):
    stuck = last_fired(declare(minute_of(LONG_AGO), name="stuck"), timedelta(minutes=30))
    fine = tasks.noop.using(tenant="acme")
    last_fired(declare(minute_of(LONG_AGO), fine, name="fine"), timedelta(minutes=30))

    fired = fire_due()

    assert fired == 1
    assert len(fired_slots("fine")) == 1
    assert last_slot("stuck") == stuck
    [(level, event, fields)] = events
    assert (level, event) == (logging.ERROR, "schedule_failed")
    assert (fields["schedule"], fields["task"]) == ("stuck", "tests.tasks.noop")
    assert "tenant" in fields["reason"]


@pytest.mark.django_db
def test_schedule_that_failed_is_tried_again_after_a_while(events, monkeypatch):
    last_fired(declare(minute_of(LONG_AGO)), timedelta(minutes=30))
    with override_settings(LEASEJOBS={"REQUIRE_TENANT": True}):
        fire_due()
        fire_due()
        assert len(events) == 1
        assert 0 < seconds_to_next_slot() <= 1
        schedules._retry_at["tick"] -= 60
        fire_due()
        assert [fields["schedule"] for _, _, fields in events] == ["tick", "tick"]

    schedules._retry_at["tick"] -= 60

    assert fire_due() == 1
    assert schedules._failures == {}


@pytest.mark.django_db
def test_statement_the_server_refuses_fails_one_schedule_only(events):
    last_fired(declare(minute_of(LONG_AGO), name="a"), timedelta(minutes=30))
    last_fired(declare(minute_of(LONG_AGO), tasks.echo, args=[1], name="b"), timedelta(minutes=30))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leasejobs_job ADD CHECK (task <> 'tests.tasks.noop')")

    assert fire_due() == 1
    assert [fields["schedule"] for _, _, fields in events] == ["a"]


@pytest.mark.django_db
def test_database_that_can_serve_nobody_is_the_callers_affair(events):
    before = last_fired(declare(), LONG_AGO)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leasejobs_job RENAME TO elsewhere")

    with pytest.raises(ProgrammingError):
        fire_due()

    assert last_slot() == before
    assert events == []


@pytest.mark.django_db
def test_row_of_a_schedule_no_longer_declared_is_left_alone():
    before = last_fired("removed", LONG_AGO)
    last_fired(declare(), LONG_AGO)

    fire_due()

    assert last_slot("removed") == before
    assert fired_slots("removed") == []


@pytest.mark.django_db
@pytest.mark.field_case("B042")
def test_slot_planned_by_rules_that_changed_is_not_fired():
    """As when the time zone database is updated between the plan and the run."""
    soon = timezone.now() + timedelta(hours=1)
    name = declare(f"{soon.minute} {soon.hour} * * *", timezone="UTC")
    last_fired(name, timedelta(0))
    fire_due()
    planned = seconds_to_next_slot()
    schedules._declared.clear()
    declare(f"{soon.minute} {soon.hour} * * *", timezone="Etc/GMT-5")  # that was five hours ago
    fire_due()

    assert 3_000 < planned <= 3_660
    assert seconds_to_next_slot() > 3_660
    assert not Job.objects.exists()


# what it costs


@pytest.mark.django_db
def test_without_schedules_nothing_is_asked(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert fire_due() == 0
    assert seconds_to_next_slot() == float("inf")


@pytest.mark.django_db
def test_with_nothing_due_one_query_is_asked(django_assert_num_queries):
    for number in range(10):
        last_fired(declare(name=f"tick-{number}"), -timedelta(minutes=1))

    with django_assert_num_queries(1):
        assert fire_due() == 0


@pytest.mark.django_db
def test_next_slot_is_near_when_one_was_fired_and_there_before_any_call():
    last_fired(declare(), LONG_AGO)
    assert seconds_to_next_slot() == 0

    fire_due()

    assert 0 <= seconds_to_next_slot() <= 60


@pytest.mark.django_db
def test_next_slot_is_that_of_the_soonest_schedule():
    last_fired(declare("0 0 29 2 *", name="rare"), timedelta(0))
    last_fired(declare("*/2 * * * *", name="often"), timedelta(0))

    fire_due()

    assert seconds_to_next_slot() <= 120


# declaration


def test_decorator_above_task_returns_the_task():
    assert periodic(MINUTELY)(tasks.noop) is tasks.noop
    assert schedules.declared()[0].name == "tests.tasks.noop"


def test_plain_function_becomes_a_task():
    made = periodic(MINUTELY)(plain)

    assert made == schedules.declared()[0].task
    assert made.module_path == "tests.test_schedules.plain"


def test_task_of_another_backend_is_refused():
    backend = f"{DjangoTask.__module__.partition('.base')[0]}.backends.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": backend}}):
        foreign = DjangoTask(
            func=plain, priority=0, queue_name="default", backend="default", run_after=None,
            takes_context=False,
        )  # fmt: skip

        with pytest.raises(InvalidSchedule, match=r"test_schedules\.plain is a task of another"):
            periodic(MINUTELY)(foreign)


@pytest.mark.django_db
def test_schedule_without_a_backend_is_declared_and_tells_that_it_cannot_enqueue(events):
    backend = f"{DjangoTask.__module__.partition('.base')[0]}.backends.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": backend}}):
        declare(target=plain)
        last_fired("tick", LONG_AGO)
        # E003 names the task.
        assert check_schedules() == []

        assert fire_due() == 0
    assert "has no backend" in events[0][2]["reason"]


@pytest.mark.django_db
def test_metadata_of_the_task_is_kept_beside_that_of_the_slot(monkeypatch):
    prepare = Task.prepare

    def with_metadata(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replace(prepare(self, *args, **kwargs), metadata='{"team": "b"}')

    monkeypatch.setattr(Task, "prepare", with_metadata)
    last_fired(declare(), LONG_AGO)

    fire_due()

    assert Job.objects.get().metadata["team"] == "b"
    assert len(fired_slots()) == 1


def test_schedules_with_names_may_share_a_task():
    decorated = periodic("0 8 * * *", name="morning")(
        periodic("0 20 * * *", name="evening")(tasks.noop)
    )

    assert decorated is tasks.noop
    assert {schedule.name for schedule in schedules.declared()} == {"morning", "evening"}


@pytest.mark.parametrize("other", [tasks.noop, tasks.explode])
def test_two_schedules_of_one_name_are_refused(other):
    declare(target=tasks.noop)

    with pytest.raises(InvalidSchedule, match="two schedules are called 'tick'"):
        declare(target=other)


def test_module_that_is_loaded_again_replaces_its_schedule():
    again = FunctionType(plain.__code__, globals(), "plain")

    declare("0 1 * * *", plain)
    declare("0 2 * * *", again)

    (schedule,) = schedules.declared()
    assert schedule.expression == "0 2 * * *"


@override_settings(TIME_ZONE="America/New_York")
def test_zone_is_that_of_the_project_unless_told_otherwise():
    declare(name="ours")
    declare(name="theirs", timezone="Europe/Madrid")

    assert [str(schedule.zone) for schedule in schedules.declared()] == [
        "America/New_York", "Europe/Madrid",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"expression": "61 * * * *"}, InvalidSchedule, "Bad minute"),
        ({"timezone": "Europe/Madird"}, InvalidSchedule, "Europe/Madird"),
        ({"catch_up": "some"}, InvalidSchedule, "catch_up"),
        ({"name": "a\0b"}, InvalidArguments, "name"),
        ({"name": "n" * 201}, InvalidArguments, "name"),
        ({"args": [1]}, InvalidArguments, "too many"),
        ({"kwargs": {"nobody": 1}}, InvalidArguments, "nobody"),
        ({"target": greet, "args": [object()]}, InvalidArguments, "JSON"),
    ],
)
def test_schedule_that_can_never_be_kept_is_refused_at_import(options, error, text):
    with pytest.raises(error, match=text):
        declare(**options)

    assert schedules.declared() == ()


def test_check_names_a_schedule_whose_ticks_would_be_refused():
    declare()
    declare(target=tasks.noop.using(tenant="acme"), name="fine")
    assert check_schedules() == []

    with override_settings(LEASEJOBS={"REQUIRE_TENANT": True}):
        [found] = check_schedules()

    assert isinstance(found, checks.Error)
    assert found.id == "leasejobs.E011"
    assert "'tick'" in found.msg
