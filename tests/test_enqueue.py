"""The producer's verb: in the caller's transaction, once per key, refused at the door or stored."""

import contextlib
import datetime as dt
import random
import re
import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext_lazy

from leasejobs import enqueue, points, recovery, wakeup
from leasejobs.claiming import claim_jobs
from leasejobs.compat import InvalidTask, task_enqueued
from leasejobs.context import JobContext
from leasejobs.enqueue import enqueue_many
from leasejobs.exceptions import InvalidArguments
from leasejobs.heartbeat import Held
from leasejobs.leases import end
from leasejobs.models import Job, KeyScope
from leasejobs.outcomes import Continued, Failed, Failure, Snoozed, Succeeded
from leasejobs.policy import Backoff
from leasejobs.states import TERMINAL, State
from leasejobs.testing import make_due
from tests import tasks
from tests.factories import HOLDER, LEASE, JobFactory, job_in, lease_of, whole
from tests.two_connections import Actor, acting, second_session, together, wait_until_blocked

two_sessions = pytest.mark.django_db(transaction=True)
every_scope = pytest.mark.parametrize("scope", KeyScope.values)


def enqueue_view(request, ending: str) -> HttpResponse:
    tasks.echo.using(key=f"view-{ending}").enqueue(ending)
    if ending == "raise":
        raise RuntimeError("after the enqueue")
    seen = Job.objects.count()
    if ending == "rollback":
        transaction.set_rollback(True)
    return HttpResponse(str(seen))


urlpatterns = [path("enqueue/<ending>", enqueue_view)]


def claim(limit: int = 10) -> list[Any]:
    return claim_jobs("default", holder=HOLDER, duration=LEASE, limit=limit)


# what is written


@pytest.mark.django_db
def test_enqueued_job_is_pending_with_the_policy_of_its_task():
    result = tasks.explode.using(priority=7, tenant="acme", queue_name="mail").enqueue("why")

    row = whole(Job.objects.get())
    assert (result.job_id, result.created, result.id) == (row["id"], True, str(row["id"]))
    assert (row["state"], row["task"], row["queue"]) == (
        State.PENDING,
        "tests.tasks.explode",
        "mail",
    )
    assert (row["priority"], row["tenant"], row["args"], row["kwargs"]) == (-7, "acme", ["why"], {})
    assert (row["max_attempts"], row["max_crashes"], row["on_crash"]) == (3, 3, "retry")
    assert row["backoff"] == {"base": 0, "cap": 0, "jitter": 0}
    assert (row["epoch"], row["attempts"], row["revision"]) == (0, 0, 0)
    assert (row["lease_token"], row["leased_by"], row["started_at"]) == (None, "", None)
    assert row["due_at"] == row["created_at"] == result.enqueued_at


@pytest.mark.django_db
def test_enqueue_sends_the_signal_of_django_tasks():
    heard = []

    def listen(task_result, **_):
        heard.append(task_result.job_id)

    task_enqueued.connect(listen)
    try:
        result = tasks.noop.enqueue()
    finally:
        task_enqueued.disconnect(listen)

    assert heard == [result.job_id]


@pytest.mark.django_db
@pytest.mark.parametrize("options", [
    {}, {"run_after": timedelta(hours=1)}, {"run_after": timezone.now() + timedelta(hours=1)},
    {"priority": -7, "tenant": "ä'\"\\", "queue_name": "q {x}"},
    {"max_attempts": 2, "max_crashes": 9},
    {"on_crash": "park", "backoff": Backoff(timedelta(milliseconds=1), timedelta(days=9), 0.5)},
    {"key_scope": "live"},
], ids=", ".join)  # fmt: skip
def test_bulk_and_single_enqueue_write_the_same(options):
    task = tasks.echo.using(**options)
    task.using(key="one").enqueue(1)
    enqueue_many([task.using(key="two").prepare(1), task.using(key="three").prepare(2)])

    first, second, _ = (whole(job) for job in Job.objects.order_by("id"))
    changing = ("id", "created_at", "due_at", "key")
    assert abs(first["due_at"] - second["due_at"]) < timedelta(seconds=5)
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }


