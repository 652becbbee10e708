"""`--drain`: exit 0 as soon as nothing is due, whatever happened on the way."""

from datetime import timedelta

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import outcomes, state_of


def test_drain_of_an_empty_table_ends(fleet):
    worker = fleet.drain("--processes=2", "--poll=30")

    assert "Traceback" not in worker.output()
    assert fleet.processes() == []


def test_drain_runs_everything_due_retries_and_slices_included(fleet):
    echoed = enqueue_many([plain.echo.prepare(number) for number in range(300)])
    failing = plain.explode.enqueue().job_id
    retried = plain.retry_once.enqueue().job_id
    snoozed = plain.snooze_until.enqueue(4).job_id
    sliced = plain.count_slices.enqueue(5).job_id
    discarded = plain.discard.enqueue("not_wanted").job_id
    overdue = plain.noop.using(run_after=timedelta(milliseconds=1)).enqueue().job_id

    fleet.drain("--processes=2", "--poll=30")

    assert not Job.objects.exclude(state__in=[State.SUCCEEDED, State.FAILED]).exists()
    for number, item in enumerate(echoed):
        job = Job.objects.get(pk=item.job_id)
        assert (job.state, job.result, job.attempts) == (State.SUCCEEDED, number, 1)
    assert outcomes(failing) == ["failed"] * 3
    assert Job.objects.get(pk=failing).failure_code == "task_raised"
    assert outcomes(retried) == ["failed", "succeeded"]
    assert outcomes(snoozed) == ["snoozed"] * 3 + ["succeeded"]
    assert Job.objects.get(pk=snoozed).attempts == 1
    assert outcomes(sliced) == ["continued"] * 4 + ["succeeded"]
    assert Job.objects.get(pk=discarded).failure_code == "not_wanted"
    assert state_of(overdue) is State.SUCCEEDED


def test_drain_leaves_the_future_alone(fleet):
    later = plain.noop.using(run_after=timedelta(hours=1)).enqueue().job_id

    fleet.drain("--poll=30")

    assert state_of(later) is State.SCHEDULED
    assert Job.objects.get(pk=later).epoch == 0


def test_drain_of_some_queues_leaves_the_others_alone(fleet):
    wanted = [plain.noop.using(queue_name=name).enqueue().job_id for name in ("a", "b")]
    unwanted = plain.noop.using(queue_name="c", priority=100).enqueue().job_id
    retried = plain.retry_once.using(queue_name="b").enqueue().job_id

    fleet.drain("--queues=a,b")

    assert [state_of(job_id) for job_id in [*wanted, retried]] == [State.SUCCEEDED] * 3
    assert state_of(unwanted) is State.PENDING


@pytest.mark.crash
def test_drain_with_a_child_killed_midway_does_everything_once(fleet, tmp_path):
    found = enqueue_many(
        [tasks.tell_fenced.prepare(str(tmp_path), f"effect {number}") for number in range(40)]
    )

    fleet.drain("--lease=60", "--processes=2", points="fenced_body=kill:5")

    assert [tasks.told(f"effect {number}") for number in range(40)] == [1] * 40
    ids = [item.job_id for item in found]
    assert not Job.objects.exclude(state=State.SUCCEEDED).exists()
    assert Attempt.objects.filter(job_id__in=ids, outcome="lost").count() > 0


@pytest.mark.crash
def test_drain_ends_although_a_job_kills_every_child(fleet, tmp_path):
    poison = tasks.die.enqueue(str(tmp_path)).job_id
    good = plain.noop.using(priority=-100).enqueue().job_id

    fleet.drain("--lease=60", "--threads=1")

    assert state_of(good) is State.SUCCEEDED
    job = Job.objects.get(pk=poison)
    assert (job.state, job.failure_code, job.crashes) == (State.FAILED, "crashed", 3)


@pytest.mark.parametrize("status", [0, 1])
def test_child_that_a_task_ends_has_not_drained(fleet, status):
    poison = plain.exit_process.using(max_crashes=1).enqueue(status).job_id
    others = [item.job_id for item in enqueue_many([plain.noop.prepare() for _ in range(200)])]

    fleet.drain("--threads=1")

    assert state_of(poison) is State.FAILED
    assert set(Job.objects.filter(pk__in=others).values_list("state")) == {(State.SUCCEEDED,)}


def test_second_session_left_dirty_hurts_no_neighbour(fleet):
    jobs = [plain.leave_a_second_session_dirty.enqueue().job_id]
    jobs += [plain.noop.enqueue().job_id for _ in range(5)]

    fleet.drain("--threads=1")

    found = Job.objects.filter(pk__in=jobs).values_list("state", "attempts", "crashes")
    assert set(found) == {(State.SUCCEEDED, 1, 0)}


def test_children_find_what_the_supervisor_was_given_a_path_to(fleet, tmp_path):
    (tmp_path / "found_by_path.py").write_text(
        "from leasejobs import task\n\n\n@task\ndef answer():\n    return 42\n"
    )
    job_id = plain.noop.enqueue().job_id
    Job.objects.filter(pk=job_id).update(task="found_by_path.answer")

    fleet.drain(f"--pythonpath={tmp_path}")

    assert Job.objects.get(pk=job_id).result == 42
