"""Rows nobody works on: promoted when due, taken back from holders that are silent or dead."""

import random
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from leasejobs import policy, recovery, signals
from leasejobs.claiming import Stream, claim_jobs
from leasejobs.exceptions import LeaseLost
from leasejobs.fencing import fenced
from leasejobs.leases import Written, complete_many, end
from leasejobs.models import Attempt, Job
from leasejobs.outcomes import Continued, Failed, Failure, Released, Snoozed, Succeeded
from leasejobs.policy import Backoff, after, after_crash, after_interrupt
from leasejobs.recovery import Cause, promote, recover_expired, settle_dead
from leasejobs.renewal import renew
from leasejobs.states import AttemptOutcome, State
from leasejobs.testing import expire_lease, make_due
from tests.factories import (
    HOLDER,
    LEASE,
    JobFactory,
    attempts_of,
    job_in,
    lease_of,
    whole,
)
from tests.two_connections import acting, second_session, together, wait_until_blocked

two_sessions = pytest.mark.django_db(transaction=True)

PAST = timedelta(minutes=1)
NEIGHBOUR = "test-host:2:def"

# No deadline: a loaded machine is not a bug.
examples = settings(max_examples=60, deadline=None)


def expired(**fields) -> Job:
    return JobFactory(running=True, lease_expires_at=timezone.now() - PAST, **fields)


# promote


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYABLE])
def test_promotion_takes_what_is_due_and_leaves_what_is_not(state):
    due = job_in(state, due_at=timezone.now() - PAST)
    early = job_in(state, due_at=timezone.now() + PAST)
    before = whole(early)

    assert promote() == 1

    assert (whole(due)["state"], whole(due)["revision"]) == (State.PENDING, 1)
    assert whole(early) == before


@pytest.mark.django_db
def test_promotion_keeps_the_time_since_when_a_job_is_due():
    job = job_in(State.SCHEDULED, due_at=timezone.now() - PAST)

    promote()

    assert whole(job)["due_at"] == job.due_at


@pytest.mark.django_db
def test_promotion_is_bounded_and_takes_the_longest_due_first():
    jobs = [job_in(State.SCHEDULED, due_at=timezone.now() - PAST * n) for n in (1, 3, 2)]

    assert promote(limit=2) == 2

    assert [whole(job)["state"] for job in jobs] == [State.SCHEDULED, State.PENDING, State.PENDING]
    assert promote(limit=2) == 1
    assert promote(limit=2) == 0


@two_sessions
def test_promotion_skips_what_another_session_has_locked():
    first, second = (job_in(State.SCHEDULED, due_at=timezone.now() - PAST) for _ in range(2))

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [first.pk])
        assert promote() == 1

    assert whole(first)["state"] == State.SCHEDULED
    assert whole(second)["state"] == State.PENDING


@two_sessions
def test_two_promotions_at_once_promote_each_row_once():
    for _ in range(40):
        job_in(State.SCHEDULED, due_at=timezone.now() - PAST)

    together(promote, promote)
    promote()

    assert Job.objects.filter(state=State.PENDING, revision=1).count() == 40


# recover


@pytest.mark.django_db
def test_first_crash_is_charged_and_due_at_once():
    job = expired(attempts=2)

    assert recover_expired() == 1

    row, [record] = whole(job), attempts_of(job)
    assert (row["state"], row["crashes"], row["attempts"]) == (State.PENDING, 1, 2)
    assert row["due_at"] <= timezone.now()
    assert (row["lease_token"], row["leased_by"], row["lease_expires_at"]) == (None, "", None)
    assert (record["outcome"], record["failure_code"]) == ("lost", "lease_expired")
    assert (record["epoch"], record["number"], record["worker"]) == (1, 2, HOLDER)
    assert row["failure_code"] == "lease_expired"


@pytest.mark.django_db
@pytest.mark.parametrize(("crashes", "seconds"), [(1, 10), (2, 20), (3, 40)])
def test_later_crashes_wait_for_the_backoff(crashes, seconds):
    job = expired(crashes=crashes, max_crashes=9)

    recover_expired()

    row, [record] = whole(job), attempts_of(job)
    assert (row["state"], row["crashes"]) == (State.RETRYABLE, crashes + 1)
    assert abs(row["due_at"] - record["ended_at"] - timedelta(seconds=seconds)) < timedelta(
        seconds=1
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    "fields", [{"crashes": 2, "max_crashes": 3}, {"attempts": 8}, {"max_crashes": 1}], ids=str
)
@pytest.mark.field_case("B083")
def test_crash_past_a_bound_fails_for_good(fields):
    job = expired(**fields)

    recover_expired()

    row = whole(job)
    assert (row["state"], row["crashes"]) == (State.FAILED, fields.get("crashes", 0) + 1)
    assert row["finished_at"] is not None