@pytest.mark.django_db
@pytest.mark.parametrize("value", [
    "ünïcødé 🎈", "\\u0000", "\\\\u0000", "'; DROP TABLE", "{1,2}", "NULL", "", "%s %(x)s",
    "\x7f\x01", 2**80, -0.5, True, None, {"a": [1, {"b": None}]}, [[]],
], ids=ascii)  # fmt: skip
def test_arguments_come_back_as_they_went(value):
    tasks.echo.enqueue(value)
    enqueue_many([tasks.echo.prepare(value), tasks.echo.prepare(value=value)])

    single, first, second = Job.objects.order_by("id")
    assert single.args == first.args == [value]
    assert second.kwargs == {"value": value}


@pytest.mark.django_db
@pytest.mark.field_case("B122")
def test_tuples_become_lists_and_keys_strings_as_json_has_it():
    tasks.echo.enqueue({2: (1, 2), None: 3, True: 4, 1.5: 5})

    assert Job.objects.get().args == [{"2": [1, 2], "null": 3, "true": 4, "1.5": 5}]


@pytest.mark.django_db
@pytest.mark.field_case("B124")
def test_ids_are_bigints():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sequencename, data_type::text FROM pg_sequences"
            " WHERE sequencename LIKE 'leasejobs%%'"
        )
        assert {kind for _, kind in cursor.fetchall()} == {"bigint"}
        cursor.execute("SELECT setval('leasejobs_job_id_seq', 3000000000)")

    assert tasks.noop.enqueue().job_id == 3_000_000_001


# the caller's transaction


@two_sessions
def test_rolled_back_transaction_leaves_no_job():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.noop.enqueue()
        enqueue_many([tasks.noop.using(key="k").prepare()])
        raise ZeroDivisionError

    assert not Job.objects.exists()


@two_sessions
def test_key_of_a_rolled_back_transaction_is_free():
    with transaction.atomic():
        tasks.noop.using(key="k").enqueue()
        transaction.set_rollback(True)

    assert tasks.noop.using(key="k").enqueue().created


@pytest.fixture
def atomic_requests(settings, transactional_db, monkeypatch):
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    return Client(raise_request_exception=False)


def test_under_atomic_requests_a_view_that_raises_leaves_no_job(atomic_requests, caplog):
    assert atomic_requests.get("/enqueue/raise").status_code == 500

    assert not Job.objects.exists()


def test_under_atomic_requests_a_view_that_rolls_back_leaves_no_job(atomic_requests):
    assert atomic_requests.get("/enqueue/rollback").status_code == 200

    assert not Job.objects.exists()


def test_under_atomic_requests_a_view_that_returns_leaves_its_job(atomic_requests):
    assert atomic_requests.get("/enqueue/return").content == b"1"

    assert Job.objects.get().args == ["return"]


@two_sessions
def test_under_repeatable_read_a_key_taken_after_the_snapshot_is_a_serialization_failure():
    def take() -> None:
        tasks.noop.using(key="k").enqueue()

    with pytest.raises(OperationalError) as raised, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        Job.objects.exists()
        with acting(take) as winner:
            winner.result()
        tasks.noop.using(key="k").enqueue()

    assert raised.value.__cause__.sqlstate == "40001"
    assert Job.objects.count() == 1


@two_sessions
def test_under_repeatable_read_a_key_taken_before_the_snapshot_is_found():
    first = tasks.noop.using(key="k").enqueue()

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        second = tasks.noop.using(key="k").enqueue()

    assert (second.job_id, second.created) == (first.job_id, False)


# keys


