"""What a claim takes and what it leaves: streams, locks, pauses, deadlines, unknown tasks."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leasejobs import claiming, recovery
from leasejobs.claiming import Stream, claim_jobs
from leasejobs.models import Job, Queue
from leasejobs.states import State
from tests.factories import HOLDER, LEASE, JobFactory, attempts_of, whole
from tests.two_connections import Actor, second_session, together, wait_until_blocked

MINUTE = timedelta(minutes=1)


def claim(limit: int = 10, **options: Any) -> list[Job]:
    claimed = claim_jobs("default", holder=HOLDER, duration=LEASE, limit=limit, **options)
    return [job for job, _ in claimed]


def claim_locked() -> list[Job]:
    return claim(stream=Stream.LOCKED)


@pytest.mark.django_db
def test_each_stream_has_its_own_rows():
    plain, locked = JobFactory(), JobFactory(lock_key="door")
    suspect, locked_suspect = JobFactory(crashes=1), JobFactory(crashes=1, lock_key="gate")

    assert claim() == [plain]
    assert claim_locked() == [locked]
    assert claim(stream=Stream.SUSPECT) == [suspect]
    assert claim(stream=Stream.SUSPECT) == [locked_suspect]


@pytest.mark.django_db
def test_nothing_of_a_paused_queue_is_claimed():
    job = JobFactory()
    queue = Queue.objects.create(name="default", paused_at=timezone.now())
    before = whole(job)

    assert claim() == claim_locked() == []
    assert whole(job) == before

    Queue.objects.filter(pk=queue.pk).update(paused_at=None)
    assert claim() == [job]


@pytest.mark.django_db
def test_pause_of_another_queue_does_not_matter():
    job = JobFactory()
    Queue.objects.create(name="mail", paused_at=timezone.now())

    assert claim() == [job]


@pytest.mark.django_db
def test_job_past_its_deadline_is_not_started():
    late = JobFactory(deadline_at=timezone.now() - MINUTE)
    early = JobFactory(deadline_at=timezone.now() + MINUTE)

    assert claim() == [early]
    assert whole(late)["attempts"] == 0


@pytest.mark.django_db
def test_expired_job_is_cancelled_with_its_reason_and_without_an_attempt():
    late = JobFactory(deadline_at=timezone.now() - MINUTE)
    early = JobFactory(deadline_at=timezone.now() + MINUTE)

    assert recovery.expire() == 1

    row = whole(late)
    assert (row["state"], row["failure_code"]) == (State.CANCELLED, "expired")
    assert row["finished_at"] is not None
    assert attempts_of(late) == []
    assert whole(early)["state"] == State.PENDING


@pytest.mark.django_db
def test_locked_jobs_are_claimed_one_at_a_time_and_the_most_urgent_first():
    later, first = JobFactory(lock_key="a"), JobFactory(lock_key="b", priority=-5)

    assert claim_locked() == [first]
    assert claim_locked() == [later]


@pytest.mark.django_db
def test_second_job_of_a_held_lock_waits_and_holds_up_nobody():
    held = JobFactory(running=True, lock_key="door")
    waiting, other = JobFactory(lock_key="door", priority=-9), JobFactory(lock_key="gate")

    assert claim_locked() == [other]
    assert claim_locked() == []

    Job.objects.filter(pk=held.pk).update(
        state=State.SUCCEEDED, lease_token=None, leased_by="", lease_expires_at=None
    )
    assert claim_locked() == [waiting]


@pytest.mark.django_db
def test_lock_is_one_of_its_tenant():
    JobFactory(running=True, lock_key="door", tenant="acme")
    other = JobFactory(lock_key="door", tenant="umbrella")

    assert claim_locked() == [other]


@pytest.mark.django_db
def test_row_that_is_not_due_reserves_no_lock():
    JobFactory(state=State.SCHEDULED, lock_key="door", due_at=timezone.now() + MINUTE)
    JobFactory(state=State.RETRYABLE, lock_key="door", due_at=timezone.now() + MINUTE)
    due = JobFactory(lock_key="door")

    assert claim_locked() == [due]


@pytest.mark.django_db(transaction=True)
def test_two_claimers_of_one_lock_get_one_job():
    JobFactory.create_batch(2, lock_key="door")

    claimed = together(claim_locked, claim_locked)

    assert sorted(map(len, claimed)) == [0, 1]
    assert Job.objects.running().count() == 1


@pytest.mark.django_db(transaction=True)
def test_claimer_that_chose_a_sibling_waits_for_the_winner_and_takes_nothing():
    """A claims the first, B skips it and chooses the second, A commits: B's claim is void."""
    first, second = JobFactory(lock_key="door", priority=-1), JobFactory(lock_key="door")

    with second_session() as winner:
        winner.execute(
            "UPDATE leasejobs_job SET state = 3, lease_token = %s, leased_by = 'winner',"
            " lease_expires_at = now() + interval '1 minute' WHERE id = %s",
            [uuid.uuid4(), first.pk],
        )
        loser = Actor(claim_locked)
        loser.start()
        loser.wait_until_connected()
        wait_until_blocked(loser.pid)
        winner.commit()

    assert loser.result() == []
    assert whole(second)["attempts"] == 0


