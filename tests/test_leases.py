"""The holder's verbs: for each state and each verb, it moves or it refuses and changes nothing."""

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, transaction
from django.test import TestCase
from django.utils import timezone

from leasejobs import leases, operations, recovery, registry, signals
from leasejobs.claiming import Stream, claim_jobs, put_back
from leasejobs.context import JobContext, to_json
from leasejobs.exceptions import LeaseLost
from leasejobs.fencing import Lease
from leasejobs.heartbeat import Held
from leasejobs.leases import Written, complete_many, end
from leasejobs.models import Attempt, Job
from leasejobs.outcomes import Continued, Failed, Failure, Parked, Released, Snoozed, Succeeded
from leasejobs.policy import Backoff
from leasejobs.recovery import Cause
from leasejobs.renewal import renew
from leasejobs.states import TRANSITIONS, AttemptOutcome, State
from leasejobs.testing import expire_lease
from tests import tasks
from tests.factories import (
    HOLDER,
    LEASE,
    JobFactory,
    attempts_of,
    forged_lease,
    job_in,
    lease_of,
    whole,
)
from tests.two_connections import second_session, together

two_sessions = pytest.mark.django_db(transaction=True)

FAILURE = Failure("task_raised", "builtins.ValueError", "no reason", "Traceback")
PAST = timedelta(minutes=1)
LATER = "test-host:2:later"
WHY = {"actor": "ada", "reason": "a test"}


def claim_all(holder: str = LATER, limit: int = 100, **options: Any) -> list[tuple[Job, Lease]]:
    return claim_jobs("default", holder=holder, duration=LEASE, limit=limit, **options)


def context_of(job: Job, lease: Lease) -> JobContext:
    return JobContext(job, Held(lease), lambda: False)


def complete_in_fenced(job: Job, lease: Lease) -> None:
    context = context_of(job, lease)
    with context.fenced():
        context.complete({"answer": 42})


def recover(job: Job, lease: Lease) -> None:
    if job.state == State.RUNNING:
        expire_lease(job)
    recovery.recover_expired()


def settle(cause: Cause, *, begun: bool) -> Callable[[Job, Lease], Any]:
    def act(job: Job, lease: Lease) -> None:
        recovery.settle_dead(HOLDER, {(job.pk, lease.epoch): cause} if begun else {})

    return act


# name -> (the verb of the table, how to do it)
MOVES: dict[str, tuple[str, Callable[[Job, Lease], Any]]] = {
    "promote": ("promote", lambda job, lease: recovery.promote()),
    "claim": ("claim", lambda job, lease: claim_all()),
    "claim suspects": ("claim", lambda job, lease: claim_all(stream=Stream.SUSPECT)),
    "claim locked": ("claim", lambda job, lease: claim_all(stream=Stream.LOCKED)),
    "put back": (
        "put back",
        lambda job, lease: put_back("default", Stream.PLAIN, 9, ["tests.tasks.noop"], PAST),
    ),
    "expire": ("expire", lambda job, lease: recovery.expire()),
    "park what runs": ("park running", lambda job, lease: end(lease, Parked(FAILURE))),
    "cancel": ("cancel", lambda job, lease: operations.cancel([job.pk], **WHY)),
    "retry": ("retry", lambda job, lease: operations.retry([job.pk], **WHY)),
    "park": ("park", lambda job, lease: operations.park([job.pk], **WHY)),
    "settle what timed out": ("recover", settle(Cause.TIMED_OUT, begun=True)),
    "release what was forgotten": (
        "release",
        lambda job, lease: recovery.release_forgotten(HOLDER, [lease.token]),
    ),
    "complete": ("complete", lambda job, lease: end(lease, Succeeded(1))),
    "complete in a batch": ("complete", lambda job, lease: complete_many([(job, lease)], {})),
    "complete in a batch with a result": (
        "complete",
        lambda job, lease: complete_many([(job, lease)], {job.pk: "x"}),
    ),
    "complete in fenced": ("complete", complete_in_fenced),
    "fail": ("fail", lambda job, lease: end(lease, Failed(FAILURE))),
    "fail for good": ("fail", lambda job, lease: end(lease, Failed(FAILURE, terminal=True))),
    "snooze": ("snooze", lambda job, lease: end(lease, Snoozed(timedelta(hours=1)))),
    "continue": ("continue", lambda job, lease: end(lease, Continued({"page": 2}))),
    "release": ("release", lambda job, lease: end(lease, Released())),
    "settle what had not begun": ("release", settle(Cause.CRASHED, begun=False)),
    "settle what was interrupted": ("interrupt", settle(Cause.INTERRUPTED, begun=True)),
    "settle what had begun": ("recover", settle(Cause.CRASHED, begun=True)),
    "recover": ("recover", recover),
}
STAYS: dict[str, Callable[[Job, Lease], Any]] = {
    "checkpoint": lambda job, lease: context_of(job, lease).checkpoint({"page": 3}),
    "progress": lambda job, lease: context_of(job, lease).progress(3, 4),
    "renew": lambda job, lease: renew([lease]),
}