@pytest.mark.django_db
def test_crash_of_a_job_that_asks_for_it_parks():
    job = expired(on_crash="park")

    recover_expired()

    row = whole(job)
    assert (row["state"], row["crashes"], row["finished_at"]) == (State.PARKED, 1, None)
    assert row["failure_code"] == "lease_expired"


@pytest.mark.django_db
def test_recovered_job_is_a_suspect():
    job = expired()
    recover_expired()

    assert list(Job.objects.claimable()) == []
    assert [found.pk for found in Job.objects.suspect()] == [job.pk]


@pytest.mark.django_db
def test_unexpired_lease_is_left_alone():
    job = JobFactory(running=True)
    before = whole(job)

    assert recover_expired() == 0
    assert whole(job) == before


@pytest.mark.django_db
def test_recovery_is_bounded():
    for _ in range(3):
        expired()

    assert recover_expired(limit=2) == 2
    assert recover_expired(limit=2) == 1


@two_sessions
@pytest.mark.field_case("B023")
def test_lease_rearmed_while_recovery_looked_is_left_alone(monkeypatch):
    """Recovery selects the row, its holder's fenced() re-arms it, recovery locks it: not lost."""
    job = expired()
    lease = lease_of(job)
    rearm_between(monkeypatch, lease)

    assert recover_expired() == 0

    assert whole(job)["state"] == State.RUNNING
    assert attempts_of(job) == []


@two_sessions
@pytest.mark.field_case("B023")
def test_completion_that_comes_first_wins_and_recovery_changes_nothing():
    job = expired()

    assert end(lease_of(job), Succeeded(1)) is Written.WRITTEN
    row = whole(job)
    assert recover_expired() == 0

    assert whole(job) == row
    assert [record["outcome"] for record in attempts_of(job)] == ["succeeded"]


@two_sessions
def test_recovery_that_comes_first_wins_and_completion_is_refused_and_recorded():
    job = expired()

    assert recover_expired() == 1
    row = whole(job)
    assert complete_many([(job, lease_of(job))], {}) == {job.pk: Written.LOST}

    assert whole(job) == row
    [record] = attempts_of(job)
    assert (record["outcome"], record["late_outcome"]) == ("lost", "succeeded")


@two_sessions
def test_completion_that_is_open_keeps_recovery_out():
    job = expired()

    with fenced(lease_of(job)), acting(recover_expired) as sweeper:
        assert sweeper.result() == 0


@two_sessions
def test_recovery_and_completion_at_once_end_the_attempt_once():
    for _ in range(10):
        job = expired()
        lease = lease_of(job)

        recovered, written = together(recover_expired, lambda lease=lease: end(lease, Succeeded(1)))
        if written is Written.BUSY:  # it met the lock of the recovery
            written = end(lease, Succeeded(1))

        [record] = attempts_of(job)
        assert (recovered, written, record["outcome"], record["late_outcome"]) in [
            (1, Written.LOST, "lost", "succeeded"),
            (0, Written.WRITTEN, "succeeded", ""),
        ]


@two_sessions
def test_two_recoveries_at_once_write_one_attempt_and_one_crash():
    jobs = [expired() for _ in range(20)]

    assert sum(together(recover_expired, recover_expired)) == 20

    assert Attempt.objects.count() == 20
    assert {whole(job)["crashes"] for job in jobs} == {1}


@two_sessions
@pytest.mark.field_case("B092")
def test_one_bad_row_does_not_stop_the_others_and_is_told():
    first, bad, last = expired(), expired(), expired()
    break_row(bad)
    heard = []

    def listen(pk, error, **_):
        heard.append(pk)

    signals.recovery_failed.connect(listen)
    try:
        assert recover_expired() == 2
    finally:
        signals.recovery_failed.disconnect(listen)

    assert heard == [bad.pk]
    assert [whole(job)["state"] for job in (first, bad, last)] == [
        State.PENDING, State.RUNNING, State.PENDING,
    ]  # fmt: skip


