"""What a task may do about its own job: outcomes, fenced writes, checkpoints, progress."""

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from leasejobs import (
    Continue,
    Discard,
    JobContext,
    Retry,
    Snooze,
    claiming,
    context,
    executor,
    leases,
    recovery,
    signals,
    task,
)
from leasejobs.compat import TaskContext, TaskResultStatus
from leasejobs.exceptions import LeaseLost, OutcomeNotAllowed
from leasejobs.heartbeat import Held
from leasejobs.models import Job
from leasejobs.outcomes import Succeeded
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests import tasks
from tests.factories import HOLDER, LEASE, JobFactory, attempts_of, forged_lease, lease_of, whole
from tests.fenced_app.models import Receipt
from tests.running import run_next
from tests.two_connections import own_pid, second_session, terminate

pytestmark = pytest.mark.django_db

two_sessions = pytest.mark.django_db(transaction=True)


def context_of(job: Job, *, stopping: bool = False) -> JobContext:
    return JobContext(job, Held(lease_of(job)), lambda: stopping)


@task(takes_context=True)
def complete_inside(context: JobContext, then: str = "return") -> str:
    with context.fenced():
        Receipt.objects.create(text="written")
        context.complete({"from": "complete"})
    if then == "raise":
        raise RuntimeError("after the completion")
    if then == "snooze":
        return Snooze(LEASE)  # type: ignore[return-value]
    if then == "again":
        with context.fenced():
            context.complete("twice")
    return "returned"


@task(takes_context=True)
def complete_outside(context: JobContext) -> None:
    context.complete(1)


@task(takes_context=True)
def complete_twice(context: JobContext) -> None:
    with context.fenced():
        Receipt.objects.create(text="written")
        context.complete(1)
        context.complete(2)


@task(takes_context=True)
def raise_inside(context: JobContext) -> None:
    with context.fenced():
        Receipt.objects.create(text="never")
        context.checkpoint({"page": 2})
        context.complete(1)
        raise ZeroDivisionError


@task(takes_context=True)
def return_json(context: JobContext, what: str) -> Any:
    return ANSWERS[what]


@task(takes_context=True)
def answer(context: JobContext, what: str) -> Any:
    raise ANSWERS[what]


@task(takes_context=True)
def tell_progress(context: JobContext, steps: int) -> None:
    for step in range(steps + 1):
        context.progress(step, steps)


@task(terminal=(ZeroDivisionError,))
def divide(by: int) -> float:
    return 1 / by


class HostileDict(dict):
    def items(self) -> Any:
        raise RuntimeError("no items")


class BareDiscard(Discard):
    def __init__(self) -> None:
        pass


class BareRetry(Retry):
    def __init__(self) -> None:
        pass


class Quiet(BaseException):
    pass


nested: list[Any] = []
for _ in range(5000):
    nested = [nested]

ANSWERS: dict[str, Any] = {
    "set": {1},
    "nan": float("nan"),
    "nested": nested,
    "hostile": HostileDict(a=1),
    "snooze": Snooze(timedelta(hours=1)),
    "continue": Continue({"page": 2}),
    "continue badly": Continue(object()),
    "retry": Retry(timedelta(hours=3)),
    "retry by backoff": Retry(),
    "discard": Discard("card_expired"),
    "bare discard": BareDiscard(),
    "bare retry": BareRetry(),
    "exit": SystemExit(3),
    "cancelled": asyncio.CancelledError(),
    "generator exit": GeneratorExit(),
    "base": Quiet("hush"),
}


# the outcomes of a task


def test_returned_value_is_the_result():
    tasks.echo.enqueue({"a": [1, None]})

    run = run_next()

    assert (run.row["state"], run.row["result"]) == (State.SUCCEEDED, {"a": [1, None]})


def test_snooze_waits_and_is_refunded():
    return_json.enqueue("snooze")

    run = run_next()

    assert (run.row["state"], run.row["attempts"]) == (State.SCHEDULED, 0)
    assert run.attempt["outcome"] == "snoozed"


def test_continue_keeps_its_checkpoint_for_the_next_attempt():
    return_json.enqueue("continue")

    run = run_next()

    assert (run.row["state"], run.row["checkpoint"]) == (State.PENDING, {"page": 2})
    assert run.attempt["outcome"] == "continued"


