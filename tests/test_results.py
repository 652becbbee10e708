"""What a producer may know of its job: `get_result`, `TaskResult` and `wait`."""

import asyncio
import pickle
import threading
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.utils import timezone

from leasejobs import enqueue_many, leases, registry, results
from leasejobs.compat import TaskResultDoesNotExist, TaskResultMismatch, TaskResultStatus
from leasejobs.compat import task_backends as backends
from leasejobs.exceptions import LeaseLost, UnknownTask
from leasejobs.models import Attempt, Job
from leasejobs.outcomes import Released
from leasejobs.recovery import recover_expired
from leasejobs.results import TaskResult
from leasejobs.states import AttemptOutcome, State
from leasejobs.testing import expire_lease, make_due
from tests import tasks
from tests.factories import HOLDER, JobFactory, job_in, lease_of
from tests.running import run_next

backend = backends["default"]
SOON = timedelta(seconds=20)


# status


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "status"), [
    (State.SCHEDULED, "READY"), (State.PENDING, "READY"), (State.RUNNING, "RUNNING"),
    (State.RETRYABLE, "READY"), (State.SUCCEEDED, "SUCCESSFUL"), (State.FAILED, "FAILED"),
    (State.CANCELLED, "FAILED"), (State.PARKED, "READY"),
])  # fmt: skip
def test_every_state_has_a_status(state, status):
    result = backend.get_result(str(job_in(state).pk))

    assert (result.status, result.state) == (TaskResultStatus(status), state)
    assert result.is_finished == (status in ("SUCCESSFUL", "FAILED"))


@pytest.mark.django_db
def test_result_follows_its_job_from_enqueue_to_success():
    result = tasks.echo.enqueue({"a": [1]})
    assert (result.status, result.attempts, result.started_at) == ("READY", 0, None)
    assert (result.args, result.kwargs, result.backend) == ([{"a": [1]}], {}, "default")
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018

    run_next()
    result.refresh()

    row = Job.objects.get()
    assert (result.status, result.return_value) == ("SUCCESSFUL", {"a": [1]})
    assert (result.attempts, result.worker_ids, result.errors) == (1, [HOLDER], [])
    assert result.enqueued_at == row.created_at
    assert (result.started_at, result.last_attempted_at) == (row.started_at, row.claimed_at)
    assert result.finished_at == row.finished_at is not None
    assert (result.job_id, result.created, result.task) == (row.pk, True, tasks.echo)


@pytest.mark.django_db
def test_result_of_a_running_job_names_its_worker():
    job = JobFactory(running=True)

    result = backend.get_result(str(job.pk))

    assert (result.worker_ids, result.attempts, result.errors) == ([HOLDER], 1, [])
    assert result.last_attempted_at == job.claimed_at


@pytest.mark.django_db
def test_failed_attempts_are_errors_with_their_exception():
    result = tasks.explode.enqueue("it broke")
    for attempt in (1, 2, 3):
        run_next()
        result.refresh()
        assert (result.attempts, len(result.errors)) == (attempt, attempt)
        if attempt < 3:
            assert result.status == "READY"
            make_due(Job.objects.get())
            Job.objects.update(state=State.PENDING)

    error = result.errors[-1]
    assert (result.status, result.failure_code) == ("FAILED", "task_raised")
    assert (error.exception_class_path, error.exception_class) == (
        "builtins.RuntimeError",
        RuntimeError,
    )
    assert "it broke" in error.traceback
    assert "raise RuntimeError(text)" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


@pytest.mark.django_db
def test_run_whose_process_ended_is_an_error_too():
    job = JobFactory(running=True)
    expire_lease(job)
    recover_expired()

    [error] = backend.get_result(str(job.pk)).errors

    assert error.exception_class is LeaseLost
    assert error.traceback == "lease_expired"


@pytest.mark.django_db
def test_refunded_runs_are_no_errors_and_no_attempts():
    job = JobFactory(running=True)
    leases.end(lease_of(job), Released())

    result = backend.get_result(str(job.pk))

    assert (result.attempts, result.errors, result.worker_ids) == (0, [], [HOLDER])