@pytest.mark.django_db
@every_scope
@pytest.mark.field_case("B111")
def test_taken_key_returns_the_job_that_has_it_and_changes_nothing(scope):
    first = tasks.echo.using(key="k", key_scope=scope).enqueue(1)
    before = whole(Job.objects.get())

    second = tasks.echo.using(key="k", key_scope=scope, priority=9, run_after=LEASE).enqueue(2)

    assert (second.job_id, second.created, first.created) == (first.job_id, False, True)
    assert second.enqueued_at == first.enqueued_at
    assert whole(Job.objects.get()) == before


@pytest.mark.django_db
def test_jobs_without_a_key_are_never_duplicates():
    assert tasks.noop.enqueue().created
    assert tasks.noop.enqueue().created


@pytest.mark.django_db
def test_scope_tenant_and_task_are_namespaces_of_their_own():
    made = [
        task.using(key="k", key_scope=scope, tenant=tenant).enqueue()
        for task in (tasks.noop, tasks.retry_once)
        for scope in KeyScope.values
        for tenant in ("", "acme", "globex")
    ]

    assert all(result.created for result in made)
    assert len({result.job_id for result in made}) == 18


HELD_IN = {
    "always": set(State),
    "live": set(State) - TERMINAL,
    "queued": set(State) - TERMINAL - {State.RUNNING},
}


@pytest.mark.django_db
@every_scope
@pytest.mark.parametrize("state", State)
@pytest.mark.field_case("B111")
def test_key_is_held_as_long_as_its_scope_says(scope, state):
    job_in(state, key="k", key_scope=scope)

    result = tasks.noop.using(key="k", key_scope=scope).enqueue()

    assert result.created == (state not in HELD_IN[scope])


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Snoozed(LEASE), Continued(1), Failed(Failure("x"))], ids=repr)
def test_queued_key_is_free_once_the_job_was_ever_claimed(outcome):
    tasks.noop.using(key="k", key_scope="queued").enqueue()
    [(_, lease)] = claim()
    end(lease, outcome)

    assert tasks.noop.using(key="k", key_scope="queued").enqueue().created


@pytest.mark.django_db
@pytest.mark.field_case("B105")
def test_queued_key_of_a_running_job_makes_exactly_one_successor():
    task = tasks.noop.using(key="k", key_scope="queued")
    first = task.enqueue()
    claim()

    second, third = task.enqueue(), task.enqueue()

    assert second.created
    assert second.job_id != first.job_id
    assert (third.created, third.job_id) == (False, second.job_id)


@pytest.mark.django_db
def test_live_key_is_held_while_a_job_is_retried_and_free_when_it_succeeded():
    task = tasks.noop.using(key="k", key_scope="live")
    first = task.enqueue()
    [(_, lease)] = claim()
    end(lease, Failed(Failure("x")))
    assert not task.enqueue().created
    make_due(Job.objects.get())
    recovery.promote()
    [(_, lease)] = claim()
    assert task.enqueue().job_id == first.job_id
    end(lease, Succeeded())

    assert task.enqueue().created


@two_sessions
@every_scope
def test_second_of_two_racing_enqueues_waits_and_finds_the_first_ones_job(scope):
    task = tasks.noop.using(key="k", key_scope=scope)

    with transaction.atomic():
        first = task.enqueue()
        with_second = acting(task.enqueue)
        second = with_second.__enter__()
        wait_until_blocked(second.pid)
    with_second.__exit__(None, None, None)

    assert (second.result().created, second.result().job_id) == (False, first.job_id)
    assert Job.objects.count() == 1


@two_sessions
@every_scope
def test_second_of_two_racing_enqueues_takes_the_key_when_the_first_rolls_back(scope):
    task = tasks.noop.using(key="k", key_scope=scope)

    with transaction.atomic():
        first = task.enqueue()
        with_second = acting(task.enqueue)
        second = with_second.__enter__()
        wait_until_blocked(second.pid)
        transaction.set_rollback(True)
    with_second.__exit__(None, None, None)

    assert second.result().created
    assert second.result().job_id != first.job_id
    assert Job.objects.count() == 1


