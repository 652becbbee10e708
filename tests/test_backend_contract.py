"""What django.tasks asks of a backend and its tasks, point by point, on every version."""

import contextlib
import copy
import dataclasses
from datetime import datetime, timedelta

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from leasejobs import Task, enqueue_many, registry
from leasejobs.backend import LeaseBackend
from leasejobs.compat import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from leasejobs.compat import Task as DjangoTask
from leasejobs.compat import TaskResult as DjangoResult
from leasejobs.models import Job
from leasejobs.states import State
from leasejobs.testing import make_due
from tests import tasks
from tests.running import run_next

if django.VERSION >= (6, 0):
    from django import tasks as django_tasks
else:
    import django_tasks

TAKES_OUR_OPTIONS = django.VERSION < (6, 0) or django.VERSION >= (6, 1)
LEASE_BACKEND = {"BACKEND": "leasejobs.backend.LeaseBackend"}
OTHER_BACKEND = {"BACKEND": f"{django_tasks.__name__}.backends.dummy.DummyBackend"}
backend = task_backends["default"]


def plain(value: int = 0) -> int:
    return value


def plain_with_context(context, value: int = 0) -> int:
    return value


@django_tasks.task
def synchronous(value: int) -> int:
    return value + 1


@django_tasks.task
async def asynchronous(value: int) -> int:
    return value + 2


@django_tasks.task(takes_context=True)
async def asynchronous_with_context(context, value: int) -> list[int]:
    return [context.attempt, value]


@django_tasks.task
async def asynchronous_that_raises() -> None:
    raise LookupError("lost")


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_aliases", {})


@contextlib.contextmanager
def listening(*signals):
    heard = []

    def listen(signal, sender, task_result, **_):
        name = {id(task_enqueued): "enqueued", id(task_started): "started"}.get(
            id(signal), "finished"
        )
        heard.append((name, sender, task_result.id, str(task_result.status)))

    for signal in signals:
        signal.connect(listen)
    try:
        yield heard
    finally:
        for signal in signals:
            signal.disconnect(listen)


# the backend


