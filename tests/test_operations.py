"""The operator's verbs: each moves a job, or refuses and changes nothing; with actor and reason."""

import contextlib
import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from leasejobs import operations, signals
from leasejobs.claiming import claim_jobs
from leasejobs.exceptions import InvalidArguments
from leasejobs.fencing import fenced
from leasejobs.leases import Written, complete_many, end
from leasejobs.models import Job, KeyScope, OperatorAction, Queue
from leasejobs.operations import Verdict, cancel, park, pause, resume, retry
from leasejobs.outcomes import Failed, Failure
from leasejobs.states import TRANSITIONS, State
from tests.factories import HOLDER, LEASE, JobFactory, attempts_of, job_in, lease_of, whole
from tests.two_connections import acting, second_session, together, wait_until_blocked

two_sessions = pytest.mark.django_db(transaction=True)

WHO = {"actor": "ada", "reason": "the supplier asked"}
VERBS = {"cancel": cancel, "retry": retry, "park": park}
REACHED = {"cancel": State.CANCELLED, "retry": State.PENDING, "park": State.PARKED}
PAIRS = [(verb, state) for verb in VERBS for state in State]


def actions() -> list[tuple]:
    """Return what was recorded, in order."""
    rows = OperatorAction.objects.order_by("id")
    return list(rows.values_list("verb", "target", "target_pk", "revision", "actor", "reason"))


def changed(before: dict, after: dict) -> dict:
    """Return the columns that differ, as they are now."""
    return {name: after[name] for name in after if after[name] != before[name]}


@pytest.fixture
def told():
    """Collect what `jobs_operated` tells."""
    heard = []

    def hear(**fields):
        heard.append((fields["verb"], fields["pks"], fields["actor"], fields["reason"]))

    signals.jobs_operated.connect(hear, weak=False)
    yield heard
    signals.jobs_operated.disconnect(hear)


@pytest.fixture
def claimable():
    """Collect which queues `jobs_claimable` names."""
    heard = []

    def hear(queues, **_):
        heard.append(dict(queues))

    signals.jobs_claimable.connect(hear, weak=False)
    yield heard
    signals.jobs_claimable.disconnect(hear)


# Every state, every verb


@pytest.mark.django_db
@pytest.mark.parametrize(("verb", "state"), PAIRS)
def test_verb_moves_a_job_from_the_states_of_its_table_or_changes_nothing(verb, state):
    job = job_in(state, revision=3)
    before = whole(job)

    verdict = VERBS[verb]([job.pk], **WHO)[job.pk]

    after = whole(job)
    if state in TRANSITIONS[verb][0]:
        assert verdict is Verdict.MOVED
        assert (after["state"], after["revision"]) == (REACHED[verb], 4)
        assert actions() == [(verb, "leasejobs.Job", str(job.pk), 3, "ada", WHO["reason"])]
    elif (verb, state) == ("cancel", State.RUNNING):
        assert verdict is Verdict.REQUESTED
        assert changed(before, after).keys() == {"cancel_requested_at"}
        assert actions() == [(verb, "leasejobs.Job", str(job.pk), 3, "ada", WHO["reason"])]
    else:
        assert verdict is Verdict.REFUSED
        assert after == before
        assert actions() == []


@pytest.mark.django_db
def test_cancelled_job_is_finished_and_says_why():
    job = job_in(State.RETRYABLE, failure_code="task_raised", failure_detail="boom")

    cancel([job.pk], **WHO)

    row = whole(job)
    assert row["finished_at"] is not None
    assert (row["failure_code"], row["failure_detail"]) == ("cancelled", "")


@pytest.mark.django_db
def test_cancel_of_a_running_job_asked_twice_is_recorded_once():
    job = job_in(State.RUNNING)
    cancel([job.pk], **WHO)
    before = whole(job)

    assert cancel([job.pk], **WHO) == {job.pk: Verdict.REQUESTED}

    assert whole(job) == before
    assert len(actions()) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.PARKED])
