"""Supervisors and whole hosts that die; workers that come and go beside others."""

import time
from types import SimpleNamespace

import pytest
from django.db import connection

from leasejobs.models import Attempt, Job
from leasejobs.states import State
from leasejobs.worker.options import Options
from leasejobs.worker.supervisor import Supervisor
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import (
    database_now,
    is_alive,
    notes,
    outcomes,
    state_of,
    until,
    until_noted,
    until_state,
)


@pytest.mark.crash
def test_children_of_a_killed_supervisor_finish_and_exit(fleet, tmp_path):
    worker = fleet.start("--lease=60", "--threads=1")
    running = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    waiting = plain.noop.enqueue().job_id
    until_noted(tmp_path, "begin", running)
    child = worker.child()

    worker.kill()
    until_noted(tmp_path, "told", running)
    (tmp_path / "finish").touch()
    until(lambda: not is_alive(child))

    assert outcomes(running) == ["succeeded"]
    assert state_of(waiting) is State.PENDING
    fleet.start()
    job = until_state(waiting, State.SUCCEEDED)
    assert job.attempts == 1
    assert Job.objects.get(pk=running).epoch == 1


@pytest.mark.crash
def test_rows_of_a_dead_host_are_recovered_when_their_leases_expire(fleet, tmp_path):
    worker = fleet.start("--lease=2", "--processes=2", "--threads=1")
    jobs = [
        tasks.wait_for_file.enqueue(str(tmp_path), f"finish-{number}").job_id for number in range(2)
    ]
    for job_id in jobs:
        until_noted(tmp_path, "begin", job_id)

    worker.kill_host()
    expiries = dict(Job.objects.values_list("pk", "lease_expires_at"))
    (tmp_path / "finish-0").touch()
    (tmp_path / "finish-1").touch()
    fleet.start()
    for job_id in jobs:
        job = until_state(job_id, State.SUCCEEDED)
        assert (job.attempts, job.crashes, job.epoch) == (2, 1, 2)
        assert outcomes(job_id) == ["lost", "succeeded"]
        lost = Attempt.objects.get(job_id=job_id, epoch=1)
        assert lost.failure_code == "lease_expired"
        assert lost.ended_at >= expiries[job_id]


@pytest.mark.crash
@pytest.mark.field_case("B088")
def test_worker_restarted_under_the_same_holder_prefix_does_not_revive_its_leases(fleet, tmp_path):
    worker = fleet.start("--lease=2", "--holder=pod-1")
    job_id = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", job_id, 1)
    assert Job.objects.get(pk=job_id).leased_by.startswith("pod-1@")

    worker.kill_host()
    (tmp_path / "finish").touch()
    fleet.start("--lease=2", "--holder=pod-1")
    until_state(job_id, State.SUCCEEDED)

    assert outcomes(job_id) == ["lost", "succeeded"]
    holders = Attempt.objects.filter(job_id=job_id).values_list("worker", flat=True)
    assert len(set(holders)) == 2
    assert all(holder.startswith("pod-1@") for holder in holders)


@pytest.mark.field_case("B123")
def test_workers_that_come_and_go_leave_the_jobs_of_another_alone(fleet, tmp_path):
    fleet.start("--holder=first")
    job_id = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", job_id)
    before = database_now()

    # Under the same prefix, one after another, each long enough to look for what is lost.
    for number in range(5):
        other = fleet.start("--drain", "--holder=first", "--queues=default")
        assert other.wait() == 0, number
    (tmp_path / "finish").touch()
    job = until_state(job_id, State.SUCCEEDED)

    assert job.claimed_at < before
    assert (job.epoch, job.attempts) == (1, 1)
    assert [line[0] for line in notes(tmp_path)] == ["begin", "end"]


def test_rows_deleted_while_they_run_hurt_nobody(fleet, tmp_path):
    worker = fleet.start("--lease=1.5")
    gone = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", gone)
    child = worker.child()

    Job.objects.filter(pk=gone).delete()
    until_noted(tmp_path, "told", gone)
    (tmp_path / "finish").touch()
    until_noted(tmp_path, "end", gone)
    after = plain.noop.enqueue().job_id
    until_state(after, State.SUCCEEDED)

    assert worker.child().pid == child.pid
    assert not Job.objects.filter(pk=gone).exists()


@pytest.mark.crash
def test_child_whose_main_thread_dies_goes_with_it(fleet):
    """One that renewed its leases and claimed nothing would look alive."""
    worker = fleet.start("--lease=60", points="claimed=raise")

    job_id = plain.noop.enqueue().job_id
    died = worker.point_process("claimed")
    job = until_state(job_id, State.SUCCEEDED)

    assert outcomes(job_id) == ["released", "succeeded"]
    assert (job.attempts, job.crashes) == (1, 0)
    assert worker.child().pid != died
    assert "a test raises here" in worker.output()


@pytest.mark.crash
def test_supervisor_outlives_a_table_that_is_missing_when_a_child_dies(fleet, tmp_path):
    worker = fleet.start("--lease=60")
    job_id = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", job_id)
    child = worker.child()

    try:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE leasejobs_attempt RENAME TO leasejobs_attempt_away")
        child.kill()
        until(lambda: not is_alive(child))
        until(lambda: worker.children() and worker.child().pid != child.pid)
        assert state_of(job_id) is State.RUNNING
    finally:
        with connection.cursor() as cursor:
            cursor.execute(
                "ALTER TABLE IF EXISTS leasejobs_attempt_away RENAME TO leasejobs_attempt"
            )
    (tmp_path / "finish").touch()

    until_state(job_id, State.SUCCEEDED)
    assert outcomes(job_id) == ["lost", "succeeded"]
    assert worker.process.poll() is None


@pytest.mark.crash
@pytest.mark.parametrize("status", [0, 2, 3, 64, 65])
def test_status_a_task_exits_with_says_nothing_about_its_child(fleet, status):
    """Draining and recycling are told in the slots: a task may exit with any number."""
    worker = fleet.start("--threads=1")

    job_id = tasks.exit_once.enqueue(status).job_id
    job = until_state(job_id, State.SUCCEEDED)

    assert outcomes(job_id) == ["lost", "succeeded"]
    assert (job.attempts, job.crashes) == (2, 1)
    assert worker.process.poll() is None


@pytest.mark.parametrize(("has_worked", "is_long"), [(True, False), (False, True)])
def test_only_children_that_cannot_start_are_rested_for_long(has_worked, is_long):
    options = Options(
        queues=(), processes=1, threads=1, lease=30, poll=1, shutdown=1, drain=False, holder=""
    )
    supervisor = Supervisor(options, [])
    child = SimpleNamespace(number=0, started_at=time.monotonic())

    for _ in range(12):
        supervisor._schedule_restart(child, has_worked)

    rest = supervisor._start_at[0] - time.monotonic()
    assert (rest > 20) is is_long
    assert is_long or rest <= 1
    supervisor._turn.close()
    supervisor._selector.close()