def stand(state: State, verb: str, **fields: Any) -> tuple[Job, Lease]:
    """Make a job in `state` and the receipt its holder has, or had, of it."""
    fields.setdefault("due_at", timezone.now() - PAST)
    if verb == "claim suspects":
        fields.setdefault("crashes", 1)
    if verb == "claim locked":
        fields.setdefault("lock_key", "door")
    if verb == "expire":
        fields.setdefault("deadline_at", timezone.now() - PAST)
    if state != State.RUNNING:
        fields.setdefault("epoch", 1)
        fields.setdefault("attempts", 1)
    job = job_in(state, revision=5, **fields)
    return job, lease_of(job) if state == State.RUNNING else forged_lease(job)


def attempt(act: Callable[[Job, Lease], Any], job: Job, lease: Lease) -> None:
    with contextlib.suppress(LeaseLost):
        act(job, lease)


CASES = [
    pytest.param(state, name, id=f"{name}, {state.name.lower()}")
    for state in State
    for name in MOVES
]


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "name"), CASES)
def test_verb_moves_as_the_table_says_or_refuses_and_changes_nothing(state, name):
    verb, act = MOVES[name]
    sources, targets = TRANSITIONS[verb]
    job, lease = stand(state, name)
    before = whole(job)

    attempt(act, job, lease)

    after = whole(job)
    if (verb, state) == ("cancel", State.RUNNING):
        assert after.pop("cancel_requested_at") is not None
        assert before.pop("cancel_requested_at") is None
    if state not in sources:
        assert after == before
        assert attempts_of(job) == []
        return
    assert after["state"] in targets
    assert after["revision"] == before["revision"] + (verb != "claim")
    assert (after["lease_token"] is not None) == (verb == "claim")
    assert len(attempts_of(job)) == (state == State.RUNNING)


@pytest.mark.django_db
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("name", STAYS)
def test_verb_that_does_not_move_writes_while_running_and_otherwise_changes_nothing(state, name):
    job, lease = stand(state, name)
    before = whole(job)

    attempt(STAYS[name], job, lease)

    after = whole(job)
    assert (after != before) == (state == State.RUNNING)
    assert (after["state"], after["revision"]) == (before["state"], before["revision"])
    assert attempts_of(job) == []


NOT_THE_HOLDERS = ("cancel", "promote", "claim", "settle", "recover")
HOLDERS = MOVES | {name: ("", act) for name, act in STAYS.items()}


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name in HOLDERS if not name.startswith(NOT_THE_HOLDERS)])
@pytest.mark.field_case("B003")
def test_stale_holder_of_a_running_row_changes_nothing(name):
    """A claims, A stalls, B claims, A acts: 0 rows."""
    job = JobFactory(running=True, epoch=2)
    before = whole(job)

    attempt(HOLDERS[name][1], job, forged_lease(job, epoch=1))

    assert whole(job) == before
    assert attempts_of(job) == []