def test_retried_job_starts_afresh_and_keeps_what_it_has_achieved(state):
    past = timezone.now() - timedelta(days=1)
    job = job_in(
        state, attempts=8, crashes=3, interruptions=2, cancel_requested_at=past, finished_at=past,
        failure_code="task_raised", failure_detail="boom", deadline_at=past, due_at=past,
        started_at=past, checkpoint={"page": 7}, progress_done=7, epoch=5,
    )  # fmt: skip
    before = whole(job)

    retry([job.pk], **WHO)

    change = changed(before, whole(job))
    assert change.pop("due_at") > past
    assert change == {
        "state": State.PENDING, "revision": 1, "attempts": 0, "crashes": 0, "interruptions": 0,
        "cancel_requested_at": None, "finished_at": None, "failure_code": "",
        "failure_detail": "", "deadline_at": None,
    }  # fmt: skip


@pytest.mark.django_db
def test_retried_job_is_claimed_by_the_next_claim():
    job = job_in(State.FAILED, attempts=8, crashes=3)

    retry([job.pk], **WHO)

    [(claimed, _)] = claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)
    assert (claimed.pk, claimed.attempts) == (job.pk, 1)


@two_sessions
def test_workers_are_told_of_retried_jobs_with_the_most_urgent_of_each_queue(claimable):
    rows = [("mail", 5), ("mail", -7), ("default", 0)]
    jobs = [job_in(State.FAILED, queue=queue, priority=priority) for queue, priority in rows]
    succeeded = job_in(State.SUCCEEDED, queue="quiet")

    retry([job.pk for job in [*jobs, succeeded]], **WHO)

    assert claimable == [{"mail": -7, "default": 0}]


@pytest.mark.django_db
@pytest.mark.parametrize("state", sorted(TRANSITIONS["park"][0]))
def test_parked_job_waits_for_a_decision_and_says_whose(state):
    job = job_in(state, failure_code="task_raised", failure_detail="boom")

    park([job.pk], **WHO)

    row = whole(job)
    assert (row["failure_code"], row["failure_detail"]) == ("operator", "")
    assert row["finished_at"] is None


ON_DEAD = {"task": "tests.tasks.echo", "queue": "alarms", "max_attempts": 5, "max_crashes": 2}


@pytest.mark.django_db
def test_parking_enqueues_what_the_job_asks_for_when_it_is_dead():
    asking, silent = job_in(State.PENDING, on_dead=ON_DEAD, tenant="acme"), job_in(State.PENDING)

    park([asking.pk, silent.pk], **WHO)

    handler = Job.objects.get(queue="alarms")
    assert (handler.task, handler.tenant) == ("tests.tasks.echo", "acme")
    assert handler.kwargs == {"job_id": asking.pk, "reason": "operator"}


@pytest.mark.django_db
@pytest.mark.parametrize("verb", [cancel, retry])
def test_no_other_verb_enqueues_it(verb):
    job = job_in(State.PARKED, on_dead=ON_DEAD)

    verb([job.pk], **WHO)

    assert Job.objects.count() == 1


@two_sessions
def test_parking_that_is_rolled_back_leaves_no_such_job():
    job = job_in(State.PENDING, on_dead=ON_DEAD)

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        park([job.pk], **WHO)
        raise ZeroDivisionError

    assert Job.objects.count() == 1


# Compare-and-set, keys, missing rows


@pytest.mark.django_db
@pytest.mark.parametrize(("verb", "state"), PAIRS)
def test_stale_revision_changes_nothing_whatever_the_state(verb, state):
    job = job_in(state, revision=3)
    before = whole(job)

    assert VERBS[verb]([job.pk], revisions={job.pk: 2}, **WHO) == {job.pk: Verdict.STALE}

    assert whole(job) == before
    assert actions() == []


@pytest.mark.django_db
def test_revision_that_was_seen_lets_the_move_pass_and_others_are_judged_by_their_own():
    seen, moved_since, unnamed = (job_in(State.PENDING, revision=3) for _ in range(3))

    verdicts = park(
        [seen.pk, moved_since.pk, unnamed.pk], revisions={seen.pk: 3, moved_since.pk: 2}, **WHO
    )

    assert list(verdicts.values()).count(Verdict.MOVED) == 2
    assert verdicts[moved_since.pk] is Verdict.STALE