def test_backend_is_one_of_django_with_all_four_features():
    assert isinstance(backend, BaseTaskBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_default_backend_is_the_one_of_the_alias():
    assert django_tasks.default_task_backend.alias == backend.alias == "default"
    assert tasks.noop.get_backend() is task_backends["default"]
    assert isinstance(synchronous.get_backend(), LeaseBackend)


def test_backend_takes_its_queues_and_options_from_the_settings():
    settings = {**LEASE_BACKEND, "QUEUES": ["a", "b"], "OPTIONS": {"x": 1}}
    with override_settings(TASKS={"default": settings}):
        assert task_backends["default"].queues == {"a", "b"}
        assert task_backends["default"].options == {"x": 1}


def test_backend_passes_the_checks_of_django():
    assert list(backend.check()) == []
    assert [found for found in run_checks() if found.id.startswith("tasks.")] == []


# validation


@pytest.mark.parametrize("priority", [-101, 101, 1.5, 10**9])
def test_priority_out_of_range_or_broken_is_refused(own_registry, priority):
    with pytest.raises(InvalidTask, match="priority"):
        django_tasks.task(priority=priority)(plain)
    with pytest.raises(InvalidTask, match="priority"):
        tasks.noop.using(priority=priority)


@pytest.mark.django_db
@pytest.mark.parametrize("priority", [-100, 0, 100, 7.0])
def test_priority_in_range_is_kept(priority):
    urgent = tasks.noop.using(priority=priority)
    urgent.enqueue()
    enqueue_many([urgent.prepare(), urgent.prepare()])

    assert set(Job.objects.values_list("priority", flat=True)) == {-priority}


def test_queue_that_the_backend_does_not_have_is_refused(own_registry):
    with override_settings(TASKS={"default": {**LEASE_BACKEND, "QUEUES": ["mail"]}}):
        with pytest.raises(InvalidTask, match="'default'"):
            django_tasks.task(plain)
        with pytest.raises(InvalidTask, match="'other'"):
            django_tasks.task(queue_name="mail")(plain).using(queue_name="other")


def test_instant_without_a_zone_is_refused():
    with pytest.raises(InvalidTask, match="aware"):
        tasks.noop.using(run_after=datetime(2040, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidTask, match="aware"):
        synchronous.using(run_after=datetime(2040, 1, 1))  # noqa: DTZ001


def test_only_functions_of_a_module_are_tasks(own_registry):
    def local() -> None: ...

    class Holder:
        def method(self) -> None: ...

    for function in (local, lambda: None, Holder().method, print):
        with pytest.raises(InvalidTask, match="module level"):
            django_tasks.task(function)


def test_context_is_the_first_argument_and_called_so(own_registry):
    with pytest.raises(InvalidTask, match="context"):
        django_tasks.task(takes_context=True)(plain)

    assert django_tasks.task(takes_context=True)(plain_with_context).takes_context


def test_task_of_another_backend_is_refused(own_registry):
    with override_settings(TASKS={"default": OTHER_BACKEND, "jobs": LEASE_BACKEND}):
        foreign = django_tasks.task(plain)
        with pytest.raises(InvalidTask, match="another backend"):
            task_backends["jobs"].enqueue(foreign, [], {})
        with pytest.raises(InvalidTask, match="another backend"):
            task_backends["jobs"].validate_task(foreign)


@pytest.mark.django_db
def test_arguments_are_refused_before_any_row_exists():
    for arguments in ([object()], [{1, 2}], [b"x"], [timezone.now()], [float("nan")]):
        with pytest.raises(ValueError, match="args"):
            synchronous.enqueue(*arguments)
    with pytest.raises(ValueError, match="unexpected"):
        synchronous.enqueue(1, other=2)

    assert not Job.objects.exists()


# tasks


def test_plain_task_is_ours_with_the_default_options():
    assert isinstance(synchronous, Task)
    assert isinstance(synchronous, DjangoTask)
    defaults = (synchronous.max_attempts, synchronous.max_crashes, synchronous.on_crash)
    assert defaults == (8, 3, "retry")
    assert (synchronous.priority, synchronous.queue_name, synchronous.run_after) == (
        0,
        "default",
        None,
    )


@pytest.mark.skipif(not TAKES_OUR_OPTIONS, reason="Django 6.0's @task passes no options on")
def test_plain_task_takes_our_options_where_django_passes_them_on(own_registry):
    made = django_tasks.task(max_attempts=2, key="n:{value}", timeout=timedelta(5))(plain)

    prepared = made.prepare(3)

    assert (prepared.max_attempts, prepared.key, prepared.timeout_seconds) == (2, "n:3", 5 * 86400)


def test_task_is_called_from_both_worlds():
    assert synchronous.call(1) == 2
    assert asynchronous.call(1) == 3
    assert async_to_sync(synchronous.acall)(1) == 2
    assert async_to_sync(asynchronous.acall)(1) == 3


def test_tasks_are_equal_by_value_and_hash_alike():
    assert synchronous == synchronous.using()
    assert hash(synchronous) == hash(synchronous.using())
    assert synchronous != synchronous.using(priority=1)
    assert copy.copy(synchronous) == synchronous
    assert (synchronous.name, synchronous.module_path) == ("synchronous", f"{__name__}.synchronous")


def test_using_leaves_the_original_alone():
    when = timezone.now()
    varied = synchronous.using(priority=5, queue_name="q", run_after=when, backend="default")

    assert (varied.priority, varied.queue_name, varied.run_after) == (5, "q", when)
    assert (synchronous.priority, synchronous.queue_name, synchronous.run_after) == (
        0,
        "default",
        None,
    )
    assert dataclasses.replace(synchronous, priority=5) == synchronous.using(priority=5)


# runs


@pytest.mark.django_db
@pytest.mark.parametrize(("task", "arguments", "expected"), [
    (synchronous, [1], 2), (asynchronous, [1], 3), (asynchronous_with_context, [4], [1, 4]),
])  # fmt: skip
def test_task_runs_and_its_result_can_be_fetched(task, arguments, expected):
    result = task.enqueue(*arguments)
    assert isinstance(result, DjangoResult)
    assert result.status == TaskResultStatus.READY

    run_next()

    fetched = backend.get_result(result.id)
    assert (fetched.status, fetched.return_value) == (TaskResultStatus.SUCCESSFUL, expected)
    assert fetched.task == task
    assert fetched.is_finished


@pytest.mark.django_db
def test_coroutine_that_raises_fails_its_attempt():
    result = asynchronous_that_raises.enqueue()

    run = run_next()

    assert run.row["state"] == State.RETRYABLE
    result.refresh()
    assert [error.exception_class for error in result.errors] == [LookupError]


@pytest.mark.django_db(transaction=True)
def test_everything_can_be_awaited():
    async def whole() -> None:
        result = await asynchronous.aenqueue(1)
        assert (await backend.aget_result(result.id)).status == TaskResultStatus.READY
        assert (await asynchronous.aget_result(result.id)).id == result.id
        await result.arefresh()
        assert result.status == TaskResultStatus.READY
        assert (await backend.aenqueue(synchronous, [1], {})).created

    async_to_sync(whole)()

    assert Job.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_enqueue_joins_the_transaction_of_its_caller():
    with contextlib.suppress(LookupError), transaction.atomic():
        synchronous.enqueue(1)
        raise LookupError

    assert not Job.objects.exists()


@pytest.mark.django_db
def test_deferred_task_waits():
    synchronous.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)

    assert Job.objects.get().state == State.SCHEDULED


# signals


@pytest.mark.django_db(transaction=True)
def test_signals_tell_of_enqueue_start_and_end():
    with listening(task_enqueued, task_started, task_finished) as heard:
        result = synchronous.enqueue(1)
        run_next()

    assert heard == [
        ("enqueued", LeaseBackend, result.id, "READY"),
        ("started", LeaseBackend, result.id, "RUNNING"),
        ("finished", LeaseBackend, result.id, "SUCCESSFUL"),
    ]


@pytest.mark.django_db(transaction=True)
def test_attempt_that_will_be_retried_is_no_end():
    with listening(task_started, task_finished) as heard:
        tasks.explode.using(max_attempts=2).enqueue()
        run_next()
        assert [name for name, *_ in heard] == ["started"]
        make_due(Job.objects.get())
        Job.objects.update(state=State.PENDING)
        run_next()

    assert [(name, status) for name, _, _, status in heard] == [
        ("started", "RUNNING"),
        ("started", "RUNNING"),
        ("finished", "FAILED"),
    ]


@pytest.mark.django_db(transaction=True)
def test_receiver_that_raises_breaks_no_run():
    def broken(**_):
        raise RuntimeError("a receiver of the project")

    for signal in (task_started, task_finished):
        signal.connect(broken)
    try:
        synchronous.enqueue(1)
        assert run_next().row["state"] == State.SUCCEEDED
    finally:
        for signal in (task_started, task_finished):
            signal.disconnect(broken)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_signal_reads_no_row_where_nobody_listens(signal):
    def statements() -> int:
        synchronous.enqueue(1)
        with CaptureQueriesContext(connection) as queries:
            run_next()
        return len(queries)

    silent = statements()
    with listening(signal):
        assert statements() > silent
    assert statements() == silent
