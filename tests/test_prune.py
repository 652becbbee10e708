"""Pruning deletes what has passed its retention, and never a job that lives."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leasejobs.claiming import claim_jobs
from leasejobs.models import Attempt, Job, OperatorAction, Worker
from leasejobs.operations import Verdict, park, prune, retry
from leasejobs.states import State
from tests.factories import HOLDER, LEASE, attempts_of, job_in, whole
from tests.two_connections import acting, second_session, wait_until_blocked

two_sessions = pytest.mark.django_db(transaction=True)

WHO = {"actor": "ada", "reason": "the supplier asked"}
ALL = {"succeeded": 10, "cancelled": 10, "failed": 10, "parked": 10, "tracebacks": 5}
LIVE = [State.SCHEDULED, State.PENDING, State.RUNNING, State.RETRYABLE]
FINISHED = [State.SUCCEEDED, State.FAILED, State.CANCELLED]


def ago(days: float) -> Any:
    return timezone.now() - timedelta(days=days)


def finished(state: State, days: float, **fields: Any) -> Job:
    """Make a job that finished so many days ago, a day after it was enqueued."""
    fields.setdefault("created_at", ago(days + 1))
    return job_in(state, finished_at=ago(days), **fields)


def attempt(job: Job, days: float, **fields: Any) -> Attempt:
    return Attempt.objects.create(
        job=job, epoch=fields.pop("epoch", 1), number=1, worker=HOLDER, ended_at=ago(days),
        outcome="failed", **fields,
    )  # fmt: skip


def walk(limit: int = 1000) -> int:
    """Prune batch by batch to the end of one walk; return how many jobs went."""
    after, deleted = 0, 0
    while True:
        done = prune(limit, after=after)
        deleted += done.jobs
        if done.cursor is None:
            return deleted
        assert done.cursor > after
        after = done.cursor


@pytest.fixture
def retention(settings):
    settings.LEASEJOBS = {"RETENTION_DAYS": ALL}


@pytest.mark.django_db
@pytest.mark.parametrize("state", FINISHED)
def test_finished_job_is_deleted_with_its_attempts_once_its_retention_has_passed(state, retention):
    old, young = finished(state, 10.01), finished(state, 9.99)
    attempt(old, 11)
    attempt(young, 11)

    assert prune().jobs == 1

    assert list(Job.objects.all()) == [young]
    assert (attempts_of(old), len(attempts_of(young))) == ([], 1)


@pytest.mark.django_db
@pytest.mark.parametrize("state", LIVE)
def test_live_job_is_kept_however_old_it_is(state, retention):
    job = job_in(state, created_at=ago(1000), due_at=ago(999), finished_at=ago(900))
    before = whole(job)

    assert prune().jobs == 0

    assert whole(job) == before


@pytest.mark.django_db
def test_by_default_failed_and_parked_jobs_are_kept_for_ever():
    kept = [finished(State.FAILED, 1000), finished(State.PARKED, 1000)]
    gone = [finished(State.SUCCEEDED, 15), finished(State.CANCELLED, 15)]

    assert prune().jobs == len(gone)

    assert set(Job.objects.all()) == set(kept)


@pytest.mark.django_db
def test_nothing_is_deleted_where_everything_is_kept(settings):
    settings.LEASEJOBS = {"RETENTION_DAYS": dict.fromkeys(ALL, None)}
    job = finished(State.SUCCEEDED, 1000)
    attempt(job, 1000, traceback="text")

    done = prune()

    assert (done.jobs, done.tracebacks, done.cursor) == (0, 0, None)
    assert attempts_of(job)[0]["traceback"] == "text"


@pytest.mark.django_db
def test_job_that_finished_late_is_kept_for_its_retention_from_then(retention):
    finished(State.SUCCEEDED, 9, created_at=ago(400))

    assert prune().jobs == 0


# Parked jobs have no finish


@pytest.mark.django_db
@pytest.mark.parametrize(("ended", "count"), [(11, 1), (9, 0)])
def test_parked_job_ages_from_the_end_of_its_newest_attempt(ended, count, retention):
    job = job_in(State.PARKED, created_at=ago(100))
    attempt(job, 90)
    attempt(job, ended, epoch=2)

    assert prune().jobs == count


@pytest.mark.django_db
@pytest.mark.parametrize(("parked", "count"), [(11, 1), (9, 0)])
def test_job_that_an_operator_parked_ages_from_then(parked, count, retention):
    job = job_in(State.PENDING, created_at=ago(100))
    park([job.pk], **WHO)
    OperatorAction.objects.update(at=ago(parked))

    assert prune().jobs == count


@pytest.mark.django_db
def test_parked_job_of_which_nothing_is_known_ages_from_its_enqueue(retention):
    job_in(State.PARKED, created_at=ago(11))
    kept = job_in(State.PARKED, created_at=ago(9))

    prune()

    assert list(Job.objects.all()) == [kept]


# Tracebacks, workers


@pytest.mark.django_db
def test_old_traceback_is_blanked_and_the_attempt_stays(retention):
    job = job_in(State.RETRYABLE, created_at=ago(100))
    attempt(job, 6, traceback="old", detail="boom")
    attempt(job, 4, epoch=2, traceback="young")

    assert prune().tracebacks == 1

    old, young = attempts_of(job)
    assert (old["traceback"], old["detail"], young["traceback"]) == ("", "boom", "young")
    assert prune().tracebacks == 0


@pytest.mark.django_db
def test_worker_not_seen_for_a_day_is_forgotten(retention):
    for name, days in (("gone", 1.01), ("here", 0.99)):
        Worker.objects.create(
            name=name, host="h", pid=1, version="1", processes=1, threads=1, queues=[],
            seen_at=ago(days),
        )  # fmt: skip

    assert prune().workers == 1

    assert Worker.objects.get().name == "here"


# The walk


@pytest.mark.django_db
def test_walk_passes_over_what_is_kept_and_deletes_all_that_is_old(retention):
    for _ in range(4):
        finished(State.SUCCEEDED, 20)
        job_in(State.PENDING, created_at=ago(20))
        finished(State.FAILED, 20)

    assert prune(5).jobs == 3
    assert walk(3) == 5

    assert Job.objects.count() == 4


@pytest.mark.django_db
def test_walk_ends_at_jobs_too_young_to_be_deleted(retention):
    old = finished(State.SUCCEEDED, 20)
    for _ in range(4):
        finished(State.SUCCEEDED, 2)

    first = prune(2)

    assert (first.jobs, first.cursor) == (1, old.pk + 1)
    assert prune(2, after=old.pk + 1).cursor is None


@pytest.mark.django_db
def test_job_dated_in_the_future_does_not_end_every_walk(retention):
    job_in(State.SUCCEEDED, created_at=ago(-1000), finished_at=ago(-1000))
    finished(State.SUCCEEDED, 20)

    assert prune().jobs == 1


@pytest.mark.django_db
@pytest.mark.parametrize("limit", [0, -1])
def test_batch_of_nothing_is_refused(limit):
    with pytest.raises(ValueError, match="limit"):
        prune(limit)


@pytest.mark.django_db
def test_dry_run_counts_and_changes_nothing(retention):
    jobs = [finished(State.SUCCEEDED, 20), job_in(State.RETRYABLE, created_at=ago(20))]
    attempt(jobs[1], 20, traceback="old")
    before = [whole(job) for job in jobs], attempts_of(jobs[1])

    done = prune(dry_run=True)

    assert (done.jobs, done.tracebacks) == (1, 1)
    assert ([whole(job) for job in jobs], attempts_of(jobs[1])) == before


@pytest.mark.django_db
def test_batch_costs_no_more_statements_for_more_rows(retention):
    for _ in range(3):
        finished(State.SUCCEEDED, 20)
    with CaptureQueriesContext(connection) as few:
        prune()
    for _ in range(60):
        finished(State.SUCCEEDED, 20)
    with CaptureQueriesContext(connection) as many:
        assert prune().jobs == 60

    assert len(many) == len(few)
    assert not [query for query in many if '"args"' in query["sql"]]


# Two at a time


@two_sessions
def test_second_pruner_does_nothing_while_the_first_is_at_work(retention):
    finished(State.SUCCEEDED, 20)

    with transaction.atomic():
        assert prune(dry_run=True).jobs == 1
        with acting(prune) as second:
            done = second.result()

    assert (done.is_turn, done.jobs) == (False, 0)
    assert prune().jobs == 1


@two_sessions
def test_locked_row_is_left_for_the_next_walk(retention):
    locked, free = finished(State.FAILED, 20), finished(State.FAILED, 20)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [locked.pk])
        assert prune().jobs == 1

    assert list(Job.objects.all()) == [locked]
    assert free.pk not in Job.objects.values_list("pk", flat=True)
    assert prune().jobs == 1


@two_sessions
def test_pruner_loses_against_the_retry_before_it(retention):
    job = finished(State.FAILED, 20)

    with transaction.atomic():
        assert retry([job.pk], **WHO) == {job.pk: Verdict.MOVED}
        with acting(prune) as pruner:
            assert pruner.result().jobs == 0

    assert prune().jobs == 0
    [(claimed, _)] = claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)
    assert claimed.pk == job.pk


@two_sessions
def test_retry_loses_against_the_pruner_before_it(retention):
    job = finished(State.FAILED, 20)

    with contextlib.ExitStack() as stack:
        with transaction.atomic():
            assert prune().jobs == 1
            operator = stack.enter_context(acting(lambda: retry([job.pk], **WHO)))
            wait_until_blocked(operator.pid)

        assert operator.result() == {job.pk: Verdict.MISSING}


@two_sessions
def test_job_that_is_retried_between_the_look_and_the_lock_lives(retention):
    job = finished(State.FAILED, 20)

    def retry_first(execute, sql, params, many, context):
        if "FOR UPDATE" in sql:
            with second_session(autocommit=True) as other:
                other.execute("UPDATE leasejobs_job SET state = 2 WHERE id = %s", [job.pk])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(retry_first):
        assert prune().jobs == 0

    assert whole(job)["state"] == State.PENDING


# Other models' foreign keys


@pytest.fixture(params=["", "DEFERRABLE INITIALLY DEFERRED"], ids=["immediate", "deferred"])
def referrer(request, transactional_db):
    """A table of a project's own whose rows reference jobs, unknown to Django."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE referrer (job_id bigint REFERENCES leasejobs_job {request.param})"
        )
    yield "referrer"
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE referrer")


@two_sessions
def test_job_that_a_foreign_key_protects_is_counted_and_its_neighbours_go(referrer, retention):
    protected, free = finished(State.SUCCEEDED, 20), finished(State.SUCCEEDED, 20)
    attempt(protected, 20)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO referrer VALUES (%s)", [protected.pk])

    done = prune()

    assert (done.jobs, done.protected) == (1, 1)
    assert list(Job.objects.all()) == [protected]
    assert len(attempts_of(protected)) == 1
    assert attempts_of(free) == []