@pytest.mark.django_db
def test_table_equals_what_the_verbs_do():
    """Every row of the table is reached, and nothing that is not in it."""
    variants = [
        {}, {"on_crash": "park"}, {"max_attempts": 1}, {"crashes": 1}, {"interruptions": 20},
        {"interruptions": 20, "crashes": 1}, {"interruptions": 20, "max_attempts": 1},
        {"cancel_requested_at": timezone.now()},
    ]  # fmt: skip
    observed: dict[str, tuple[set[State], set[State]]] = {
        verb: (set(), set()) for verb in TRANSITIONS
    }
    for name, (verb, act) in MOVES.items():
        for state in State:
            for fields in variants if state == State.RUNNING else variants[:1]:
                job, lease = stand(state, name, **fields)
                attempt(act, job, lease)
                after = State(whole(job)["state"])
                if after != state:
                    assert verb in observed, verb
                    observed[verb][0].add(state)
                    observed[verb][1].add(after)
                Job.objects.all().delete()

    assert observed == {verb: (set(froms), set(tos)) for verb, (froms, tos) in TRANSITIONS.items()}


@pytest.mark.django_db
def test_every_state_but_success_has_a_way_out():
    sources = frozenset().union(*(froms for froms, _ in TRANSITIONS.values()))

    assert set(State) - sources == {State.SUCCEEDED}


# claim


@pytest.mark.django_db
def test_claim_charges_the_attempt_and_the_epoch_and_dates_the_first_start():
    job = JobFactory(epoch=4, attempts=2)

    [(claimed, lease)] = claim_all()

    job.refresh_from_db()
    assert (job.attempts, job.epoch, job.revision) == (3, 5, 0)
    assert (claimed.attempts, claimed.epoch, lease.epoch) == (3, 5, 5)
    assert (job.lease_token, job.leased_by) == (lease.token, LATER)
    assert job.claimed_at == job.started_at
    assert abs(job.lease_expires_at - job.claimed_at - LEASE) < timedelta(milliseconds=1)
    assert abs(lease.expires_at - job.lease_expires_at) < timedelta(milliseconds=1)


@pytest.mark.django_db
def test_second_claim_keeps_the_first_start():
    first = timezone.now() - timedelta(days=1)
    job = JobFactory(started_at=first, claimed_at=first)

    claim_all()

    job.refresh_from_db()
    assert job.started_at == first
    assert job.claimed_at > first


@pytest.mark.django_db
def test_claim_takes_the_most_urgent_then_the_longest_due_then_the_first():
    now = timezone.now()
    late = JobFactory(priority=0, due_at=now)
    tie = JobFactory(priority=0, due_at=now)
    early = JobFactory(priority=0, due_at=now - PAST)
    urgent = JobFactory(priority=-5, due_at=now)
    idle = JobFactory(priority=5, due_at=now - PAST)

    order = [job.pk for job, _ in claim_all()]

    assert order == [urgent.pk, early.pk, late.pk, tie.pk, idle.pk]


@pytest.mark.django_db
def test_claim_takes_its_own_queue_and_no_suspects_unless_asked():
    plain, other, suspect = JobFactory(), JobFactory(queue="mail"), JobFactory(crashes=1)

    assert [job.pk for job, _ in claim_all()] == [plain.pk]
    assert [job.pk for job, _ in claim_all(stream=Stream.SUSPECT)] == [suspect.pk]
    assert whole(other)["state"] == State.PENDING


@pytest.mark.django_db
def test_claimed_job_brings_what_a_run_needs_without_another_query(django_assert_num_queries):
    JobFactory(
        args=[1, {"a": [None]}],
        kwargs={"b": "ü"},
        checkpoint={"page": 3},
        tenant="acme",
        priority=4,
    )

    with django_assert_num_queries(1):
        [(job, lease)] = claim_all()
        found = (job.args, job.kwargs, job.checkpoint, job.tenant, job.task, job.queue, job.state)

    assert found == (
        [1, {"a": [None]}], {"b": "ü"}, {"page": 3}, "acme", "tests.tasks.noop", "default",
        State.RUNNING,
    )  # fmt: skip
    assert lease.model is Job


@pytest.mark.django_db
def test_claimed_job_has_its_other_columns_on_demand():
    made = JobFactory(max_attempts=5)

    [(job, _)] = claim_all()

    assert job.max_attempts == 5
    assert job.created_at == made.created_at