# enqueue_many


@pytest.mark.django_db
def test_enqueue_many_of_nothing_asks_nothing(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert enqueue_many([]) == []


@pytest.mark.django_db
@pytest.mark.field_case("B070")
def test_enqueue_many_answers_in_the_order_given_whatever_the_keys():
    keys = ["m", "", "a", "z", "B", "é", "", "10", "9"]

    found = enqueue_many(tasks.echo.using(key=key).prepare(place) for place, key in enumerate(keys))

    assert [Job.objects.get(pk=item.job_id).args for item in found] == [
        [n] for n in range(len(keys))
    ]
    assert all(item.created for item in found)
    assert [item.job_id for item in found] == sorted(item.job_id for item in found)


@pytest.mark.django_db
def test_duplicates_inside_a_batch_name_the_first():
    keys = ["a", "b", "a", "c", "b", "a"]

    found = enqueue_many(tasks.echo.using(key=key).prepare(n) for n, key in enumerate(keys))

    assert [item.created for item in found] == [True, True, False, True, False, False]
    assert found[2].job_id == found[5].job_id == found[0].job_id
    assert found[4].job_id == found[1].job_id
    assert Job.objects.get(pk=found[0].job_id).args == [0]


@pytest.mark.django_db
@pytest.mark.field_case("B070")
def test_key_that_is_there_already_is_met_among_others():
    existing = tasks.noop.using(key="k2").enqueue()
    claim()

    found = enqueue_many(tasks.noop.using(key=f"k{n}").prepare() for n in range(1, 4))

    assert [item.created for item in found] == [True, False, True]
    assert (found[1].job_id, found[1].state) == (existing.job_id, State.RUNNING)
    assert Job.objects.count() == 3


@pytest.mark.django_db
def test_batch_may_mix_scopes_tenants_tasks_and_no_key():
    prepared = [
        tasks.noop.using(key="k", key_scope="live").prepare(),
        tasks.noop.using(key="k", key_scope="queued").prepare(),
        tasks.noop.using(key="k", tenant="acme").prepare(),
        tasks.retry_once.using(key="k").prepare(),
        tasks.noop.prepare(),
        tasks.noop.using(key="k").prepare(),
    ]

    assert all(item.created for item in enqueue_many(prepared))
    assert [item.created for item in enqueue_many(prepared)] == [False] * 4 + [True, False]


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "k{}"])
def test_more_rows_than_a_chunk_are_all_enqueued_in_order(key):
    order = list(range(12_001))
    random.shuffle(order)

    found = enqueue_many(tasks.echo.using(key=key.format(n)).prepare(n) for n in order)

    assert all(item.created for item in found)
    args = dict(Job.objects.values_list("id", "args"))
    assert [args[item.job_id] for item in found] == [[n] for n in order]


@two_sessions
def test_more_rows_than_a_chunk_are_enqueued_all_or_none(monkeypatch):
    monkeypatch.setattr(enqueue, "_CHUNK", 2)
    rows = [tasks.noop.using(key=f"k{n}").prepare() for n in range(5)]
    insert, calls = enqueue._insert, []

    def fail_late(*args):
        calls.append(args)
        if len(calls) == 3:
            raise OperationalError("gone")
        insert(*args)

    monkeypatch.setattr(enqueue, "_insert", fail_late)

    with pytest.raises(OperationalError):
        enqueue_many(rows)

    assert not Job.objects.exists()


@two_sessions
@pytest.mark.field_case("B034")
def test_crossing_batches_of_the_same_keys_do_not_deadlock_and_take_each_key_once():
    keys = [f"k{n}" for n in range(200)]
    before = deadlocks()

    def enqueue_shuffled() -> list[Any]:
        mine = random.sample(keys, len(keys))
        return enqueue_many([tasks.noop.using(key=key).prepare() for key in mine])

    results = together(*[enqueue_shuffled] * 8)

    assert deadlocks() == before
    assert Job.objects.count() == len(keys)
    assert sum(item.created for result in results for item in result) == len(keys)
    assert all(len(result) == len(keys) for result in results)