def test_slices_run_to_their_end_on_one_attempt():
    tasks.count_slices.enqueue(5)

    runs = [run_next() for _ in range(5)]

    assert runs[-1].row["state"] == State.SUCCEEDED
    assert runs[-1].row["result"] == 5
    assert [run.attempt["number"] for run in runs] == [1] * 5


def test_retry_counts_and_waits_for_its_own_delay():
    answer.enqueue("retry")

    run = run_next()

    assert (run.row["state"], run.row["attempts"]) == (State.RETRYABLE, 1)
    assert run.row["due_at"] > run.attempt["ended_at"] + timedelta(hours=2)
    assert run.row["failure_code"] == "retry_requested"


def test_discard_fails_for_good_with_its_code():
    answer.enqueue("discard")

    run = run_next()

    assert (run.row["state"], run.row["failure_code"]) == (State.FAILED, "card_expired")
    assert run.row["attempts"] == 1


@pytest.mark.parametrize("code", ["", "Card", "1st", "a" * 65, "a-b", "a\n", None, 7], ids=repr)
def test_discard_refuses_what_is_no_code(code):
    with pytest.raises(ValueError, match="Discard needs a code"):
        Discard(code)


@pytest.mark.parametrize("delay", [timedelta(seconds=-1), 5, "x"], ids=repr)
def test_waiting_refuses_what_is_no_delay(delay):
    with pytest.raises(ValueError, match="Snooze needs"):
        Snooze(delay)
    with pytest.raises(ValueError, match="Retry needs"):
        Retry(delay)


def test_listed_exception_is_terminal_and_others_are_not():
    divide.enqueue(0)
    assert run_next().row["state"] == State.FAILED

    divide.enqueue("x")
    assert run_next().row["state"] == State.RETRYABLE


def test_failure_names_its_exception_and_reason():
    tasks.explode.enqueue("out of paper")

    run = run_next()

    assert (run.row["failure_code"], run.row["failure_detail"]) == ("task_raised", "out of paper")
    assert run.attempt["exception_path"] == "builtins.RuntimeError"
    assert "tests/tasks.py" in run.attempt["traceback"]
    assert "RuntimeError: out of paper" in run.attempt["traceback"]


@pytest.mark.parametrize("what", ["set", "nan", "nested", "hostile"])
def test_result_that_is_no_json_fails_for_good(what):
    return_json.enqueue(what)

    run = run_next()

    assert (run.row["state"], run.row["failure_code"]) == (State.FAILED, "result_not_json")


def test_checkpoint_that_is_no_json_fails_for_good():
    return_json.enqueue("continue badly")

    assert run_next().row["failure_code"] == "result_not_json"


@pytest.mark.parametrize(
    "what", ["bare discard", "bare retry", "exit", "cancelled", "generator exit", "base"]
)
def test_whatever_a_task_raises_ends_in_a_written_outcome(what):
    answer.enqueue(what)

    run = run_next()

    assert run.row["state"] in (State.RETRYABLE, State.FAILED)
    assert run.row["failure_code"]


def test_unknown_task_is_put_back_uncharged():
    JobFactory(task="tests.tasks.gone")

    run = run_next()

    assert (run.row["state"], run.row["attempts"]) == (State.SCHEDULED, 0)
    assert run.row["due_at"] > run.attempt["ended_at"] + timedelta(seconds=20)


@pytest.mark.parametrize("name", ["tests.tasks.note", "nowhere", "no.where", "", "tests.tasks."])
def test_name_that_is_no_task_is_put_back_too(name):
    JobFactory(task=name)

    assert run_next().row["state"] == State.SCHEDULED


def test_task_that_calls_with_arguments_that_fit_no_more_fails():
    JobFactory(task="tests.tasks.echo", args=[1, 2])

    run = run_next()

    assert run.attempt["exception_path"] == "builtins.TypeError"


# complete


def test_completion_commits_with_the_writes_of_the_block_and_the_return_value_is_ignored():
    complete_inside.enqueue()

    run = run_next()

    assert run.outcome is None
    assert (run.row["state"], run.row["result"]) == (State.SUCCEEDED, {"from": "complete"})
    assert Receipt.objects.count() == 1
    assert run.attempt["outcome"] == "succeeded"


