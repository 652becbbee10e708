"""`run_due` does on the test's own connection what a worker's tick does, inside TestCase too."""

from datetime import timedelta

import pytest
import structlog
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import TestCase, TransactionTestCase
from django.utils import translation

from leasejobs import enqueue_many
from leasejobs.models import Job, Queue
from leasejobs.states import AttemptOutcome, State
from leasejobs.testing import expire_lease, make_due, run_due
from tests import tasks
from tests.factories import JobFactory, attempts_of, job_in
from tests.fenced_app.models import Receipt
from tests.testing import tasks as odd
from tests.two_connections import second_session


class InTestCase(TestCase):
    def test_fenced_work_commits_inside_the_transaction_of_a_test_case(self):
        odd.complete_in_fence.enqueue("hello")

        [job] = run_due()

        assert (job.state, job.result, job.checkpoint) == (5, "hello", "written")
        assert Receipt.objects.get().job_id == job.pk

    def test_failure_leaves_nothing_of_its_fence_and_the_session_usable(self):
        odd.write_then_raise.enqueue()

        [job] = run_due()

        assert job.state == State.RETRYABLE
        assert not Receipt.objects.exists()

    def test_what_atomic_of_the_test_enqueued_is_run_after_the_block(self):
        with transaction.atomic():
            tasks.echo.enqueue(1)

        assert [job.result for job in run_due()] == [1]


class InTransactionTestCase(TransactionTestCase):
    def test_job_is_run(self):
        tasks.echo.enqueue({"a": 1})

        assert [job.result for job in run_due()] == [{"a": 1}]

    def test_row_that_another_connection_has_locked_is_left_alone(self):
        result = tasks.echo.enqueue(1)

        with second_session() as other:
            other.execute(
                f'SELECT FROM "{Job._meta.db_table}" WHERE id = %s FOR UPDATE', [result.job_id]
            )
            ran = run_due()

        assert ran == []
        assert Job.objects.get().state == State.PENDING

    def test_outcome_that_a_lock_holds_up_is_told(self):
        odd.lock_own_row.enqueue()

        with pytest.raises(AssertionError, match=r"another connection has .* locked"):
            run_due()

        odd.sessions.pop().close()

    def test_transaction_that_a_task_leaves_open_is_told(self):
        odd.leave_a_transaction_open.enqueue()

        with pytest.raises(RuntimeError, match="left a transaction open"):
            run_due()

        connection.rollback()
        connection.set_autocommit(True)

    def test_failed_statement_hurts_nobody_where_each_commits_by_itself(self):
        odd.break_the_transaction.enqueue(False)
        odd.violate_by_the_orm.enqueue()

        assert [job.state for job in run_due()] == [State.SUCCEEDED] * 2


@pytest.fixture(autouse=True)
def _nothing_seen():
    odd.seen.clear()


def states(jobs: list[Job]) -> list[State]:
    return [State(job.state) for job in jobs]


def test_nothing_due_runs_nothing(db):
    tasks.echo.using(run_after=timedelta(hours=1)).enqueue(1)

    assert run_due() == []


def test_context_of_a_run_is_that_of_the_job(db):
    result = odd.inspect.enqueue(1, "two")

    [job] = run_due()

    assert job.pk == result.job_id
    assert job.result == {
        "job": job.pk, "attempt": 1, "epoch": 1, "stop": False, "args": [1, "two"],
        "key": job.result["key"],
    }  # fmt: skip
    assert [attempt["outcome"] for attempt in attempts_of(job)] == [AttemptOutcome.SUCCEEDED]


def test_due_jobs_run_most_urgent_first_and_waiting_ones_are_promoted(db):
    odd.inspect.using(priority=-5).enqueue("last")
    job_in(State.SCHEDULED, task=odd.inspect.module_path, args=["promoted"], priority=-9)
    make_due(Job.objects.get(priority=-9))
    odd.inspect.using(priority=5).enqueue("first")

    run_due()

    assert odd.seen == [["promoted"], ["first"], ["last"]]


def test_only_the_queue_asked_for_is_run(db):
    tasks.echo.using(queue_name="mail").enqueue(1)
    tasks.echo.enqueue(2)

    assert [job.result for job in run_due("mail")] == [1]
    assert [job.result for job in run_due("other")] == []
    assert [job.result for job in run_due()] == [2]


def test_each_run_is_returned_as_it_left_the_row(db):
    tasks.count_slices.enqueue(3)

    ran = run_due()

    assert states(ran) == [State.PENDING, State.PENDING, State.SUCCEEDED]
    assert [job.checkpoint for job in ran] == [1, 2, 2]


def test_retries_without_a_delay_run_until_the_budget_is_spent(db):
    tasks.explode.enqueue()

    ran = run_due()

    assert states(ran) == [State.RETRYABLE, State.RETRYABLE, State.FAILED]
    assert [job.attempts for job in ran] == [1, 2, 3]
    assert ran[-1].failure_code == "task_raised"


def test_snoozed_job_waits_until_it_is_made_due(db):
    odd.snooze.enqueue()

    [job] = run_due()

    assert (job.state, job.attempts) == (State.SCHEDULED, 0)
    make_due(job)
    assert states(run_due()) == [State.SCHEDULED]


def test_job_without_an_end_is_told_at_the_limit(db):
    odd.spawn.enqueue(-1)

    with pytest.raises(AssertionError, match=r"ran 7 jobs and .*spawn #\d+ is due still"):
        run_due(limit=7)

    assert Job.objects.terminal().count() == 7