@pytest.mark.django_db
@pytest.mark.parametrize("limit", [0, 1, 3, 10**9])
def test_claim_takes_at_most_its_limit(limit):
    JobFactory.create_batch(4)

    assert len(claim_all(limit=limit)) == min(limit, 4)


@pytest.mark.django_db
def test_one_token_per_call():
    JobFactory.create_batch(4)

    first, second = claim_all(limit=2), claim_all(limit=2)

    assert (
        len({lease.token for _, lease in first}) == len({lease.token for _, lease in second}) == 1
    )
    assert first[0][1].token != second[0][1].token


@pytest.mark.django_db
def test_database_refuses_a_claim_without_a_holder():
    JobFactory()

    with pytest.raises(IntegrityError, match="lease_whole"), transaction.atomic():
        claim_all(holder="")

    assert Job.objects.get().attempts == 0


@two_sessions
def test_claim_skips_locked_rows():
    first, second = JobFactory.create_batch(2)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [first.pk])
        found = claim_all()

    assert [job.pk for job, _ in found] == [second.pk]


@two_sessions
def test_claims_of_two_sessions_at_once_are_disjoint():
    JobFactory.create_batch(60)

    def claim_some() -> list[int]:
        return [job.pk for _ in range(6) for job, _ in claim_all(limit=5)]

    first, second = together(claim_some, claim_some)

    assert len(first) == len(second) == 30
    assert set(first).isdisjoint(second)


CLAIM_SCRIPT = """
import django, sys
django.setup()
from datetime import timedelta
from leasejobs.claiming import Stream, claim_jobs, put_back
print("ready", flush=True)
input()
while claimed := claim_jobs("default", holder=sys.argv[1], duration=timedelta(seconds=60), limit=7):
    print(*(job.pk for job, _ in claimed), flush=True)
"""


def test_claims_of_eight_processes_are_disjoint_and_complete(worker_env):
    Job.objects.bulk_create(JobFactory.build_batch(1000))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM_SCRIPT, f"process-{number}"],
            env=worker_env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    claimed = [int(pk) for child in children for pk in child.communicate(timeout=60)[0].split()]

    assert [child.returncode for child in children] == [0] * 8
    assert len(claimed) == len(set(claimed)) == 1000
    assert Job.objects.running().filter(epoch=1, attempts=1).count() == 1000
    assert Job.objects.values("leased_by").distinct().count() > 1


# complete


@pytest.mark.django_db
def test_completed_job_is_finished_unleased_and_recorded():
    job = JobFactory(running=True, failure_code="task_raised", failure_detail="earlier")

    assert end(lease_of(job), Succeeded({"n": 1})) is Written.WRITTEN

    row = whole(job)
    assert (row["state"], row["result"], row["failure_code"], row["failure_detail"]) == (
        State.SUCCEEDED, {"n": 1}, "", "",
    )  # fmt: skip
    assert (row["lease_token"], row["leased_by"], row["lease_expires_at"]) == (None, "", None)
    assert row["finished_at"] is not None
    [record] = attempts_of(job)
    assert (record["epoch"], record["number"], record["worker"]) == (1, 1, HOLDER)
    assert (record["outcome"], record["late_outcome"]) == ("succeeded", "")
    assert record["claimed_at"] == job.claimed_at


@pytest.mark.django_db
def test_batch_and_single_completion_write_the_same():
    batched, single = JobFactory.create_batch(2, running=True)
    ignored = {"id", "job_id", "lease_token", "finished_at", "ended_at", "claimed_at", "due_at",
               "created_at", "started_at"}  # fmt: skip

    complete_many([(batched, lease_of(batched))], {batched.pk: [1]})
    end(lease_of(single), Succeeded([1]))

    for read in (whole, lambda job: attempts_of(job)[0]):
        first, second = read(batched), read(single)
        assert {k: v for k, v in first.items() if k not in ignored} == {
            k: v for k, v in second.items() if k not in ignored
        }