@pytest.mark.django_db
@pytest.mark.parametrize("scope", [KeyScope.LIVE, KeyScope.QUEUED])
def test_retry_of_a_job_whose_key_is_taken_is_refused_alone(scope):
    keyed, free = job_in(State.FAILED, key="k", key_scope=scope), job_in(State.FAILED)
    JobFactory(key="k", key_scope=scope)
    before = whole(keyed)

    verdicts = retry([keyed.pk, free.pk], **WHO)

    assert verdicts == {keyed.pk: Verdict.KEY_TAKEN, free.pk: Verdict.MOVED}
    assert whole(keyed) == before
    assert [action[2] for action in actions()] == [str(free.pk)]


@pytest.mark.django_db
def test_of_two_dead_jobs_with_one_key_a_bulk_retry_moves_the_older():
    first, second = (job_in(State.FAILED, key="k", key_scope=KeyScope.LIVE) for _ in range(2))

    verdicts = retry([second.pk, first.pk], **WHO)

    assert verdicts == {first.pk: Verdict.MOVED, second.pk: Verdict.KEY_TAKEN}


@pytest.mark.django_db
def test_job_that_does_not_exist_is_missing_and_holds_nobody_up():
    job = job_in(State.PENDING)

    verdicts = cancel([job.pk, job.pk + 1, 0, -1, 2**80], **WHO)

    assert verdicts.pop(job.pk) is Verdict.MOVED
    assert set(verdicts.values()) == {Verdict.MISSING}
    assert len(verdicts) == 4


@pytest.mark.django_db
@pytest.mark.parametrize("ids", [["1"], [1.0], [True], [None]])
def test_ids_that_are_no_integers_are_refused(ids):
    with pytest.raises(InvalidArguments):
        cancel(ids, **WHO)


@pytest.mark.django_db
@pytest.mark.parametrize("verb", [*VERBS.values(), pause, resume])
@pytest.mark.parametrize("name", ["actor", "reason"])
@pytest.mark.parametrize("value", ["", "  ", None, "nul\x00", "x" * 2001])
def test_verb_without_an_actor_or_a_reason_changes_nothing(verb, name, value):
    job = job_in(State.PARKED)
    before = whole(job)

    with pytest.raises(InvalidArguments):
        verb("default" if verb in (pause, resume) else [job.pk], **(WHO | {name: value}))

    assert whole(job) == before
    assert not Queue.objects.exists()


# Many rows


@pytest.mark.django_db
def test_many_jobs_are_moved_in_bounded_batches(monkeypatch, django_assert_max_num_queries):
    monkeypatch.setattr(operations, "BATCH", 3)
    jobs = [job_in(State.FAILED) for _ in range(7)]

    with django_assert_max_num_queries(3 * 8):  # and not eight for each row
        verdicts = retry([job.pk for job in jobs], **WHO)

    assert set(verdicts.values()) == {Verdict.MOVED}
    assert len(actions()) == 7


@two_sessions
def test_signal_tells_of_what_was_done_after_its_commit(told):
    moved, refused = job_in(State.PENDING), job_in(State.SUCCEEDED)

    with transaction.atomic():
        cancel([moved.pk, refused.pk], **WHO)
        assert told == []

    assert told == [("cancel", [moved.pk], "ada", WHO["reason"])]


@two_sessions
def test_verb_joins_the_callers_transaction_and_is_undone_with_it(told):
    job = job_in(State.PENDING)
    before = whole(job)

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        cancel([job.pk], **WHO)
        raise ZeroDivisionError

    assert whole(job) == before
    assert (actions(), told) == ([], [])


@two_sessions
def test_lock_timeout_of_the_callers_transaction_is_what_it_was():
    job = job_in(State.PENDING)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '77s'")
        cancel([job.pk], **WHO)
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("77s",)


@two_sessions
def test_row_that_stays_locked_is_busy_and_its_neighbours_move(monkeypatch):
    monkeypatch.setattr(operations, "WAIT_SECONDS", 0.2)
    jobs = [job_in(State.PENDING) for _ in range(3)]
    before = whole(jobs[1])

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [jobs[1].pk])
        verdicts = cancel([job.pk for job in jobs], **WHO)

    assert [verdicts[job.pk] for job in jobs] == [Verdict.MOVED, Verdict.BUSY, Verdict.MOVED]
    assert whole(jobs[1]) == before


@two_sessions
def test_row_that_is_let_go_in_time_is_moved():
    first, second = job_in(State.PENDING), job_in(State.PENDING)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [first.pk])
        with acting(lambda: cancel([first.pk, second.pk], **WHO)) as operator:
            wait_until_blocked(operator.pid)
            other.rollback()
            verdicts = operator.result()

    assert verdicts == {first.pk: Verdict.MOVED, second.pk: Verdict.MOVED}