def test_limit_that_just_suffices_is_no_error(db):
    tasks.count_slices.enqueue(3)

    assert len(run_due(limit=3)) == 3


def test_one_pass_leaves_what_it_enqueued(db):
    odd.spawn.enqueue(1)
    tasks.count_slices.enqueue(2)

    ran = run_due(until_empty=False)

    assert len(ran) == 2
    assert Job.objects.due().count() == 2


def test_one_pass_runs_no_more_than_its_limit(db):
    enqueue_many(tasks.echo.prepare(n) for n in range(3))

    assert [job.result for job in run_due(limit=2, until_empty=False)] == [0, 1]


def test_lease_that_ran_out_is_taken_back_and_the_job_run_again(db):
    job = JobFactory(running=True, task="tests.tasks.echo", args=[1])
    expire_lease(job)

    [ran] = run_due()

    assert (ran.state, ran.crashes, ran.attempts, ran.epoch) == (State.SUCCEEDED, 1, 2, 2)


def test_live_lease_of_somebody_else_is_left_alone(db):
    JobFactory(running=True)

    assert run_due() == []


def test_job_of_a_paused_queue_is_not_run(db):
    tasks.echo.using(queue_name="mail").enqueue(1)
    Queue.objects.create(name="mail", paused_at=Now())

    assert run_due() == []
    Queue.objects.update(paused_at=None)
    assert len(run_due()) == 1


def test_job_whose_lock_is_held_is_not_run(db):
    JobFactory(running=True, tenant="a", lock_key="k")
    JobFactory(tenant="a", lock_key="k")
    free = JobFactory(tenant="b", lock_key="k")

    assert run_due() == [free]


def test_job_past_its_deadline_is_cancelled_and_not_run(db):
    JobFactory()
    Job.objects.update(deadline_at=Now() - timedelta(seconds=1))

    assert run_due() == []

    job = Job.objects.get()
    assert (job.state, job.failure_code, job.epoch) == (State.CANCELLED, "expired", 0)


def test_task_that_failed_for_good_hands_over_to_the_one_for_the_dead(db):
    job = JobFactory(
        task=tasks.discard.module_path, args=["gone"],
        on_dead={"task": tasks.noop.module_path, "queue": "default", "max_attempts": 1,
                 "max_crashes": 1},
    )  # fmt: skip

    ran = run_due()

    assert ran[0] == job
    assert ran[1].kwargs == {"job_id": job.pk, "reason": "gone"}


def test_unknown_task_is_put_off_and_not_raised(db):
    JobFactory(task="tests.tasks.missing")

    assert all(job.state == State.SCHEDULED for job in run_due())


@pytest.mark.django_db(transaction=True)
def test_inside_atomic_it_refuses_and_claims_nothing():
    tasks.echo.enqueue(1)

    with transaction.atomic(), pytest.raises(RuntimeError, match="inside atomic"):
        run_due()

    assert Job.objects.get().epoch == 0


def test_inside_atomic_of_a_test_case_it_refuses_and_claims_nothing(db):
    tasks.echo.enqueue(1)

    with transaction.atomic(), pytest.raises(RuntimeError, match="inside atomic"):
        run_due()

    assert Job.objects.get().epoch == 0


def test_context_variables_of_a_task_and_of_the_caller_stay_apart(db):
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service="x")
    for _ in range(3):
        odd.clear_context.enqueue()

    with structlog.contextvars.bound_contextvars(request_id="r"):
        ran = run_due()
        assert structlog.contextvars.get_contextvars() == {"service": "x", "request_id": "r"}

    structlog.contextvars.clear_contextvars()
    assert translation.get_language() == "en"
    assert all(job.result["service"] == "x" for job in ran)
    assert all("left" not in job.result for job in ran)


@pytest.mark.parametrize("task", ["break_the_transaction", "violate_by_the_orm"])
def test_transaction_of_the_test_that_a_task_broke_is_told(task, db):
    arguments = [False] if task == "break_the_transaction" else []
    getattr(odd, task).enqueue(*arguments)

    with pytest.raises(RuntimeError, match="use TransactionTestCase"):
        run_due()

    connection.needs_rollback = True  # so that the end of this test rolls back and asks nothing


def test_task_that_guards_its_failing_statement_runs_in_a_test_case(db):
    odd.break_the_transaction.enqueue(True)

    assert [job.result for job in run_due()] == ["went on"]


def test_interrupt_of_the_user_passes_through_once_the_row_is_written(db):
    odd.forget_everything.enqueue()

    with pytest.raises(KeyboardInterrupt):
        run_due()

    assert Job.objects.get().state == State.RETRYABLE


def test_outcome_that_cannot_be_stored_ends_in_one_that_can(db):
    odd.snooze_past_the_end_of_time.enqueue()

    [job] = run_due()

    assert (job.state, job.failure_code) == (State.FAILED, "unrecordable_outcome")


def test_job_that_was_taken_from_its_run_is_returned_as_it_stands(db):
    odd.be_recovered.enqueue()

    ran = run_due()

    assert [job.crashes for job in ran] == [1, 2]
    assert states(ran) == [State.PENDING, State.RETRYABLE]
    assert [attempt["late_outcome"] for attempt in attempts_of(ran[-1])] == ["succeeded"] * 2