def test_order_of_keys_does_not_depend_on_the_collation_of_the_database():
    """Chunks are cut by code point; inside one, a collation that says a < B would cross them."""
    orders = [part for part in re.findall(r"ORDER BY ([^\n]+)", enqueue._INSERT) if "key" in part]

    assert orders
    assert all('key COLLATE "C"' in part for part in orders)


# when


@pytest.mark.django_db
@pytest.mark.parametrize("run_after", [timedelta(hours=1), "datetime"], ids=str)
def test_job_that_has_to_wait_is_scheduled(run_after):
    when = timezone.now() + timedelta(hours=1) if run_after == "datetime" else run_after

    tasks.noop.using(run_after=when).enqueue()

    job = Job.objects.get()
    assert job.state == State.SCHEDULED
    assert abs(job.due_at - timezone.now() - timedelta(hours=1)) < timedelta(seconds=10)


@pytest.mark.django_db
@pytest.mark.parametrize("ago", [timedelta(0), timedelta(days=400)], ids=str)
def test_job_whose_time_is_past_is_pending_and_due_now(ago):
    tasks.noop.using(run_after=timezone.now() - ago).enqueue()

    job = Job.objects.get()
    assert (job.state, job.due_at) == (State.PENDING, job.created_at)


@pytest.mark.django_db
def test_delay_of_nothing_is_pending():
    tasks.noop.using(run_after=timedelta(0)).enqueue()

    assert Job.objects.get().state == State.PENDING


@pytest.mark.django_db
@pytest.mark.parametrize("span", [timedelta(microseconds=1), timedelta(days=3650)])
def test_shortest_and_longest_spans_are_stored_for_many_as_for_one(span):
    task = tasks.noop.using(run_after=span, expires_after=span)

    task.enqueue()
    enqueue_many([task.prepare(), task.prepare()])

    for job in Job.objects.all():
        assert job.due_at - job.created_at == job.deadline_at - job.created_at == span


@pytest.mark.django_db
def test_later_using_replaces_the_earlier_waiting():
    task = tasks.noop.using(run_after=timedelta(hours=1))

    task.using(run_after=timezone.now() + timedelta(days=2)).enqueue()
    task.using(run_after=timedelta(0)).enqueue()
    task.using(run_after=None).enqueue()  # as in django.tasks: unchanged

    late, now, unchanged = Job.objects.order_by("id")
    assert late.due_at > timezone.now() + timedelta(days=1)
    assert now.state == State.PENDING
    assert unchanged.state == State.SCHEDULED


@pytest.mark.parametrize(
    "when",
    [timedelta(seconds=-1), timedelta(days=36_501), dt.datetime(2030, 1, 1)],  # noqa: DTZ001
    ids=str,
)
def test_waiting_that_makes_no_sense_is_refused(when):
    with pytest.raises(InvalidTask, match="run_after"):
        tasks.noop.using(run_after=when)


@pytest.mark.django_db
def test_larger_priority_is_claimed_first():
    for priority in (0, -100, 100, 5):
        tasks.echo.using(priority=priority).enqueue(priority)

    assert [job.args for job, _ in claim()] == [[100], [5], [0], [-100]]


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_priority_out_of_bounds_is_refused(priority):
    with pytest.raises(InvalidTask, match="priority"):
        tasks.noop.using(priority=priority)


@pytest.mark.django_db
def test_required_tenant_is_required(settings):
    settings.LEASEJOBS = {"REQUIRE_TENANT": True}

    with pytest.raises(InvalidArguments, match="tenant"):
        tasks.noop.enqueue()
    with pytest.raises(InvalidArguments, match="tenant"):
        enqueue_many([tasks.noop.using(tenant="acme").prepare(), tasks.noop.prepare()])

    assert not Job.objects.exists()
    assert tasks.noop.using(tenant="acme").enqueue().created


