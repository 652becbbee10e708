"""Rows made by hand that no verb would make: a worker survives them, and their neighbours too."""

from collections.abc import Callable, Iterator

import pytest
from django.db import IntegrityError, connection, transaction

from leasejobs.models import Attempt, Job
from leasejobs.recovery import Cause, recover_expired, settle_dead
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests import tasks
from tests.factories import HOLDER, JobFactory, whole
from tests.worker.fleet import Fleet, until

DIGITS = "[1e5000]"  # a number jsonb holds and int() refuses
DEPTH = "[" * 1500 + "]" * 1500  # which Python refuses up to 3.11, and later ones read

UNREADABLE = [
    ("args", DIGITS),
    ("kwargs", '{"n": 1e5000}'),
    ("checkpoint", DIGITS),
]


def damage(job: Job, column: str, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE leasejobs_job SET {column} = %s::jsonb WHERE id = %s", [text, job.pk]
        )


def test_unreadable_rows_fail_and_their_neighbours_run(fleet: Fleet) -> None:
    neighbours = [tasks.echo.enqueue(number).job_id for number in range(5)]
    damaged = []
    for column, text in UNREADABLE:
        job = Job.objects.get(pk=tasks.noop.enqueue().job_id)
        damage(job, column, text)
        damaged.append(job.pk)
    deep = Job.objects.get(pk=tasks.noop.using(max_attempts=1).enqueue().job_id)
    damage(deep, "args", DEPTH)
    no_list = Job.objects.get(pk=tasks.noop.enqueue().job_id)
    damage(no_list, "args", '{"not": "a list"}')
    exploding = Job.objects.get(pk=tasks.discard.enqueue("for_good").job_id)
    damage(exploding, "backoff", DIGITS)

    fleet.drain()

    good = Job.objects.filter(pk__in=neighbours).values_list("state", "attempts", "crashes")
    assert set(good) == {(State.SUCCEEDED, 1, 0)}
    bad = Job.objects.filter(pk__in=damaged).values_list("state", "failure_code", "crashes")
    assert set(bad) == {(State.FAILED, "unreadable", 0)}
    assert whole(exploding)["failure_code"] == "for_good"
    code = Job.objects.values_list("failure_code", flat=True).get(pk=deep.pk)
    assert code in ("unreadable", "task_raised")
    assert not Attempt.objects.filter(outcome="lost").exists()


@pytest.mark.parametrize(
    ("column", "text"), [*UNREADABLE, ("args", DEPTH), ("backoff", DIGITS), ("result", DEPTH)]
)
@pytest.mark.django_db
def test_unreadable_row_of_a_dead_holder_is_taken_back(column: str, text: str) -> None:
    begun, expired = JobFactory(running=True), JobFactory(running=True)
    for job in (begun, expired):
        damage(job, column, text)

    left = settle_dead(HOLDER, dict.fromkeys({(begun.pk, begun.epoch)}, Cause.CRASHED))

    assert left == 0
    states = Job.objects.filter(pk__in=[begun.pk, expired.pk]).values_list("state", "crashes")
    assert sorted(states) == [(State.PENDING, 0), (State.PENDING, 1)]


@pytest.mark.django_db
def test_unreadable_row_is_recovered_when_its_lease_expires() -> None:
    job = JobFactory(running=True)
    damage(job, "args", DIGITS)
    expire_lease(job)

    assert recover_expired() == 1


@pytest.mark.parametrize(
    "assignment",
    [
        "attempts = 2147483647", "crashes = 2147483647", "interruptions = -1",
        "revision = 2147483647", "max_attempts = 0", "max_crashes = 0", "due_at = 'infinity'",
        "due_at = '-infinity'", "state = 9", "state = 3", "lease_token = gen_random_uuid()",
    ],
)  # fmt: skip
@pytest.mark.django_db
def test_table_refuses_what_would_stop_a_claim(assignment: str) -> None:
    job = JobFactory()

    with (
        pytest.raises(IntegrityError),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE leasejobs_job SET {assignment} WHERE id = %s", [job.pk])


@pytest.fixture
def refusal(transactional_db: None) -> Iterator[Callable[[int], None]]:
    """Let the server refuse, with an error that is nobody's content, that a job succeeds."""

    def refuse(pk: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'XX001'; END $$;
                CREATE TRIGGER refuse BEFORE UPDATE ON leasejobs_job FOR EACH ROW
                WHEN (NEW.id = {int(pk)} AND NEW.state = {State.SUCCEEDED:d})
                EXECUTE FUNCTION refuse()
                """
            )

    yield refuse
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION IF EXISTS refuse CASCADE")


@pytest.mark.crash
def test_outcome_that_is_always_refused_holds_up_nobody(
    fleet: Fleet, refusal: Callable[[int], None]
) -> None:
    hasty = tasks.noop.using(backoff=tasks.QUICK)
    first, *others = [hasty.enqueue().job_id for _ in range(10)]
    refusal(first)
    fleet.start("--lease=2")

    def is_over() -> bool:
        return not Job.objects.exclude(state__in=[State.SUCCEEDED, State.FAILED]).exists()

    until(is_over, 60)

    assert set(Job.objects.filter(pk__in=others).values_list("state", "attempts")) == {
        (State.SUCCEEDED, 1)
    }
    refused = Job.objects.get(pk=first)
    assert (refused.state, refused.failure_code) == (State.FAILED, "lease_expired")
    assert refused.crashes == refused.max_crashes