@two_sessions
def test_operator_who_waits_for_one_row_holds_no_other():
    locked, running = job_in(State.PENDING), job_in(State.RUNNING)

    with second_session() as other, second_session() as holder:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [locked.pk])
        with acting(lambda: cancel([locked.pk, running.pk], **WHO)) as operator:
            wait_until_blocked(operator.pid)
            found = holder.execute(
                "SELECT id FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED",
                [running.pk],
            ).fetchone()
            holder.rollback()
            other.rollback()
            operator.result()

    assert found == (running.pk,)


TAKE_KEY = """
INSERT INTO leasejobs_job (task, queue, priority, args, kwargs, key, key_scope, state, due_at,
    created_at, max_attempts, max_crashes, on_crash, backoff)
SELECT task, queue, priority, args, kwargs, key, key_scope, 2, due_at, created_at, max_attempts,
    max_crashes, on_crash, backoff
FROM leasejobs_job WHERE id = %s ON CONFLICT DO NOTHING
"""


@two_sessions
def test_key_that_an_open_transaction_takes_makes_the_retry_wait_and_then_refuse():
    job = job_in(State.FAILED, key="k", key_scope=KeyScope.LIVE)

    with second_session() as other:
        other.execute(TAKE_KEY, [job.pk])
        with acting(lambda: retry([job.pk], **WHO)) as operator:
            wait_until_blocked(operator.pid)
            other.commit()
            verdicts = operator.result()

    assert verdicts == {job.pk: Verdict.KEY_TAKEN}


@two_sessions
def test_bulk_retry_and_a_producer_of_the_same_keys_do_not_deadlock():
    first, second = (job_in(State.FAILED, key=k, key_scope=KeyScope.LIVE) for k in "ab")

    with second_session() as producer:
        producer.execute(TAKE_KEY, [second.pk])
        with acting(lambda: retry([first.pk, second.pk], **WHO)) as operator:
            wait_until_blocked(operator.pid)
            producer.execute(TAKE_KEY, [first.pk])
            producer.commit()
            verdicts = operator.result()

    assert verdicts[second.pk] is Verdict.KEY_TAKEN


@two_sessions
def test_transaction_that_merely_references_a_job_does_not_hold_an_operator_up():
    job = job_in(State.PENDING)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR KEY SHARE", [job.pk])
        with acting(lambda: cancel([job.pk], **WHO)) as operator:
            verdicts = operator.result()

    assert verdicts == {job.pk: Verdict.MOVED}


# Races, each with a winner and a loser


@contextlib.contextmanager
def acting_in_fence(job: Job):
    """Hold the job's row in a `fenced()` of its holder until `release()` is called."""
    entered, let_go = threading.Event(), threading.Event()
    lease = lease_of(job)

    def hold():
        with fenced(lease):
            entered.set()
            assert let_go.wait(20)

    with acting(hold) as holder:
        assert entered.wait(20)
        try:
            yield let_go.set, lease
        finally:
            let_go.set()
        holder.result()


def lock_and(job: Job, act, then):
    """Let `act` wait for a lock on the job's row, do `then` in its lock, return both results."""
    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [job.pk])
        with acting(act) as actor:
            wait_until_blocked(actor.pid)
            then(other)
            other.commit()
            return actor.result()


@two_sessions
@pytest.mark.parametrize("attempts", [1, 8])
def test_failure_loses_against_the_cancel_before_it(attempts):
    job = job_in(State.RUNNING, attempts=attempts, on_dead=ON_DEAD)

    assert cancel([job.pk], **WHO) == {job.pk: Verdict.REQUESTED}
    assert end(lease_of(job), Failed(Failure("task_raised"))) is Written.WRITTEN

    assert whole(job)["state"] == State.CANCELLED
    assert Job.objects.count() == 1