# refused at the door

endless: list[Any] = []
endless.append(endless)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


BAD_ARGUMENTS = {
    "uuid": uuid.uuid4(),
    "datetime": timezone.now(),
    "timedelta": timedelta(1),
    "Decimal": Decimal("1.5"),
    "set": {1},
    "bytes": b"x",
    "lazy string": gettext_lazy("jobs"),
    "model": User(username="x"),
    "function": deep,
    "NaN": float("nan"),
    "infinity": float("-inf"),
    "NUL": "a\x00b",
    "NUL in a key": {"a\x00": 1},
    "NUL after a backslash": "\\\x00",
    "lone surrogate": "\ud800",
    "surrogate in a key": {"\udfff": 1},
    "tuple as key": {(1, 2): 3},
    "itself": endless,
    "too many digits": 10**5000,
    "nested 100,000 levels": deep(100_000),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", BAD_ARGUMENTS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.field_case("B002")
@pytest.mark.field_case("B122")
def test_argument_that_cannot_be_stored_is_refused_with_no_row(name, inside):
    value = {"deep": [BAD_ARGUMENTS[name]]} if inside else BAD_ARGUMENTS[name]

    with pytest.raises(InvalidArguments):
        tasks.echo.enqueue(value)
    with pytest.raises(InvalidArguments):
        tasks.echo.enqueue(value=value)
    with pytest.raises(InvalidArguments):
        enqueue_many([tasks.noop.prepare(), tasks.echo.prepare(value)])

    assert not Job.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("levels", [100, 300, 450, 600, 900, 980])
def test_nested_argument_is_stored_or_refused_but_never_both(levels):
    try:
        tasks.echo.enqueue(deep(levels))
    except (InvalidArguments, RecursionError):
        created = 0
    else:
        created = 1

    assert Job.objects.count() == created


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"value": 2}), ((), {"other": 1})], ids=str
)
def test_call_that_does_not_fit_the_signature_is_refused_with_no_row(args, kwargs):
    with pytest.raises(InvalidArguments, match=r"tests\.tasks\.echo"):
        tasks.echo.enqueue(*args, **kwargs)

    assert not Job.objects.exists()


@pytest.mark.django_db
def test_context_is_not_an_argument_of_the_caller():
    assert tasks.count_slices.enqueue(slices=3).created

    with pytest.raises(InvalidArguments):
        tasks.count_slices.enqueue()
    with pytest.raises(InvalidArguments):
        tasks.count_slices.enqueue(None, 3)


@pytest.mark.django_db
@pytest.mark.parametrize("field", ["key", "tenant", "queue_name"])
@pytest.mark.parametrize("value", ["x" * 501, "a\x00b", "\ud800", 7, b"x"], ids=ascii)
def test_text_that_cannot_be_indexed_is_refused(field, value):
    with pytest.raises(InvalidArguments, match=field):
        tasks.noop.using(**{field: value}).enqueue()

    assert not Job.objects.exists()


@pytest.mark.parametrize("field", ["key", "tenant"])
def test_none_is_no_key_and_no_tenant(field):
    with pytest.raises(InvalidArguments, match=field):
        tasks.noop.using(**{field: None})


@pytest.mark.django_db
@pytest.mark.parametrize("field", ["key", "tenant", "queue_name"])
def test_longest_text_of_the_widest_characters_is_stored(field):
    text = "".join(chr(0x1F300 + random.randrange(700)) for _ in range(500))

    assert tasks.noop.using(key="k").using(**{field: text}).enqueue().created


@pytest.mark.django_db
def test_key_and_tenant_that_fit_no_index_row_together_are_refused_with_no_row():
    """Each fits by itself; together they exceed what a B-tree of PostgreSQL takes."""
    key, tenant = (
        "".join(chr(0x1F300 + random.randrange(700)) for _ in range(500)) for _ in range(2)
    )

    with pytest.raises(InvalidArguments, match="bytes"):
        tasks.noop.using(key=key, tenant=tenant).enqueue()

    assert not Job.objects.exists()
    assert tasks.noop.using(key=key, tenant=tenant[:100]).enqueue().created