@pytest.mark.django_db
def test_batch_writes_each_result_to_its_own_row():
    jobs = shared_claim(5)

    written = complete_many(jobs, {jobs[1][0].pk: {"n": 1}, jobs[3][0].pk: "ü"})

    assert set(written.values()) == {Written.WRITTEN}
    assert [whole(job)["result"] for job, _ in jobs] == [None, {"n": 1}, None, "ü", None]
    assert Attempt.objects.filter(outcome="succeeded").count() == 5


@pytest.mark.django_db
def test_expired_lease_that_nobody_claimed_still_counts_for_outcomes():
    single, batched = JobFactory.create_batch(2, running=True)
    for job in (single, batched):
        expire_lease(job)

    assert end(lease_of(single), Succeeded(1)) is Written.WRITTEN
    assert complete_many([(batched, lease_of(batched))], {}) == {batched.pk: Written.WRITTEN}


@two_sessions
@pytest.mark.parametrize("with_result", [False, True])
def test_locked_row_is_busy_and_holds_up_none_of_its_batch(with_result):
    jobs = shared_claim(3)
    locked = jobs[1][0]
    results = {locked.pk: 1} if with_result else {}
    before = whole(locked)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [locked.pk])
        written = complete_many(jobs, results)

    assert [written[job.pk] for job, _ in jobs] == [Written.WRITTEN, Written.BUSY, Written.WRITTEN]
    assert whole(locked) == before
    assert complete_many([jobs[1]], results) == {locked.pk: Written.WRITTEN}
    assert whole(locked)["result"] == results.get(locked.pk)


@two_sessions
def test_single_outcome_of_a_locked_row_is_busy_and_not_waited_for():
    job = JobFactory(running=True)
    before = whole(job)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [job.pk])
        assert end(lease_of(job), Failed(FAILURE)) is Written.BUSY

    assert whole(job) == before
    assert attempts_of(job) == []


@pytest.mark.django_db
def test_lost_row_records_the_late_outcome_once_and_changes_nothing_else():
    jobs = shared_claim(3)
    lost, lease = jobs[1]
    expire_lease(lost)
    recovery.recover_expired()
    row, [record] = whole(lost), attempts_of(lost)

    written = complete_many(jobs, {})

    assert [written[job.pk] for job, _ in jobs] == [Written.WRITTEN, Written.LOST, Written.WRITTEN]
    [late] = attempts_of(lost)
    assert late["late_outcome"] == "succeeded"
    assert late["late_at"] is not None
    assert late | {"late_outcome": "", "late_at": None} == record
    assert end(lease, Failed(FAILURE)) is Written.LOST
    assert attempts_of(lost) == [late]
    assert whole(lost) == row


@pytest.mark.django_db
def test_late_outcome_goes_to_its_own_attempt_while_a_successor_runs():
    """A claims, A stalls, A is recovered, B claims, A completes: recorded on A's attempt."""
    job = JobFactory(running=True)
    late = lease_of(job)
    expire_lease(job)
    recovery.recover_expired()
    [(_, successor)] = claim_all(stream=Stream.SUSPECT)
    before = whole(job)

    assert end(late, Succeeded("late")) is Written.LOST

    assert whole(job) == before
    assert [row["late_outcome"] for row in attempts_of(job)] == ["succeeded"]
    assert end(successor, Succeeded("current")) is Written.WRITTEN
    assert [row["outcome"] for row in attempts_of(job)] == ["lost", "succeeded"]
    assert whole(job)["result"] == "current"


@pytest.mark.django_db
def test_release_that_comes_late_is_no_late_outcome():
    job = JobFactory(running=True)
    lease = lease_of(job)
    expire_lease(job)
    recovery.recover_expired()

    assert end(lease, Released()) is Written.LOST

    assert [row["late_outcome"] for row in attempts_of(job)] == [""]


@pytest.mark.django_db
def test_late_outcome_of_a_deleted_job_is_lost_and_recorded_nowhere():
    job = JobFactory(running=True)
    Job.objects.all().delete()

    assert end(lease_of(job), Succeeded(1)) is Written.LOST
    assert not Attempt.objects.exists()


