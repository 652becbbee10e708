"""`EagerBackend` runs a job as it is enqueued, by its real row, lease and executor."""

import datetime
import decimal
import uuid
from datetime import timedelta

import pytest
import structlog
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings

from leasejobs import enqueue_many
from leasejobs.backend import LeaseBackend
from leasejobs.compat import TaskResultStatus, task_backends
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import Job, Queue
from leasejobs.states import State
from leasejobs.testing import EagerBackend, run_due
from tests import tasks
from tests.fenced_app.models import Receipt
from tests.testing import tasks as odd

EAGER = {"default": {"BACKEND": "leasejobs.testing.EagerBackend"}}

LIST_OF_ITSELF: list = []
LIST_OF_ITSELF.append(LIST_OF_ITSELF)


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


@override_settings(TASKS=EAGER)
class InTestCase(TestCase):
    def test_task_runs_at_once(self):
        result = odd.complete_in_fence.enqueue("now")

        assert result.return_value == "now"
        assert Receipt.objects.get().text == "now"

    def test_job_of_a_block_runs_where_the_test_plays_the_commit(self):
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            result = tasks.echo.enqueue(1)
            assert result.status == TaskResultStatus.READY

        assert result.return_value == 1

    def test_commit_that_is_played_inside_another_block_is_refused(self):
        with (
            transaction.atomic(),
            pytest.raises(RuntimeError, match="a job cannot run inside atomic"),
            self.captureOnCommitCallbacks(execute=True),
        ):
            tasks.echo.enqueue(1)

        assert Job.objects.get().epoch == 0

    def test_job_of_a_block_is_left_to_run_due(self):
        with transaction.atomic():
            tasks.echo.enqueue(1)

        assert [job.result for job in run_due()] == [1]


@override_settings(TASKS=EAGER)
class InTransactionTestCase(TransactionTestCase):
    def test_job_of_a_block_runs_when_the_block_commits(self):
        with transaction.atomic():
            result = tasks.echo.enqueue(1)
            assert not result.is_finished

        assert result.return_value == 1

    def test_job_of_a_block_that_rolls_back_never_runs(self):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            result = odd.inspect.enqueue("never")
            raise ZeroDivisionError

        assert not result.is_finished
        assert not Job.objects.exists()
        assert ["never"] not in odd.seen

    def test_job_enqueued_behind_a_fence_runs_if_the_fence_commits(self):
        odd.spawn_in_fence.enqueue(False)
        odd.spawn_in_fence.enqueue(True)

        assert Job.objects.filter(task=odd.spawn.module_path).count() == 1
        assert Job.objects.get(task=odd.spawn.module_path).state == State.SUCCEEDED


def test_backend_is_a_lease_backend_to_every_task(eager):
    backend = task_backends["default"]

    assert isinstance(backend, EagerBackend)
    assert isinstance(backend, LeaseBackend)
    assert tasks.echo.get_backend() is backend


def test_result_tells_of_the_run_and_of_the_row(eager):
    result = tasks.echo.enqueue([1, {"a": None}])

    job = Job.objects.get(pk=result.job_id)
    assert (result.status, result.is_finished) == (TaskResultStatus.SUCCESSFUL, True)
    assert result.return_value == [1, {"a": None}] == job.result
    assert (result.created, result.attempts, result.errors) == (True, 1, [])
    assert result.finished_at == job.finished_at is not None
    assert result.started_at == job.started_at is not None
    assert result.last_attempted_at == job.claimed_at


def test_context_is_the_real_one(eager):
    found = odd.inspect.enqueue(1).return_value

    job = Job.objects.get()
    assert (found["job"], found["attempt"], found["epoch"]) == (job.pk, 1, 1)
    assert found["args"] == [1]


def test_failure_is_on_the_result_and_not_raised(eager):
    result = tasks.discard.enqueue("card_expired")

    [error] = result.errors
    assert result.status == TaskResultStatus.FAILED
    assert error.exception_class_path == "leasejobs.outcomes.Discard"
    assert "tasks.py" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert Job.objects.get().failure_code == "card_expired"


def test_failure_with_budget_left_waits_as_with_a_worker(eager):
    result = tasks.explode.enqueue()

    assert result.status == TaskResultStatus.READY
    assert len(result.errors) == 1
    assert [job.attempts for job in run_due()] == [2, 3]