@two_sessions
def test_recovery_tells_holder_and_cause():
    job = expired()
    heard = []

    def listen(pk, holder, cause, state, **_):
        heard.append((pk, holder, cause, state))

    signals.jobs_recovered.connect(listen)
    try:
        recover_expired()
    finally:
        signals.jobs_recovered.disconnect(listen)

    assert heard == [(job.pk, HOLDER, Cause.LEASE_EXPIRED, State.PENDING)]


@two_sessions
def test_fenced_that_waits_for_a_recovery_loses():
    """Recovery locks and ends the row while its late holder waits for the lock."""
    job = expired()
    lease = lease_of(job)

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [job.pk])
        other.execute(
            "UPDATE leasejobs_job SET state = 2, lease_token = NULL, leased_by = '',"
            " lease_expires_at = NULL WHERE id = %s",
            [job.pk],
        )
        with acting(lambda: rearm(lease)) as holder:
            wait_until_blocked(holder.pid)
            other.commit()
            with pytest.raises(LeaseLost):
                holder.result()

    assert whole(job)["state"] == State.PENDING


# settle


@pytest.mark.django_db
def test_dead_holders_begun_job_is_charged_and_its_prefetched_neighbours_are_not():
    begun = JobFactory(running=True)
    prefetched = JobFactory.create_batch(3, running=True)

    assert settle_dead(HOLDER, dict.fromkeys({(begun.pk, 1)}, Cause.CRASHED)) == 0

    row = whole(begun)
    assert (row["state"], row["crashes"], row["attempts"]) == (State.PENDING, 1, 1)
    assert [record["outcome"] for record in attempts_of(begun)] == ["lost"]
    assert [record["failure_code"] for record in attempts_of(begun)] == ["crashed"]
    for job in prefetched:
        row = whole(job)
        assert (row["state"], row["crashes"], row["attempts"]) == (State.PENDING, 0, 0)
        assert row["revision"] == 1
        assert row["lease_token"] is None
        assert [record["outcome"] for record in attempts_of(job)] == ["released"]
        assert attempts_of(job)[0]["number"] == 1


@pytest.mark.django_db
def test_settling_leaves_other_holders_alone_even_when_expired():
    job = expired(leased_by=NEIGHBOUR)
    before = whole(job)

    assert settle_dead(HOLDER, dict.fromkeys({(job.pk, 1)}, Cause.CRASHED)) == 0
    assert whole(job) == before


@pytest.mark.django_db
def test_settling_does_not_wait_for_the_lease_to_expire():
    job = JobFactory(running=True)

    settle_dead(HOLDER, dict.fromkeys({(job.pk, 1)}, Cause.CRASHED))

    assert whole(job)["state"] == State.PENDING


@pytest.mark.django_db
def test_begun_run_of_an_earlier_epoch_does_not_charge_the_current_one():
    job = JobFactory(running=True, epoch=3)

    settle_dead(HOLDER, dict.fromkeys({(job.pk, 2)}, Cause.CRASHED))

    assert whole(job)["crashes"] == 0
    assert [record["outcome"] for record in attempts_of(job)] == ["released"]


@pytest.mark.django_db
def test_settling_a_holder_twice_changes_nothing():
    job = JobFactory(running=True)
    settle_dead(HOLDER, {})
    before = whole(job)

    assert settle_dead(HOLDER, {}) == 0
    assert whole(job) == before


@two_sessions
@pytest.mark.parametrize("begun", [False, True])
def test_locked_row_is_counted_and_settled_by_the_next_call(begun):
    locked, free = JobFactory.create_batch(2, running=True)
    pairs = {(locked.pk, 1), (free.pk, 1)} if begun else set()

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job WHERE id = %s FOR NO KEY UPDATE", [locked.pk])
        assert settle_dead(HOLDER, dict.fromkeys(pairs, Cause.CRASHED)) == 1
        assert whole(locked)["state"] == State.RUNNING
        assert whole(free)["state"] == State.PENDING

    assert settle_dead(HOLDER, dict.fromkeys(pairs, Cause.CRASHED)) == 0
    assert whole(locked)["state"] == State.PENDING


@two_sessions
def test_one_bad_row_does_not_keep_a_dead_holders_other_rows():
    bad, *good = JobFactory.create_batch(3, running=True)
    break_row(bad)

    assert settle_dead(HOLDER, {}) == 1

    assert [whole(job)["state"] for job in good] == [State.PENDING, State.PENDING]