@pytest.mark.django_db
def test_late_outcome_sends_lease_lost(django_capture_on_commit_callbacks):
    job = JobFactory(running=True)
    lease = lease_of(job)
    expire_lease(job)
    recovery.recover_expired()
    heard = []

    def listen(lease, outcome, **_):
        heard.append((lease.pk, outcome))

    signals.lease_lost.connect(listen)
    try:
        end(lease, Succeeded(1))
    finally:
        signals.lease_lost.disconnect(listen)

    assert heard == [(job.pk, AttemptOutcome.SUCCEEDED)]


@pytest.mark.django_db
def test_batch_whose_write_happened_but_whose_reply_was_lost_is_written_and_not_made_twice():
    jobs = shared_claim(3)
    complete_many(jobs, {jobs[0][0].pk: 1})
    rows = [whole(job) for job, _ in jobs]

    written = complete_many(jobs, {jobs[0][0].pk: 1})

    assert set(written.values()) == {Written.WRITTEN}
    assert [whole(job) for job, _ in jobs] == rows
    assert Attempt.objects.filter(late_outcome="").count() == 3


@pytest.mark.django_db
@pytest.mark.parametrize(
    "outcome", [Succeeded(1), Failed(FAILURE), Snoozed(PAST), Continued(1), Released()], ids=repr
)
def test_outcome_whose_reply_was_lost_is_written_and_not_made_twice(outcome):
    job = JobFactory(running=True)
    end(lease_of(job), outcome)
    row = whole(job)

    assert end(lease_of(job), outcome) is Written.WRITTEN

    assert whole(job) == row
    assert len(attempts_of(job)) == 1


@pytest.mark.django_db
def test_attempt_ended_otherwise_than_reported_is_not_taken_for_a_lost_reply():
    job = JobFactory(running=True)
    end(lease_of(job), Failed(FAILURE))

    assert end(lease_of(job), Succeeded(1)) is Written.LOST
    assert [row["late_outcome"] for row in attempts_of(job)] == ["succeeded"]


@pytest.mark.django_db
def test_pairs_of_pk_and_token_are_never_mixed_in_a_batch():
    first, second = JobFactory.create_batch(2, running=True)
    crossed = forged_lease(second, token=first.lease_token)

    written = complete_many([(first, lease_of(first)), (second, crossed)], {second.pk: 1})

    assert written == {first.pk: Written.WRITTEN, second.pk: Written.LOST}
    assert whole(second)["state"] == State.RUNNING
    assert whole(second)["result"] is None


@pytest.mark.django_db
def test_attempts_are_unique_per_job_and_epoch():
    job = JobFactory()
    row = {"job": job, "epoch": 1, "number": 1, "worker": "x", "ended_at": timezone.now(),
           "outcome": "lost"}  # fmt: skip
    Attempt.objects.create(**row)

    with pytest.raises(IntegrityError, match="leasejobs_attempt_once"), transaction.atomic():
        Attempt.objects.create(**row)


@pytest.mark.django_db
def test_attempts_are_announced_once_per_batch_and_only_what_was_written():
    jobs = shared_claim(3)
    expire_lease(jobs[2][0])
    recovery.recover_expired()

    heard = announcements(lambda: complete_many(jobs, {}))

    assert [[ended.job_id for ended in batch] for batch in heard] == [
        [job.pk for job, _ in jobs[:2]]
    ]


# what a result may hold


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [
        "a\x00b",
        "\ud800",
        {"k\x00": ["\udfff"]},
        [1.5e10, -0.0, 10**300],
        "x" * 100_000,
        {"ключ": "значение"},
        [[[[]]]],
        "\\u0000",
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_any_json_result_is_stored_one_way_or_the_other(value):
    single, batched = JobFactory.create_batch(2, running=True)
    result = to_json(value)

    assert end(lease_of(single), Succeeded(result)) is Written.WRITTEN
    complete_many([(batched, lease_of(batched))], {batched.pk: result})

    assert whole(single)["result"] == whole(batched)["result"] == result


@pytest.mark.django_db
def test_replaced_characters_are_marked_not_dropped():
    assert to_json("a\x00b\ud800") == "a\ufffdb\ufffd"
    assert to_json({"\x00": (1, 2)}) == {"\ufffd": [1, 2]}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1, 2}, object(), b"x"],
    ids=["nan", "inf", "set", "object", "bytes"],
)
def test_what_is_no_json_is_refused_before_it_is_an_outcome(value):
    with pytest.raises((TypeError, ValueError)):
        to_json(value)