def test_continued_and_snoozed_jobs_wait_as_with_a_worker(eager):
    sliced, snoozed = tasks.count_slices.enqueue(2), odd.snooze.enqueue()

    assert sliced.status == snoozed.status == TaskResultStatus.READY
    assert Job.objects.get(pk=sliced.job_id).checkpoint == 1
    assert Job.objects.get(pk=snoozed.job_id).state == State.SCHEDULED
    assert [job.result for job in run_due()] == [2]


def test_job_for_later_and_of_a_paused_queue_is_not_run(eager):
    Queue.objects.create(name="mail", paused_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))

    later = tasks.echo.using(run_after=timedelta(hours=1)).enqueue(1)
    paused = tasks.echo.using(queue_name="mail").enqueue(1)

    assert later.status == paused.status == TaskResultStatus.READY
    assert set(Job.objects.values_list("epoch", flat=True)) == {0}


def test_key_that_is_taken_runs_nothing_and_gives_the_other_result(eager):
    first = odd.inspect.using(key="k").enqueue(1)
    odd.seen.clear()

    second = odd.inspect.using(key="k").enqueue(2)

    assert odd.seen == []
    assert (second.created, second.job_id) == (False, first.job_id)
    assert second.return_value == first.return_value


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=1),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 1),  # noqa: DTZ001
        decimal.Decimal(1),
        {1},
        b"bytes",
        float("nan"),
        "a\x00b",
        "\ud800",
        nested(2_000),
        LIST_OF_ITSELF,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("backend", ["LeaseBackend", "EagerBackend", "DummyBackend"])
def test_argument_that_is_no_json_is_refused_alike_by_every_backend(backend, value, settings, db):
    place = "leasejobs.backend" if backend == "LeaseBackend" else "leasejobs.testing"
    settings.TASKS = {"default": {"BACKEND": f"{place}.{backend}"}}

    with pytest.raises(InvalidArguments, match="args"):
        odd.inspect.enqueue(value)

    assert not Job.objects.exists()


def test_arguments_arrive_as_the_json_they_are_stored_as(eager):
    odd.seen.clear()

    odd.inspect.enqueue((1, 2), {1: 2}, 2**70)

    assert odd.seen == [[[1, 2], {"1": 2}, 2**70]]


def test_call_that_does_not_fit_the_signature_is_refused(eager):
    with pytest.raises(InvalidArguments):
        tasks.echo.enqueue(1, 2)

    assert not Job.objects.exists()


def test_job_enqueued_by_a_job_runs_after_it(eager):
    result = odd.spawn.enqueue(2)

    assert result.return_value == 0, "the one it enqueued was not finished while it ran"
    assert Job.objects.filter(state=State.SUCCEEDED).count() == 3


def test_job_enqueued_behind_a_fence_runs_only_if_the_fence_commits(eager):
    odd.spawn_in_fence.enqueue(False)
    odd.spawn_in_fence.enqueue(True)

    [spawned] = Job.objects.filter(task=odd.spawn.module_path)
    assert spawned.state == State.SUCCEEDED


def test_jobs_that_enqueue_one_another_for_ever_are_told(eager, monkeypatch):
    monkeypatch.setattr("leasejobs.testing.backends._MOST_RUNS", 5)

    with pytest.raises(AssertionError, match="enqueue one another for ever"):
        odd.spawn.enqueue(-1)

    assert tasks.echo.enqueue(1).return_value == 1, "and the next starts afresh"


def test_jobs_enqueued_in_bulk_are_left_to_run_due(eager):
    enqueue_many([tasks.echo.prepare(1), tasks.echo.prepare(2)])

    assert [job.result for job in run_due()] == [1, 2]


def test_context_variables_of_the_caller_are_there_after_three_jobs(eager):
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service="x")

    with structlog.contextvars.bound_contextvars(request_id="r"):
        for _ in range(3):
            result = odd.clear_context.enqueue()
        assert structlog.contextvars.get_contextvars() == {"service": "x", "request_id": "r"}

    assert result.return_value["request_id"] == "r"
    structlog.contextvars.clear_contextvars()


@pytest.mark.django_db(transaction=True)
def test_enqueue_from_a_coroutine_runs_the_task(settings):
    settings.TASKS = EAGER

    result = async_to_sync(tasks.echo.aenqueue)(3)

    assert result.return_value == 3


def test_coroutine_function_runs_to_its_end(eager):
    assert odd.answer.enqueue().return_value == 42


def test_row_says_which_job_enqueued_it(eager):
    outer = odd.spawn.enqueue(1)

    [inner] = Job.objects.exclude(pk=outer.job_id)
    assert inner.parent_id == outer.job_id