def test_snooze_after_a_completion_is_ignored():
    complete_inside.enqueue("snooze")

    assert run_next().row["state"] == State.SUCCEEDED


def test_exception_after_a_completion_is_told_and_not_recorded():
    complete_inside.enqueue("raise")
    heard = []

    def listen(job, failure, **_):
        heard.append((job.pk, failure.exception_path, failure.detail))

    signals.raised_after_completion.connect(listen)
    try:
        run = run_next()
    finally:
        signals.raised_after_completion.disconnect(listen)

    assert (run.row["state"], run.row["failure_code"]) == (State.SUCCEEDED, "")
    assert run.attempt["outcome"] == "succeeded"
    assert heard == [(run.job.pk, "builtins.RuntimeError", "after the completion")]


def test_completion_after_a_completion_is_refused_and_changes_nothing():
    complete_inside.enqueue("again")

    run = run_next()

    assert run.row["result"] == {"from": "complete"}
    assert len(attempts_of(run.job)) == 1


def test_completion_outside_fenced_fails():
    complete_outside.enqueue()

    run = run_next()

    assert run.row["state"] == State.RETRYABLE
    assert run.attempt["exception_path"] == "leasejobs.exceptions.OutcomeNotAllowed"


def test_second_completion_in_a_block_fails_and_writes_nothing():
    complete_twice.enqueue()

    run = run_next()

    assert run.row["state"] == State.RETRYABLE
    assert not Receipt.objects.exists()


def test_block_that_raises_writes_neither_its_writes_nor_its_outcome_nor_its_checkpoint():
    raise_inside.enqueue()

    run = run_next()

    assert (run.row["state"], run.row["result"], run.row["checkpoint"]) == (
        State.RETRYABLE,
        None,
        None,
    )
    assert not Receipt.objects.exists()
    assert run.attempt["exception_path"] == "builtins.ZeroDivisionError"


def test_block_that_raised_leaves_no_outcome_for_the_next_block():
    context = context_of(JobFactory(running=True))
    with pytest.raises(ZeroDivisionError), context.fenced():
        context.complete(1)
        raise ZeroDivisionError

    with context.fenced():
        Receipt.objects.create(text="written")

    assert not context.is_completed
    assert whole(context.job)["state"] == State.RUNNING


def test_completion_after_a_block_that_raised_is_outside():
    context = context_of(JobFactory(running=True))
    with pytest.raises(ZeroDivisionError), context.fenced():
        raise ZeroDivisionError

    with pytest.raises(OutcomeNotAllowed):
        context.complete(1)


def test_result_that_is_no_json_is_refused_where_it_is_given():
    context = context_of(JobFactory(running=True))

    with pytest.raises(TypeError), context.fenced():
        context.complete({1, 2})

    assert whole(context.job)["state"] == State.RUNNING


def test_stale_holder_can_neither_write_nor_complete_nor_checkpoint():
    job = JobFactory(running=True)
    before = whole(job)
    context = JobContext(job, Held(forged_lease(job)), lambda: False)

    with pytest.raises(LeaseLost), context.fenced():
        Receipt.objects.create(text="never")
        context.complete(1)
    with pytest.raises(LeaseLost):
        context.checkpoint(1)
    with pytest.raises(LeaseLost):
        context.progress(1)

    assert whole(job) == before
    assert not Receipt.objects.exists()
    assert not context.is_completed


def test_lease_lost_in_a_task_is_recorded_as_late():
    job = JobFactory(running=True)
    lease = lease_of(job)
    expire_lease(job)
    recovery.recover_expired()

    assert leases.end(lease, Succeeded(1)) is leases.Written.LOST
    assert attempts_of(job)[0]["late_outcome"] == "succeeded"


@two_sessions
def test_blocks_do_not_nest():
    context = context_of(JobFactory(running=True))

    with pytest.raises(RuntimeError), context.fenced(), context.fenced():
        pytest.fail("entered")