# fail


@pytest.mark.django_db
def test_failed_attempt_waits_for_its_backoff_and_keeps_its_charge():
    job = JobFactory(running=True, attempts=3)

    end(lease_of(job), Failed(FAILURE))

    row, [record] = whole(job), attempts_of(job)
    assert (row["state"], row["attempts"]) == (State.RETRYABLE, 3)
    assert abs(row["due_at"] - record["ended_at"] - timedelta(seconds=40)) < timedelta(seconds=1)
    assert (row["failure_code"], row["failure_detail"]) == ("task_raised", "no reason")
    assert (record["outcome"], record["failure_code"], record["exception_path"]) == (
        "failed", "task_raised", "builtins.ValueError",
    )  # fmt: skip
    assert record["traceback"] == "Traceback"
    assert row["finished_at"] is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("attempts", "state"), [(7, State.RETRYABLE), (8, State.FAILED), (9, State.FAILED)]
)
def test_job_fails_for_good_at_its_last_attempt(attempts, state):
    job = JobFactory(running=True, attempts=attempts, max_attempts=8)

    end(lease_of(job), Failed(FAILURE))

    row = whole(job)
    assert row["state"] == state
    assert (row["finished_at"] is not None) == (state == State.FAILED)


@pytest.mark.django_db
def test_terminal_failure_spends_no_further_attempt():
    job = JobFactory(running=True, attempts=1)

    end(lease_of(job), Failed(Failure("card_expired"), terminal=True))

    assert (whole(job)["state"], whole(job)["failure_code"]) == (State.FAILED, "card_expired")


@pytest.mark.django_db
def test_delay_of_the_failure_goes_before_the_backoff():
    job = JobFactory(running=True)

    end(lease_of(job), Failed(FAILURE, delay=timedelta(hours=5)))

    assert whole(job)["due_at"] > timezone.now() + timedelta(hours=4)


@pytest.mark.django_db
def test_backoff_is_the_rows_and_not_the_one_the_task_has_now(monkeypatch):
    tasks.explode.enqueue()
    changed = tasks.explode.using(
        backoff=Backoff(timedelta(days=1), timedelta(days=2)), max_attempts=1
    )
    monkeypatch.setitem(registry._tasks, changed.module_path, changed)
    [(job, lease)] = claim_all()

    end(lease, Failed(FAILURE))

    row = whole(job)
    assert row["state"] == State.RETRYABLE
    assert row["due_at"] <= timezone.now() + timedelta(seconds=1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "damage",
    [{}, [], "x", 7, {"base": "x", "cap": 1, "jitter": 0}, {"base": -1, "cap": 1, "jitter": 0},
     {"base": 1e300, "cap": 1e308, "jitter": 0}, {"base": 1, "cap": 2, "jitter": "high"},
     {"base": 1, "cap": 2, "jitter": 5}, {"base": 1, "cap": 2}, {"base": None, "cap": None,
     "jitter": None}, {"base": [], "cap": {}, "jitter": []}],
    ids=repr,
)  # fmt: skip
def test_damaged_backoff_stops_neither_failure_nor_recovery(damage):
    failing, crashing = JobFactory.create_batch(2, running=True, crashes=1, backoff=damage)

    assert end(lease_of(failing), Failed(FAILURE)) is Written.WRITTEN
    expire_lease(crashing)
    assert recovery.recover_expired() == 1

    assert whole(failing)["state"] == whole(crashing)["state"] == State.RETRYABLE


# snooze, continue, release


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Snoozed(PAST), Continued(None), Released()], ids=repr)
@pytest.mark.parametrize(("attempts", "refunded"), [(0, 0), (1, 0), (5, 4)])
def test_waiting_slicing_and_releasing_are_refunded_and_never_below_zero(
    outcome, attempts, refunded
):
    job = JobFactory(running=True, attempts=attempts, crashes=2, interruptions=1)

    end(lease_of(job), outcome)

    row, [record] = whole(job), attempts_of(job)
    assert (row["attempts"], row["crashes"], row["interruptions"]) == (refunded, 2, 1)
    assert record["number"] == attempts