def test_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="nonsense"):
        tasks.noop.using(nonsense=1)


# telling workers


@pytest.fixture
def listener(transactional_db):
    wakeup._sent.clear()
    with second_session(autocommit=True) as session:
        session.execute(f"LISTEN {wakeup.CHANNEL}")
        yield session
    wakeup._sent.clear()


def heard(listener: psycopg.Connection[Any]) -> list[str]:
    """Return what was notified so far: a round trip brings all that is committed."""
    listener.execute("SELECT 1")
    return [notice.payload for notice in listener.notifies(timeout=0.05)]


@pytest.mark.field_case("B080")
def test_workers_are_told_after_the_commit_and_not_before(listener):
    with transaction.atomic():
        tasks.noop.enqueue()
        assert heard(listener) == []

    assert heard(listener) == ["0:default"]


def test_workers_are_not_told_of_a_rollback(listener):
    with transaction.atomic():
        tasks.noop.enqueue()
        transaction.set_rollback(True)

    assert heard(listener) == []


def test_workers_are_told_in_autocommit_too(listener):
    tasks.noop.using(priority=3, queue_name="mail").enqueue()

    assert heard(listener) == ["-3:mail"]


@pytest.mark.field_case("B080")
def test_workers_are_told_once_of_a_thousand_jobs_with_the_most_urgent_priority(listener):
    enqueue_many(tasks.noop.using(priority=n % 7).prepare() for n in range(1000))

    assert heard(listener) == ["-6:default"]


def test_workers_are_told_once_per_queue(listener):
    enqueue_many(tasks.noop.using(queue_name=f"q{n % 3}").prepare() for n in range(9))

    assert sorted(heard(listener)) == ["0:q0", "0:q1", "0:q2"]


@pytest.mark.field_case("B080")
def test_workers_are_not_told_of_jobs_that_wait_or_were_there(listener):
    tasks.noop.using(key="k").enqueue()
    assert heard(listener) == ["0:default"]
    wakeup._sent.clear()

    tasks.noop.using(key="k").enqueue()
    tasks.noop.using(run_after=timedelta(hours=1)).enqueue()

    assert heard(listener) == []


def test_burst_is_told_once_and_a_more_urgent_job_passes(listener, monkeypatch):
    monkeypatch.setattr(wakeup, "THROTTLE_SECONDS", 60)

    for priority in (0, 0, 5, 1, 7):
        tasks.noop.using(priority=priority).enqueue()

    assert heard(listener) == ["0:default", "-5:default", "-7:default"]


def test_throttle_ends_with_its_interval(listener, monkeypatch):
    monkeypatch.setattr(wakeup, "THROTTLE_SECONDS", 0)

    tasks.noop.using(priority=5).enqueue()
    tasks.noop.enqueue()

    assert heard(listener) == ["-5:default", "0:default"]


def test_queues_are_throttled_apart(listener, monkeypatch):
    monkeypatch.setattr(wakeup, "THROTTLE_SECONDS", 60)

    tasks.noop.enqueue()
    tasks.noop.using(queue_name="mail").enqueue()

    assert heard(listener) == ["0:default", "0:mail"]


def test_longest_queue_name_can_be_told(listener):
    name = "🎈" * 500

    tasks.noop.using(queue_name=name).enqueue()

    assert heard(listener) == [f"0:{name}"]


@two_sessions
def test_job_is_enqueued_though_telling_fails(monkeypatch):
    monkeypatch.setattr(wakeup, "_sent", None)

    assert tasks.noop.enqueue().created

    monkeypatch.undo()
    assert Job.objects.count() == 1