@two_sessions
def test_cancel_loses_against_the_failure_that_ended_the_job_first():
    job = job_in(State.RUNNING, attempts=8)

    verdicts = lock_and(
        job,
        lambda: cancel([job.pk], **WHO),
        lambda other: other.execute(
            "UPDATE leasejobs_job SET state = 6, revision = revision + 1, lease_token = NULL,"
            " leased_by = '', lease_expires_at = NULL, finished_at = statement_timestamp()"
            " WHERE id = %s",
            [job.pk],
        ),
    )

    assert verdicts == {job.pk: Verdict.REFUSED}
    row = whole(job)
    assert (row["state"], row["cancel_requested_at"]) == (State.FAILED, None)


@two_sessions
def test_cancel_at_the_instant_of_a_failure_leaves_the_job_cancelled_whoever_is_first():
    for _ in range(10):
        job = job_in(State.RUNNING)
        lease = lease_of(job)

        written, verdicts = together(
            lambda lease=lease: end(lease, Failed(Failure("task_raised"))),
            lambda job=job: cancel([job.pk], **WHO),
        )

        while written is Written.BUSY:
            written = end(lease, Failed(Failure("task_raised")))
        row = whole(job)
        assert written is Written.WRITTEN
        if verdicts[job.pk] is Verdict.MOVED:
            assert row["state"] == State.CANCELLED
        else:
            assert verdicts[job.pk] is Verdict.REQUESTED
            assert row["cancel_requested_at"] is not None
            assert row["state"] == State.CANCELLED
        assert len(attempts_of(job)) == 1


@two_sessions
def test_retry_that_waits_for_a_cancel_wins_behind_it():
    job = job_in(State.PARKED)

    verdicts = lock_and(
        job,
        lambda: retry([job.pk], **WHO),
        lambda other: other.execute(
            "UPDATE leasejobs_job SET state = 7, revision = revision + 1 WHERE id = %s", [job.pk]
        ),
    )

    assert verdicts == {job.pk: Verdict.MOVED}
    assert (whole(job)["state"], whole(job)["revision"]) == (State.PENDING, 2)


@two_sessions
def test_retry_with_the_revision_it_saw_loses_against_the_cancel_before_it():
    job = job_in(State.PARKED)

    verdicts = lock_and(
        job,
        lambda: retry([job.pk], revisions={job.pk: 0}, **WHO),
        lambda other: other.execute(
            "UPDATE leasejobs_job SET state = 7, revision = revision + 1 WHERE id = %s", [job.pk]
        ),
    )

    assert verdicts == {job.pk: Verdict.STALE}
    assert whole(job)["state"] == State.CANCELLED


@two_sessions
def test_retry_and_cancel_at_once_leave_what_the_later_one_says():
    for _ in range(10):
        job = job_in(State.PARKED)

        together(lambda job=job: retry([job.pk], **WHO), lambda job=job: cancel([job.pk], **WHO))

        row = whole(job)
        assert row["revision"] == 2
        last = OperatorAction.objects.filter(target_pk=job.pk).latest("revision").verb
        assert row["state"] == REACHED[last]


@two_sessions
def test_park_loses_against_the_claim_before_it():
    job = job_in(State.PENDING)

    verdicts = lock_and(
        job,
        lambda: park([job.pk], **WHO),
        lambda other: other.execute(
            "UPDATE leasejobs_job SET state = 3, epoch = 1, lease_token = gen_random_uuid(),"
            " leased_by = 'w', lease_expires_at = statement_timestamp() + interval '1 min'"
            " WHERE id = %s",
            [job.pk],
        ),
    )

    assert verdicts == {job.pk: Verdict.REFUSED}
    assert whole(job)["state"] == State.RUNNING


@two_sessions
def test_claim_passes_over_the_row_that_an_operator_is_parking():
    job = job_in(State.PENDING)

    with transaction.atomic():
        park([job.pk], **WHO)
        with acting(
            lambda: claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1)
        ) as worker:
            assert worker.result() == []

    assert whole(job)["state"] == State.PARKED


@two_sessions
def test_park_and_claim_at_once_have_one_winner():
    for _ in range(10):
        job = job_in(State.PENDING)

        verdicts, claimed = together(
            lambda job=job: park([job.pk], **WHO),
            lambda: claim_jobs("default", holder=HOLDER, duration=LEASE, limit=1),
        )

        is_parked = verdicts[job.pk] is Verdict.MOVED
        assert is_parked == (not claimed)
        assert whole(job)["state"] == (State.PARKED if is_parked else State.RUNNING)