@pytest.mark.django_db
def test_snoozed_job_is_due_after_its_delay():
    job = JobFactory(running=True)

    end(lease_of(job), Snoozed(timedelta(hours=2)))

    row, [record] = whole(job), attempts_of(job)
    assert row["due_at"] - record["ended_at"] == pytest.approx(
        timedelta(hours=2), abs=timedelta(seconds=1)
    )


@pytest.mark.django_db
def test_changed_checkpoint_starts_the_budgets_afresh():
    job = JobFactory(running=True, attempts=7, crashes=2, interruptions=9, checkpoint={"page": 1})

    end(lease_of(job), Continued({"page": 2}))

    row = whole(job)
    assert (row["attempts"], row["crashes"], row["interruptions"]) == (0, 0, 0)
    assert row["checkpoint"] == {"page": 2}
    [(claimed, _)] = claim_all()
    assert claimed.attempts == 1


@pytest.mark.django_db
def test_same_checkpoint_is_only_refunded():
    job = JobFactory(running=True, attempts=7, crashes=2, interruptions=9, checkpoint={"page": 1})

    end(lease_of(job), Continued({"page": 1}))

    row = whole(job)
    assert (row["attempts"], row["crashes"], row["interruptions"]) == (6, 2, 9)


@pytest.mark.django_db
def test_continued_job_is_claimable_at_once():
    job = JobFactory(running=True, due_at=timezone.now() + timedelta(hours=1))

    end(lease_of(job), Continued(1))

    assert whole(job)["due_at"] <= timezone.now()


# checkpoint, progress


@pytest.mark.django_db
def test_committed_checkpoint_that_changed_counts_the_running_attempt_only():
    job = JobFactory(running=True, attempts=7, crashes=2, interruptions=9, checkpoint=1)

    context_of(job, lease_of(job)).checkpoint(2)

    row = whole(job)
    assert (row["checkpoint"], row["attempts"], row["crashes"], row["interruptions"]) == (
        2,
        1,
        0,
        0,
    )


@pytest.mark.django_db
def test_committed_checkpoint_that_is_the_same_changes_no_budget():
    job = JobFactory(running=True, attempts=7, crashes=2, interruptions=9, checkpoint=1)

    context_of(job, lease_of(job)).checkpoint(1)

    row = whole(job)
    assert (row["attempts"], row["crashes"], row["interruptions"]) == (7, 2, 9)


@pytest.mark.django_db
def test_failure_after_a_checkpoint_counts_from_the_checkpoint():
    job = JobFactory(running=True, attempts=8, max_attempts=8)
    lease = lease_of(job)
    context_of(job, lease).checkpoint(2)

    end(lease, Failed(FAILURE))

    assert (whole(job)["state"], whole(job)["attempts"]) == (State.RETRYABLE, 1)


@two_sessions
def test_outcome_is_a_transaction_with_its_attempt():
    """The attempt cannot be written: the row does not move either."""
    job = JobFactory(running=True)
    Attempt.objects.create(
        job=job, epoch=1, number=1, worker="x", ended_at=timezone.now(), outcome="lost"
    )
    before = whole(job)

    for write in (
        lambda: end(lease_of(job), Succeeded(1)),
        lambda: complete_many([(job, lease_of(job))], {job.pk: 1}),
    ):
        with pytest.raises(DatabaseError):
            write()
        assert whole(job) == before


def shared_claim(count: int) -> list[tuple[Job, Lease]]:
    """Make `count` running jobs under one token."""
    token = uuid.uuid4()
    jobs = JobFactory.create_batch(count, running=True, lease_token=token)
    return [(job, lease_of(job)) for job in jobs]


def announcements(act: Callable[[], Any]) -> list[list[leases.Ended]]:
    heard: list[list[leases.Ended]] = []

    def listen(attempts, **_):
        heard.append(list(attempts))

    signals.attempts_ended.connect(listen)
    try:
        with TestCase.captureOnCommitCallbacks(execute=True):
            act()
    finally:
        signals.attempts_ended.disconnect(listen)
    return heard