@pytest.mark.django_db
def test_rows_of_unknown_tasks_are_not_claimed():
    unknown, known = JobFactory(task="other.version.task"), JobFactory()
    before = whole(unknown)

    assert claim(known=["tests.tasks.noop"]) == [known]
    assert whole(unknown) == before


@pytest.mark.django_db
def test_row_that_is_put_back_waits_uncharged_and_says_why():
    unknown, known = JobFactory(task="other.version.task"), JobFactory()
    before = whole(known)

    moved = claiming.put_back("default", Stream.PLAIN, 10, ["other.version.task"], MINUTE)

    row = whole(unknown)
    assert moved == 1
    assert (row["state"], row["failure_code"]) == (State.SCHEDULED, "unknown_task")
    assert (row["attempts"], row["epoch"], row["started_at"]) == (0, 0, None)
    assert row["due_at"] > timezone.now() + MINUTE / 2
    assert whole(known) == before


@pytest.mark.django_db
def test_claim_behind_a_job_takes_only_what_is_less_urgent():
    urgent, first, second = JobFactory(priority=-5), JobFactory(), JobFactory()

    assert claim(behind=first) == [second]
    assert claim() == [urgent, first]


@pytest.mark.django_db
def test_claimed_job_serves_as_the_place_to_go_on_from():
    JobFactory.create_batch(4)

    [_, second] = claim(limit=2)
    rest = claim(behind=second)

    assert [job.pk for job in rest] == sorted(job.pk for job in rest)
    assert len(rest) == 2


@pytest.mark.django_db
def test_rows_of_a_claim_whose_reply_was_lost_are_put_back_uncharged():
    forgotten, ours = JobFactory(), JobFactory()
    lost, token = uuid.uuid4(), uuid.uuid4()
    claim(limit=1, token=lost)
    claim(limit=1, token=token)

    assert recovery.release_forgotten(HOLDER, [lost]) == 1

    row = whole(forgotten)
    assert (row["state"], row["attempts"], row["crashes"]) == (State.PENDING, 0, 0)
    assert [attempt["outcome"] for attempt in attempts_of(forgotten)] == ["released"]
    assert whole(ours)["lease_token"] == token


@pytest.mark.django_db(transaction=True)
def test_claim_of_a_locked_job_is_one_statement_and_no_transaction():
    """A process frozen between an UPDATE and its COMMIT would hold the key up for everybody."""
    JobFactory(lock_key="door")

    with CaptureQueriesContext(connection) as captured:
        claim_locked()

    assert [query["sql"][:6] for query in captured] == ["UPDATE"]