@two_sessions
def test_bulk_cancel_against_the_settler_loses_no_outcome_and_no_verdict():
    for _ in range(40):
        job_in(State.PENDING)
    for _ in range(5):
        held = claim_jobs("default", holder=HOLDER, duration=LEASE, limit=8)
        pks = [job.pk for job, _ in held]

        def settle(held=held):
            written = complete_many(held, {})
            while busy := [pair for pair in held if written[pair[0].pk] is Written.BUSY]:
                written |= complete_many(busy, {})
            return written

        written, verdicts = together(settle, lambda pks=pks: cancel(pks, **WHO))

        assert set(written.values()) == {Written.WRITTEN}
        for pk in pks:
            row = Job.objects.get(pk=pk)
            assert row.state == State.SUCCEEDED
            is_asked = verdicts[pk] is Verdict.REQUESTED
            assert is_asked or verdicts[pk] is Verdict.REFUSED
            assert is_asked == (row.cancel_requested_at is not None)


@two_sessions
def test_settler_does_not_wait_for_an_operator_and_writes_the_rest_of_its_batch():
    for _ in range(3):
        job_in(State.PENDING)
    held = claim_jobs("default", holder=HOLDER, duration=LEASE, limit=3)
    flagged = held[1][0].pk

    with transaction.atomic():
        cancel([flagged], **WHO)
        with acting(lambda: complete_many(held, {})) as settler:
            written = settler.result()

    assert written.pop(flagged) is Written.BUSY
    assert set(written.values()) == {Written.WRITTEN}
    assert complete_many([held[1]], {}) == {flagged: Written.WRITTEN}


@two_sessions
def test_of_two_operators_with_one_revision_the_second_is_stale():
    for _ in range(10):
        job = job_in(State.FAILED)
        seen = {job.pk: job.revision}

        def again(job=job, seen=seen):
            return retry([job.pk], revisions=seen, **WHO)[job.pk]

        verdicts = together(again, again)

        assert sorted(verdict.name for verdict in verdicts) == ["MOVED", "STALE"]
        assert whole(job)["revision"] == 1
        assert OperatorAction.objects.filter(target_pk=job.pk).count() == 1


@two_sessions
def test_two_operators_with_crossing_lists_do_not_deadlock():
    pks = [job_in(State.FAILED).pk for _ in range(60)]

    verdicts = together(
        lambda: retry(pks, **WHO), lambda: cancel(pks[::-1], **WHO), lambda: retry(pks, **WHO)
    )

    assert all(Verdict.BUSY not in found.values() for found in verdicts)


@two_sessions
def test_cancel_waits_for_a_fenced_block_and_the_outcome_in_it_stands():
    job = job_in(State.RUNNING)

    with acting_in_fence(job) as (release, _), acting(lambda: cancel([job.pk], **WHO)) as operator:
        wait_until_blocked(operator.pid)
        release()
        assert operator.result() == {job.pk: Verdict.REQUESTED}


# Queues


@pytest.mark.django_db
def test_queue_is_paused_once_and_resumed_once():
    assert pause("mail", **WHO) is True
    assert pause("mail", **WHO) is False
    assert Queue.objects.get().paused_at is not None
    assert resume("mail", **WHO) is True
    assert resume("mail", **WHO) is False
    assert Queue.objects.get().paused_at is None
    assert actions() == [
        ("pause", "leasejobs.Queue", "mail", None, "ada", WHO["reason"]),
        ("resume", "leasejobs.Queue", "mail", None, "ada", WHO["reason"]),
    ]


@pytest.mark.django_db
def test_queue_that_was_never_paused_is_not_resumed():
    assert resume("mail", **WHO) is False
    assert not Queue.objects.exists()


@two_sessions
def test_resumed_queue_is_told_to_workers_and_a_paused_one_is_not(claimable):
    pause("mail", **WHO)
    assert claimable == []

    resume("mail", **WHO)

    assert claimable == [{"mail": -100}]


@two_sessions
def test_of_two_who_pause_a_queue_one_did():
    for number in range(5):
        name = f"queue-{number}"

        results = together(*[lambda name=name: pause(name, **WHO)] * 2)

        assert sorted(results) == [False, True]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["", " ", "nul\x00", 5])
def test_queue_without_a_name_is_refused(name):
    with pytest.raises(InvalidArguments):
        pause(name, **WHO)