@pytest.mark.django_db
def test_errors_and_workers_of_a_long_history_are_the_latest():
    job = JobFactory(state=State.RETRYABLE, epoch=150, attempts=150, max_attempts=1000)
    Attempt.objects.bulk_create(
        Attempt(
            job_id=job.pk, epoch=epoch, number=epoch, worker=f"w{epoch}", ended_at=timezone.now(),
            outcome=AttemptOutcome.FAILED, failure_code="task_raised", detail=f"no {epoch}",
            exception_path="builtins.KeyError",
        )
        for epoch in range(1, 151)
    )  # fmt: skip

    result = backend.get_result(str(job.pk))

    assert result.attempts == 150
    assert [error.traceback for error in result.errors] == [
        f"task_raised: no {epoch}" for epoch in range(131, 151)
    ]
    assert result.worker_ids == [f"w{epoch}" for epoch in range(51, 151)]


@pytest.mark.django_db
def test_result_costs_one_statement_before_the_first_claim(django_assert_num_queries):
    job = JobFactory()

    with django_assert_num_queries(1):
        backend.get_result(str(job.pk))


# ids


@pytest.mark.django_db
@pytest.mark.parametrize("result_id", [
    "1", "0", "-1", "007", "1.0", " 1", "1e3", "", "None", "abc", "\x00", "\u0667", "\u00b2",
    "9223372036854775808", "9" * 5000, None, 5, b"1",
], ids=lambda given: repr(given)[:20])  # fmt: skip
def test_id_that_no_job_has_is_told(result_id):
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result_id)


@pytest.mark.django_db
def test_id_is_taken_only_as_it_was_given():
    job = JobFactory()

    assert backend.get_result(str(job.pk)).job_id == job.pk
    assert backend.get_result(job.pk).job_id == job.pk
    for other in (f"0{job.pk}", f" {job.pk}", f"+{job.pk}", f"{job.pk}.0", True):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(other)


@pytest.mark.django_db
def test_result_of_another_task_is_a_mismatch():
    result = tasks.echo.enqueue(1)

    assert tasks.echo.get_result(result.id).job_id == result.job_id
    assert tasks.echo.using(priority=5).get_result(result.id).job_id == result.job_id
    with pytest.raises(TaskResultMismatch, match="echo"):
        tasks.noop.get_result(result.id)


@pytest.mark.django_db
def test_refresh_of_a_pruned_job_is_told():
    result = tasks.noop.enqueue()
    Job.objects.all().delete()

    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


# tasks that are gone


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["tests.tasks.removed", "gone.module.task", "gone", ""])
def test_result_of_a_task_that_is_gone_can_be_read(name):
    job = JobFactory(task=name, state=State.SUCCEEDED, result=5)

    result = backend.get_result(str(job.pk))

    assert (result.status, result.return_value) == ("SUCCESSFUL", 5)
    assert result.task.name in name
    result.refresh()
    with pytest.raises(UnknownTask, match="no task"):
        result.task.enqueue()
    with pytest.raises(UnknownTask):
        result.task.prepare()
    with pytest.raises(UnknownTask):
        result.task.call()
    with pytest.raises(TaskResultMismatch):
        tasks.noop.get_result(str(job.pk))


@pytest.mark.django_db
def test_job_whose_json_python_cannot_read_has_a_result():
    job = JobFactory(state=State.FAILED, failure_code="unreadable")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE leasejobs_job SET args = %s::jsonb WHERE id = %s", [f"[{'9' * 5000}]", job.pk]
        )

    result = backend.get_result(str(job.pk))

    assert (result.status, result.failure_code, result.args) == ("FAILED", "unreadable", [])


# wait


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED, State.PARKED])
def test_wait_returns_at_once_for_a_job_at_rest(state):
    result = backend.get_result(str(job_in(state, failure_code="because").pk))

    with transaction.atomic():
        assert result.wait(timeout=0) is result

    assert (result.state, result.failure_code) == (state, "because")


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.RUNNING, State.RETRYABLE])
@pytest.mark.parametrize("timeout", [0, -1, 0.02, timedelta(milliseconds=20)], ids=str)
def test_wait_gives_up_on_a_job_under_way(state, timeout):
    result = backend.get_result(str(job_in(state).pk))

    with pytest.raises(TimeoutError, match=f"job {result.job_id}"):
        result.wait(timeout, poll=0.005)