@two_sessions
def test_refused_inner_block_leaves_the_outer_one_able_to_complete():
    context = context_of(JobFactory(running=True))

    with context.fenced():
        context.complete("outer")
        with pytest.raises(RuntimeError), context.fenced():
            pytest.fail("entered")
        Receipt.objects.create(text="written")

    assert whole(context.job)["state"] == State.SUCCEEDED
    assert whole(context.job)["result"] == "outer"


@two_sessions
def test_checkpoint_after_a_refused_inner_block_still_joins_the_outer_one():
    context = context_of(JobFactory(running=True))

    with context.fenced():
        with pytest.raises(RuntimeError), context.fenced():
            pytest.fail("entered")
        context.checkpoint({"page": 2})

    assert whole(context.job)["checkpoint"] == {"page": 2}


# checkpoint


def test_checkpoint_inside_commits_with_the_block():
    context = context_of(JobFactory(running=True))

    with context.fenced():
        context.checkpoint({"page": 2})
        Receipt.objects.create(text="written")
        assert whole(context.job)["checkpoint"] is None

    assert whole(context.job)["checkpoint"] == {"page": 2}
    assert context.job.checkpoint == {"page": 2}


@pytest.mark.field_case("B118")
def test_checkpoint_outside_commits_by_itself_and_rearms_the_lease():
    job = JobFactory(running=True)
    Job.objects.update(lease_expires_at=Now() + timedelta(seconds=1))
    context = context_of(job)

    context.checkpoint((1, 2))

    assert whole(job)["checkpoint"] == [1, 2]
    assert whole(job)["lease_expires_at"] > job.lease_expires_at
    assert context.job.checkpoint == [1, 2]


def test_last_checkpoint_of_a_block_counts():
    context = context_of(JobFactory(running=True))

    with context.fenced():
        context.checkpoint(1)
        context.checkpoint(2)

    assert whole(context.job)["checkpoint"] == 2


def test_checkpoint_and_completion_commit_together():
    context = context_of(JobFactory(running=True))

    with context.fenced():
        context.checkpoint(9)
        context.complete("done")

    row = whole(context.job)
    assert (row["checkpoint"], row["result"], row["state"]) == (9, "done", State.SUCCEEDED)


def test_checkpoint_after_completion_is_refused():
    context = context_of(JobFactory(running=True))
    with context.fenced():
        context.complete()

    with pytest.raises(OutcomeNotAllowed):
        context.checkpoint(1)


def test_checkpoint_may_be_cleared():
    context = context_of(JobFactory(running=True, checkpoint=1))

    context.checkpoint(None)

    assert whole(context.job)["checkpoint"] is None


# progress


def test_progress_is_written_and_spends_no_revision():
    context = context_of(JobFactory(running=True))

    context.progress(3, 10)

    row = whole(context.job)
    assert (row["progress_done"], row["progress_total"], row["revision"]) == (3, 10, 0)


def test_progress_is_throttled_and_its_last_value_written_at_the_end(django_assert_max_num_queries):
    tell_progress.enqueue(500)
    [(job, lease)] = claiming.claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)

    with django_assert_max_num_queries(30):
        outcome = executor.run(job, Held(lease), lambda: False)

    assert outcome == Succeeded(None)
    assert (whole(job)["progress_done"], whole(job)["progress_total"]) == (500, 500)


def test_progress_is_written_again_after_the_interval(monkeypatch):
    monkeypatch.setattr(context, "_PROGRESS_SECONDS", 0)
    running = context_of(JobFactory(running=True))

    for done in (1, 2):
        running.progress(done)
        assert whole(running.job)["progress_done"] == done


@task(takes_context=True)
def lose_the_session_after_progress(context: JobContext) -> str:
    context.progress(1, 2)
    context.progress(2, 2)
    terminate(own_pid())
    return "done"


@two_sessions
def test_progress_that_cannot_be_written_undoes_no_success():
    lose_the_session_after_progress.enqueue()
    [(job, lease)] = claiming.claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)

    outcome = executor.run(job, Held(lease), lambda: False)

    connection.close()
    assert outcome == Succeeded("done")
    assert leases.end(lease, outcome) is leases.Written.WRITTEN