@two_sessions
def test_supervisor_and_sweeper_at_once_end_each_attempt_once():
    jobs = [expired() for _ in range(10)]
    begun = {(job.pk, 1) for job in jobs[:5]}

    together(lambda: settle_dead(HOLDER, dict.fromkeys(begun, Cause.CRASHED)), recover_expired)
    settle_dead(HOLDER, dict.fromkeys(begun, Cause.CRASHED))

    assert Attempt.objects.count() == 10
    assert {whole(job)["state"] for job in jobs} == {State.PENDING}


@pytest.mark.django_db
def test_interrupted_body_is_refunded_and_counted():
    job = JobFactory(running=True, attempts=3, interruptions=4)

    settle_dead(HOLDER, dict.fromkeys({(job.pk, 1)}, Cause.INTERRUPTED))

    row = whole(job)
    assert (row["state"], row["attempts"], row["crashes"], row["interruptions"]) == (
        State.PENDING, 2, 0, 5,
    )  # fmt: skip
    assert [record["outcome"] for record in attempts_of(job)] == ["interrupted"]


@pytest.mark.django_db
@pytest.mark.parametrize(("interruptions", "crashes"), [(1, 0), (2, 1)])
def test_interruptions_past_the_bound_count_as_crashes(settings, interruptions, crashes):
    settings.LEASEJOBS = {"MAX_INTERRUPTIONS": 2}
    job = JobFactory(running=True, interruptions=interruptions)

    settle_dead(HOLDER, dict.fromkeys({(job.pk, 1)}, Cause.INTERRUPTED))

    assert whole(job)["crashes"] == crashes


@pytest.mark.django_db
def test_interrupted_job_that_asks_for_it_parks():
    job = JobFactory(running=True, on_crash="park")

    settle_dead(HOLDER, dict.fromkeys({(job.pk, 1)}, Cause.INTERRUPTED))

    row = whole(job)
    assert (row["state"], row["failure_code"], row["crashes"]) == (State.PARKED, "interrupted", 0)


@pytest.mark.django_db
def test_unbegun_job_is_released_whatever_its_crash_policy():
    job = JobFactory(running=True, on_crash="park")

    settle_dead(HOLDER, {})

    assert (whole(job)["state"], whole(job)["attempts"]) == (State.PENDING, 0)


# the helpers of users' tests


@pytest.mark.django_db
def test_helpers_refuse_rows_they_do_not_fit():
    pending = JobFactory()

    with pytest.raises(AssertionError, match="not leased"):
        expire_lease(pending)
    with pytest.raises(AssertionError, match="not waiting"):
        make_due(pending)


@pytest.mark.django_db
def test_made_due_job_is_promoted():
    job = job_in(State.SCHEDULED)

    make_due(job)

    assert promote() == 1


@pytest.mark.django_db
def test_recovered_row_is_never_renewed():
    job = expired()
    lease = lease_of(job)
    recover_expired()
    [(again, _)] = claim_jobs(
        "default", holder=NEIGHBOUR, duration=LEASE, limit=1, stream=Stream.SUSPECT
    )
    before = whole(again)

    assert renew([lease]) == ([], [], [lease])
    assert whole(again) == before


# policy, as pure functions


def row(**fields) -> SimpleNamespace:
    defaults = {
        "attempts": 1, "max_attempts": 8, "crashes": 0, "max_crashes": 3, "interruptions": 0,
        "on_crash": "retry", "checkpoint": None, "cancel_requested_at": None,
        "backoff": Backoff(timedelta(seconds=1), timedelta(hours=1), 0).to_json(),
    }  # fmt: skip
    return SimpleNamespace(**(defaults | fields))


@pytest.mark.parametrize("failures", [46, 47, 64, 1025, 32767, 2**31 - 1])
@pytest.mark.parametrize("base", [timedelta(0), timedelta(microseconds=1), timedelta(days=365)])
@pytest.mark.field_case("B025")
def test_backoff_does_not_overflow(failures, base):
    backoff = Backoff(base, timedelta(days=365), 0)

    assert timedelta(0) <= backoff.delay(failures, 0) <= timedelta(days=365)
    assert Backoff(timedelta(1), timedelta(days=365), 0).delay(failures, 0) == timedelta(days=365)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(-1, 5), (0, 5), (1, 5), (2, 10), (3, 20), (11, 3600)]
)
def test_backoff_doubles_up_to_its_cap(failures, seconds):
    assert Backoff(jitter=0).delay(failures, 0.5) == timedelta(seconds=seconds)


