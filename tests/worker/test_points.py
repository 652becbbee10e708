"""A child that is killed at any point: the work is done, and done once."""

from datetime import timedelta

import pytest

from leasejobs import enqueue_many, points
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import backends, notes, outcomes, until, until_all, until_noted, until_state

pytestmark = pytest.mark.crash

# So long that only the supervisor can have taken a row back in time.
LEASE = "--lease=60"
SOON = timedelta(seconds=30)

NOT_BEGUN = {"claimed", "slotted"}
ENDED = {"fenced_committed", "returned", "settling", "settled"}


def assert_taken_back_soon(job: Job) -> None:
    first = Attempt.objects.get(job=job, epoch=1)
    assert first.claimed_at is not None
    assert first.ended_at - first.claimed_at < SOON


@pytest.mark.parametrize("point", points.NAMES)
def test_fenced_effect_of_a_child_killed_at_a_point_happens_once(fleet, tmp_path, point):
    worker = fleet.start(LEASE, points=f"{point}=kill")

    job_id = tasks.tell_fenced.enqueue(str(tmp_path), "effect").job_id
    killed = worker.point_process(point)
    job = until_state(job_id, State.SUCCEEDED)

    assert tasks.told("effect") == 1
    assert job.result == "told"
    if point in ENDED:
        assert outcomes(job_id) == ["succeeded"]
        assert (job.attempts, job.crashes) == (1, 0)
    elif point in NOT_BEGUN:
        assert outcomes(job_id) == ["released", "succeeded"]
        assert (job.attempts, job.crashes) == (1, 0)
    else:
        assert outcomes(job_id) == ["lost", "succeeded"]
        assert (job.attempts, job.crashes) == (2, 1)
    assert_taken_back_soon(job)
    assert worker.child().pid != killed


@pytest.mark.parametrize("point", ["begun", "returned", "settling", "settled"])
def test_outcome_of_a_child_killed_at_a_point_is_written_once(fleet, tmp_path, point):
    worker = fleet.start(LEASE, points=f"{point}=kill")

    job_id = plain.run_and_note.using(backoff=plain.QUICK).enqueue(str(tmp_path)).job_id
    worker.point_process(point)
    job = until_state(job_id, State.SUCCEEDED)

    runs = [line for line in notes(tmp_path) if line[0] == "end"]
    if point == "settled":
        assert outcomes(job_id) == ["succeeded"]
        assert job.result == 1
        assert len(runs) == 1
    else:
        assert outcomes(job_id) == ["lost", "succeeded"]
        assert job.result == 2
        assert len(runs) == (1 if point == "begun" else 2)
    assert_taken_back_soon(job)


def test_child_that_exits_by_itself_is_settled_as_one_that_was_killed(fleet, tmp_path):
    worker = fleet.start(LEASE, points="fenced_body=exit")

    job_id = tasks.tell_fenced.enqueue(str(tmp_path), "effect").job_id
    worker.point_process("fenced_body")
    job = until_state(job_id, State.SUCCEEDED)

    assert tasks.told("effect") == 1
    assert outcomes(job_id) == ["lost", "succeeded"]
    assert job.crashes == 1


def test_child_killed_inside_a_running_statement_frees_its_row(fleet, tmp_path):
    worker = fleet.start(LEASE)

    job_id = tasks.tell_in_statement.enqueue(str(tmp_path), "effect", 50).job_id
    until_noted(tmp_path, "begin", job_id, 1)
    until(lambda: backends("state = 'active' AND query LIKE '%%pg_sleep%%'"))
    worker.child().kill()
    job = until_state(job_id, State.SUCCEEDED)

    assert tasks.told("effect") == 1
    assert outcomes(job_id) == ["lost", "succeeded"]
    assert_taken_back_soon(job)


def test_killed_child_is_charged_for_what_it_began_and_not_for_what_it_prefetched(fleet):
    fleet.start(LEASE, "--threads=1")
    # Until it knows that jobs are short, a worker does not prefetch.
    enqueue_many([plain.noop.prepare() for _ in range(400)])
    until_all(State.SUCCEEDED)

    deadly = tasks.die_once.using(priority=100)
    first, *neighbours = enqueue_many(
        [deadly.prepare(), *(plain.noop.prepare() for _ in range(50))]
    )
    until_all(State.SUCCEEDED)

    killer = Job.objects.get(pk=first.job_id)
    assert outcomes(killer.pk) == ["lost", "succeeded"]
    assert (killer.attempts, killer.crashes) == (2, 1)
    beside = Job.objects.filter(pk__in=[item.job_id for item in neighbours])
    assert set(beside.values_list("attempts", "crashes")) == {(1, 0)}
    ended = Attempt.objects.filter(job__in=beside)
    assert ended.filter(outcome="released").count() > 0
    assert ended.filter(outcome="succeeded").count() == len(neighbours)
    assert ended.exclude(outcome__in=["released", "succeeded"]).count() == 0


def test_nothing_is_lost_or_doubled_while_children_are_killed(fleet, tmp_path):
    fleet.start(
        LEASE, "--processes=2",
        points="claimed=kill:3 slotted=kill:4 begun=kill:20 fenced_body=kill:30 settling=kill:12",
    )  # fmt: skip

    found = enqueue_many(
        [tasks.tell_fenced.prepare(str(tmp_path), f"effect {number}") for number in range(200)]
    )
    until_all(State.SUCCEEDED)

    counts = [tasks.told(f"effect {number}") for number in range(200)]
    assert counts == [1] * 200
    ids = [item.job_id for item in found]
    succeeded = Attempt.objects.filter(job_id__in=ids, outcome="succeeded")
    assert succeeded.count() == 200
