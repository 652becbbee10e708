"""`lock_key`: at most one running job of a tenant and key, and nobody else waits for it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import limited_tasks as tasks
from tests.worker.fleet import notes, outcomes, until, until_all, until_noted, until_state
from tests.worker.tasks import wait_for_file


def locked(prepared, key: str, tenant: str = ""):
    return replace(prepared, lock_key=key, tenant=tenant)


@pytest.mark.crash
def test_at_most_one_job_of_a_key_runs_under_three_workers(fleet, tmp_path):
    directories = {(key, tenant): tmp_path / f"{key}-{tenant}" for key in "ab" for tenant in "xy"}
    for directory in directories.values():
        directory.mkdir()
    for _ in range(3):
        fleet.start_ready("--threads=4", "--poll=0.2")

    enqueue_many(
        locked(tasks.exclude.prepare(str(directory), 0.01), key, tenant)
        for _ in range(15)
        for (key, tenant), directory in directories.items()
    )
    until_all(State.SUCCEEDED)

    # A task that met another would have failed at its first attempt.
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"succeeded"}
    holders = set()
    for directory in directories.values():
        lines = notes(directory)
        assert [line[0] for line in lines] == ["begin", "end"] * 15
        for begin, end in zip(lines[::2], lines[1::2], strict=True):
            assert begin[1] == end[1]
        holders |= {line[3] for line in lines}
    assert len(holders) > 1


def test_held_key_holds_up_neither_other_keys_nor_plain_jobs(fleet, tmp_path):
    fleet.start("--threads=3")
    [holding] = enqueue_many([locked(wait_for_file.prepare(str(tmp_path), "finish"), "a")])
    until_noted(tmp_path, "begin", holding.job_id)

    blocked = enqueue_many([locked(plain.noop.prepare(), "a") for _ in range(20)])
    others = enqueue_many(
        [
            locked(plain.noop.prepare(), "b"),
            locked(plain.noop.prepare(), "a", tenant="other"),
            plain.noop.prepare(),
        ]
    )
    until_all(State.SUCCEEDED, [item.job_id for item in others])

    waiting = Job.objects.filter(pk__in=[item.job_id for item in blocked])
    assert set(waiting.values_list("state", "epoch")) == {(State.PENDING, 0)}
    (tmp_path / "finish").touch()
    until_all(State.SUCCEEDED)
    order = Attempt.objects.filter(job__in=waiting).order_by("claimed_at")
    assert list(order.values_list("job_id", flat=True)) == [item.job_id for item in blocked]


def test_released_key_is_taken_at_once_and_not_at_the_next_poll(fleet, tmp_path):
    fleet.start_ready("--poll=30", "--threads=2")
    found = enqueue_many(
        [
            locked(wait_for_file.prepare(str(tmp_path), "finish"), "a"),
            locked(plain.noop.prepare(), "a"),
        ]
    )
    until_noted(tmp_path, "begin", found[0].job_id)

    (tmp_path / "finish").touch()
    job = until_state(found[1].job_id, State.SUCCEEDED)

    ended = Attempt.objects.get(job_id=found[0].job_id).ended_at
    assert timedelta(0) <= job.claimed_at - ended < timedelta(seconds=5)


@pytest.mark.crash
def test_killed_holder_of_a_key_frees_it(fleet, tmp_path):
    worker = fleet.start("--lease=60", "--threads=2")
    found = enqueue_many(
        [
            locked(wait_for_file.prepare(str(tmp_path), "finish"), "a"),
            locked(plain.noop.prepare(), "a"),
        ]
    )
    until_noted(tmp_path, "begin", found[0].job_id, 1)
    (tmp_path / "finish").touch()

    worker.child().kill()
    until_all(State.SUCCEEDED)

    assert outcomes(found[0].job_id)[-1] == "succeeded"
    assert outcomes(found[1].job_id) == ["succeeded"]
    attempts = Attempt.objects.exclude(outcome="lost").order_by("claimed_at")
    first, second = attempts.values_list("claimed_at", "ended_at")
    assert second[0] >= first[1]


@pytest.mark.field_case("B114")
def test_job_that_waits_does_not_reserve_its_key(fleet):
    later, retried, *now = enqueue_many(
        [
            replace(locked(plain.noop.prepare(), "a"), delay=timedelta(hours=1)),
            locked(plain.noop.prepare(), "a"),
            *(locked(plain.noop.prepare(), "a") for _ in range(5)),
        ]
    )
    Job.objects.filter(pk=retried.job_id).update(
        state=State.RETRYABLE, due_at=Job.objects.get(pk=later.job_id).due_at
    )

    fleet.drain()

    assert Job.objects.get(pk=later.job_id).state == State.SCHEDULED
    assert Job.objects.get(pk=retried.job_id).state == State.RETRYABLE
    order = Attempt.objects.order_by("claimed_at").values_list("job_id", flat=True)
    assert list(order) == [item.job_id for item in now]


@pytest.mark.crash
@pytest.mark.field_case("B105")
def test_key_that_is_enqueued_while_its_job_runs_makes_one_follow_up_that_runs_after_it(
    fleet, tmp_path
):
    for _ in range(2):
        fleet.start("--threads=2")
    directory = Path(tmp_path) / "inside"
    directory.mkdir()
    once = locked(tasks.exclude.using(key="k", key_scope="queued").prepare(str(directory), 1), "k")
    [running] = enqueue_many([once])
    until_noted(directory, "begin", running.job_id)
    before = Job.objects.filter(pk=running.job_id).values().get()

    answers = [enqueue_many([once])[0] for _ in range(50)]
    during = Job.objects.filter(pk=running.job_id).values().get()

    follow_ups = {item.job_id for item in answers} - {running.job_id}
    until(lambda: not Job.objects.exclude(state=State.SUCCEEDED).exists())
    assert len(follow_ups) == 1
    assert sum(item.created for item in answers) == 1
    changing = {"lease_expires_at"}  # by its heartbeat
    assert {k: v for k, v in before.items() if k not in changing} == {
        k: v for k, v in during.items() if k not in changing
    }
    assert [line[:3] for line in notes(directory)] == [
        [word, str(job_id), "1"]
        for job_id in (running.job_id, *follow_ups)
        for word in ("begin", "end")
    ]