durations = st.timedeltas(timedelta(0), timedelta(days=365))


@examples
@given(
    durations, durations, st.floats(0, 1), st.integers(-5, 2**31), st.floats(0, 1, exclude_max=True)
)
def test_jitter_only_shortens_and_the_cap_holds(one, two, jitter, failures, draw):
    base, cap = sorted((one, two))
    backoff = Backoff(base, cap, jitter)

    delay, full = backoff.delay(failures, draw), Backoff(base, cap, 0).delay(failures, draw)

    assert timedelta(0) <= delay <= full <= cap
    assert full * (1 - jitter) - delay <= timedelta(microseconds=2)


@examples
@given(durations, durations, st.floats(0, 1))
def test_backoff_survives_its_row(one, two, jitter):
    base, cap = sorted((one, two))
    backoff = Backoff(base, cap, jitter)

    assert Backoff.from_json(backoff.to_json()) == backoff


@examples
@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["base", "cap", "jitter"]) | st.text(), inner),
))  # fmt: skip
def test_damaged_backoff_gets_the_default_and_never_an_error(damage):
    assert isinstance(Backoff.from_json(damage).delay(3, 0.5), timedelta)


@pytest.mark.parametrize("value", [
    {"base": timedelta(seconds=-1)}, {"base": timedelta(hours=2)}, {"cap": timedelta(days=366)},
    {"jitter": -0.1}, {"jitter": 1.1}, {"jitter": float("nan")},
], ids=str)  # fmt: skip
def test_backoff_refuses_bounds_it_cannot_keep(value):
    with pytest.raises(ValueError, match="Backoff needs"):
        Backoff(**value)


outcomes = st.sampled_from([
    Succeeded(1), Failed(Failure("x")), Failed(Failure("x"), terminal=True),
    Failed(Failure("x"), delay=timedelta(1)), Snoozed(timedelta(1)), Continued(1), Continued(None),
    Released(),
])  # fmt: skip
counts = st.integers(0, 40)


@examples
@given(outcomes, counts, st.integers(1, 40), counts, st.floats(0, 1, exclude_max=True))
def test_no_outcome_leaves_a_budget_negative(outcome, attempts, bound, crashes, draw):
    before = row(attempts=attempts, max_attempts=bound, crashes=crashes)

    move = after(outcome, before, draw)

    assert min(move.attempts, move.crashes, move.interruptions) >= 0
    assert move.attempts <= attempts
    assert move.delay >= timedelta(0)
    assert move.outcome == outcome.outcome


@examples
@given(
    counts, st.integers(1, 40), counts, st.integers(1, 40), counts, st.sampled_from(policy.ON_CRASH)
)
def test_crash_is_bounded(attempts, max_attempts, crashes, max_crashes, interruptions, on_crash):
    before = row(
        attempts=attempts, max_attempts=max_attempts, crashes=crashes, max_crashes=max_crashes,
        interruptions=interruptions, on_crash=on_crash,
    )  # fmt: skip

    crash = after_crash(before, "crashed", random.random())
    interrupt = after_interrupt(before, 20, random.random())

    assert crash.crashes == crashes + 1
    assert crash.outcome == AttemptOutcome.LOST
    assert interrupt.interruptions == interruptions + 1
    assert interrupt.outcome == AttemptOutcome.INTERRUPTED
    is_spent = crashes + 1 >= max_crashes or attempts >= max_attempts
    if on_crash == "park":
        assert crash.state == interrupt.state == State.PARKED
    else:
        assert (crash.state == State.FAILED) == is_spent
        assert (interrupt.state == State.FAILED) == (is_spent and interruptions >= 20)


def break_row(job: Job) -> None:
    """Let the end of this run be unrecordable: its attempt is there already."""
    Attempt.objects.create(
        job=job, epoch=job.epoch, number=1, worker="x", ended_at=timezone.now(), outcome="lost"
    )


def rearm_between(monkeypatch, lease) -> None:
    """Let the holder's fenced() run between recovery's selection and its lock."""
    recover = recovery._recover

    def rearm_then_recover(*args):
        with acting(lambda: rearm(lease)) as holder:
            holder.result()
        return recover(*args)

    monkeypatch.setattr(recovery, "_recover", rearm_then_recover)


def rearm(lease) -> None:
    with fenced(lease):
        pass