@pytest.mark.django_db(transaction=True)
def test_wait_sees_what_another_process_does():
    result = tasks.echo.enqueue(7)

    def work():
        try:
            run_next()
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert result.wait(SOON, poll=timedelta(milliseconds=5)).return_value == 7
    finally:
        worker.join()


@pytest.mark.django_db(transaction=True)
def test_wait_in_a_coroutine_leaves_the_loop_to_others():
    result = tasks.echo.enqueue(7)
    turns = []

    async def work() -> None:
        turns.append("other")
        await asyncio.to_thread(run_and_close)

    async def both() -> TaskResult:
        waiting = asyncio.create_task(result.await_(SOON, poll=0.005))
        await work()
        return await waiting

    def run_and_close():
        try:
            run_next()
        finally:
            connections.close_all()

    assert async_to_sync(both)().return_value == 7
    assert turns == ["other"]


@pytest.mark.django_db(transaction=True)
def test_wait_in_a_coroutine_gives_up_in_time():
    result = tasks.echo.enqueue(7)

    with pytest.raises(TimeoutError):
        async_to_sync(result.await_)(0.01, poll=0.005)


@pytest.mark.django_db(transaction=True)
def test_wait_inside_the_transaction_that_enqueued_is_refused():
    with transaction.atomic():
        result = tasks.noop.enqueue()
        with pytest.raises(RuntimeError, match="committed"):
            result.wait(5)


@pytest.mark.django_db
def test_wait_for_a_pruned_job_is_told():
    result = tasks.noop.enqueue()
    Job.objects.all().delete()

    with pytest.raises(TaskResultDoesNotExist):
        result.wait()


@pytest.mark.django_db
@pytest.mark.parametrize("poll", [0, -1, timedelta(0)], ids=str)
def test_wait_does_not_spin(poll):
    with pytest.raises(ValueError, match="poll"):
        tasks.noop.enqueue().wait(poll=poll)


# the rest


@pytest.mark.django_db
def test_result_can_be_pickled():
    result = tasks.echo.enqueue(1)

    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.django_db
def test_key_that_is_taken_gives_the_result_of_the_job_that_has_it():
    first = tasks.echo.using(key="k").enqueue(1)
    second = tasks.echo.using(key="k").enqueue(2)

    assert (second.created, second.id) == (False, first.id)
    second.refresh()
    assert second.created is False


@pytest.mark.django_db
def test_jobs_of_different_tasks_go_in_together():
    found = enqueue_many(
        [
            tasks.echo.prepare(1),
            tasks.noop.using(queue_name="mail", lock_key="l", metadata={"a": 1}).prepare(),
            tasks.explode.using(timeout=timedelta(5), expires_after=timedelta(9)).prepare("x"),
            tasks.echo.using(key="k", on_dead="tests.test_task_declaration.handler").prepare(2),
        ]
    )

    rows = list(Job.objects.order_by("id"))
    assert [item.job_id for item in found] == [row.pk for row in rows]
    assert [row.task.split(".")[-1] for row in rows] == ["echo", "noop", "explode", "echo"]
    assert [row.queue for row in rows] == ["default", "mail", "default", "default"]
    assert [row.lock_key for row in rows] == ["", "l", "", ""]
    assert [row.metadata for row in rows] == [None, {"a": 1}, None, None]
    assert [row.timeout_seconds for row in rows] == [None, None, 432_000, None]
    assert [row.deadline_at is None for row in rows] == [True, True, False, True]
    assert [row.on_dead is None for row in rows] == [True, True, True, False]


def test_registry_is_asked_once_for_a_result_in_a_context():
    job = Job(
        pk=5, task="tests.tasks.noop", attempts=2, leased_by=HOLDER, created_at=timezone.now()
    )

    result = results.result_of_job(job)

    assert (result.task, result.attempts) == (registry.find("tests.tasks.noop"), 2)
    assert result.worker_ids == [HOLDER, HOLDER]