@two_sessions
def test_enqueue_works_where_the_caller_manages_the_transaction_by_hand():
    transaction.set_autocommit(False)
    try:
        tasks.noop.enqueue()
        tasks.noop.using(key="k").enqueue()
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_jobs_of_a_task_are_a_queryset_with_adjectives():
    tasks.noop.enqueue()
    tasks.noop.using(run_after=LEASE).enqueue()
    tasks.echo.enqueue(1)
    JobFactory(running=True)
    done = JobFactory(running=True)
    end(lease_of(done), Succeeded())

    assert tasks.noop.jobs.count() == 4
    assert tasks.noop.jobs.due().count() == 1
    assert tasks.noop.jobs.running().count() == 1
    assert [job.pk for job in tasks.noop.jobs.terminal()] == [done.pk]


def deadlocks() -> int:
    with second_session(autocommit=True) as session:
        session.execute("SELECT pg_stat_clear_snapshot()")
        [(count,)] = session.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(count)


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
def test_keyed_enqueue_waits_for_a_completion_in_fenced_and_goes_by_its_end(commits):
    """A completes in fenced(), B enqueues its key and waits; A commits: B's job is a new one.

    A rolls back: B gets A's job, which still runs.
    """
    job = JobFactory(running=True, key="door", key_scope=KeyScope.LIVE)
    context = JobContext(job, Held(lease_of(job)), lambda: False)
    enqueuer = Actor(lambda: tasks.noop.using(key="door", key_scope=KeyScope.LIVE).enqueue())

    def at_the_end_of_the_block(name: str) -> None:
        if name == "fenced_written":
            enqueuer.start()
            enqueuer.wait_until_connected()
            wait_until_blocked(enqueuer.pid)
            if not commits:
                raise ZeroDivisionError

    points.install(at_the_end_of_the_block)
    try:
        with contextlib.suppress(ZeroDivisionError), context.fenced():
            context.complete()
    finally:
        points.install(None)

    result = enqueuer.result()
    assert result.created is commits
    assert (result.job_id == job.pk) is not commits
    assert whole(job)["state"] == (State.SUCCEEDED if commits else State.RUNNING)


@pytest.mark.django_db
def test_argument_that_is_too_long_is_refused_before_any_row_exists(settings):
    with pytest.raises(InvalidArguments, match=r"at most 1000000 are allowed"):
        tasks.echo.enqueue("x" * 1_000_001)

    settings.LEASEJOBS = {"MAX_ARGUMENT_BYTES": 20_000}
    tasks.echo.enqueue("x" * 19_000)
    with pytest.raises(InvalidArguments, match=r"at most 20000 are allowed"):
        tasks.echo.enqueue("ä" * 10_001)

    assert Job.objects.count() == 1


@two_sessions
def test_keys_freed_between_insert_and_look_deadlock_nobody(monkeypatch):
    """A has inserted b; a was taken, and is free when A looks. B has a by then, and waits for b."""
    holder = JobFactory(running=True, key="a", key_scope=KeyScope.LIVE)
    both = [tasks.noop.using(key=key, key_scope=KeyScope.LIVE) for key in "ab"]
    other = Actor(lambda: enqueue_many([task.prepare() for task in both]))
    find_existing = enqueue._find_existing

    def free_it_and_let_the_other_begin(*args: Any) -> None:
        monkeypatch.setattr(enqueue, "_find_existing", find_existing)
        finished = Actor(lambda: end(lease_of(holder), Succeeded()))
        finished.start()
        finished.result()
        other.start()
        other.wait_until_connected()
        wait_until_blocked(other.pid)
        find_existing(*args)

    monkeypatch.setattr(enqueue, "_find_existing", free_it_and_let_the_other_begin)
    found = enqueue_many([task.prepare() for task in both])

    assert [item.created for item in other.result()] == [True, True]
    assert [item.created for item in found] == [False, False]
    assert [item.job_id for item in found] == [item.job_id for item in other.result()]