@two_sessions
def test_progress_inside_a_transaction_of_the_task_leaves_the_row_unlocked():
    running = context_of(JobFactory(running=True))

    with transaction.atomic():
        running.progress(1, 2)
        with second_session() as other:
            unlocked = other.execute(
                "SELECT id FROM leasejobs_job FOR UPDATE SKIP LOCKED"
            ).fetchall()

    assert unlocked == [(running.job.pk,)]
    running.flush_progress()
    assert whole(running.job)["progress_done"] == 1


@task(takes_context=True)
def progress_and_complete(context: JobContext) -> None:
    context.progress(1, 2)
    context.progress(2, 2)
    with context.fenced():
        context.complete()


@two_sessions
def test_last_progress_commits_with_the_completion(monkeypatch):
    complaints = []
    monkeypatch.setattr(
        signals.raised_after_completion, "send_robust", lambda **told: complaints.append(told)
    )
    progress_and_complete.enqueue()

    run = run_next()

    assert (run.row["state"], run.row["progress_done"]) == (State.SUCCEEDED, 2)
    assert complaints == []


@pytest.mark.parametrize(("done", "total"), [(-1, None), (1, -1), (2**63, None)])
def test_progress_counts_from_zero(done, total):
    with pytest.raises(ValueError, match="from 0"):
        context_of(JobFactory(running=True)).progress(done, total)


@pytest.mark.parametrize("done", [float("inf"), float("nan"), 1.5, "1", None])
def test_progress_counts_whole_things(done):
    with pytest.raises(TypeError):
        context_of(JobFactory(running=True)).progress(done)


def test_progress_of_a_lost_lease_tells_so_when_it_is_flushed():
    job = JobFactory(running=True)
    running = JobContext(job, Held(forged_lease(job)), lambda: False)

    with pytest.raises(LeaseLost):
        running.progress(1)

    assert whole(job)["progress_done"] is None


# what a task may ask


def test_idempotency_key_is_stable_over_retries():
    job = JobFactory(running=True)
    first = context_of(job).idempotency_key
    Job.objects.update(epoch=5, attempts=3)

    again = context_of(Job.objects.get()).idempotency_key

    assert first == again
    assert isinstance(first, uuid.UUID)
    assert first.version == 5


def test_idempotency_key_differs_between_jobs_and_between_databases():
    one, two = JobFactory.create_batch(2, running=True)
    first = context_of(one).idempotency_key
    reborn = Job.objects.get(pk=one.pk)
    reborn.created_at += timedelta(microseconds=1)

    assert len({first, context_of(two).idempotency_key, context_of(reborn).idempotency_key}) == 3


def test_claimed_job_has_the_same_idempotency_key_as_its_row():
    tasks.noop.enqueue()
    [(job, lease)] = claiming.claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)

    claimed = JobContext(job, Held(lease), lambda: False).idempotency_key

    assert claimed == context_of(Job.objects.get()).idempotency_key


def test_task_is_told_to_stop_at_shutdown_and_when_its_lease_is_or_may_be_lost():
    job = JobFactory(running=True)
    held = Held(lease_of(job))
    running = JobContext(job, held, lambda: False)

    assert not running.should_stop
    assert context_of(job, stopping=True).should_stop
    held.lose()
    assert running.should_stop
    assert JobContext(job, Held(forged_lease(job, deadline=0.0)), lambda: False).should_stop


def test_context_is_a_task_context_that_knows_job_attempt_and_epoch():
    job = JobFactory(running=True, attempts=3, epoch=9)
    running = context_of(job)

    assert isinstance(running, TaskContext)
    assert (running.job, running.attempt, running.epoch) == (job, 3, 9)


def test_context_offers_the_result_of_django_tasks():
    tasks.echo.using(tenant="acme").enqueue(1)
    [(job, lease)] = claiming.claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)

    result = JobContext(job, Held(lease), lambda: False).task_result

    assert (result.job_id, result.id, result.status) == (
        job.pk,
        str(job.pk),
        TaskResultStatus.RUNNING,
    )
    assert (result.args, result.kwargs, result.task) == ([1], {}, tasks.echo)
    assert result.attempts == 1
    assert result.enqueued_at == Job.objects.get().created_at
