"""`WorkerProcess` is a real worker on the test database, and never outlives its test."""

import contextlib
import os
import signal

import psutil
import pytest
from django.db import connection
from django.test import TestCase, TransactionTestCase, override_settings

from leasejobs.models import Job
from leasejobs.states import State
from leasejobs.testing import WorkerProcess
from tests import tasks
from tests.factories import JobFactory
from tests.testing import tasks as odd
from tests.worker.fleet import until

pytestmark = pytest.mark.crash


def is_alive(process: psutil.Process, group: int) -> bool:
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_gone(group: int) -> bool:
    return not any(is_alive(process, group) for process in psutil.process_iter())


class InTransactionTestCase(TransactionTestCase):
    def test_worker_runs_jobs_until_the_block_ends(self):
        with WorkerProcess() as worker:
            result = tasks.echo.enqueue("hello")
            [job] = worker.wait_for(result.job_id)

        assert (job.state, job.result) == (State.SUCCEEDED, "hello")
        assert worker.process.returncode == 0
        assert is_gone(worker.pid)
        assert "Working on all queues" in worker.output()

    def test_draining_worker_has_done_everything_due(self):
        for number in range(20):
            tasks.echo.enqueue(number)
        tasks.echo.using(queue_name="mail").enqueue("left")

        worker = WorkerProcess(queues=["default"], processes=2, threads=1, drain=True)

        assert Job.objects.filter(state=State.SUCCEEDED).count() == 20
        assert Job.objects.get(queue="mail").state == State.PENDING
        assert is_gone(worker.pid)


class InTestCase(TestCase):
    def test_test_case_is_refused(self):
        with pytest.raises(RuntimeError, match="use TransactionTestCase"):
            WorkerProcess()


@pytest.mark.django_db(transaction=True)
def test_worker_has_the_settings_in_force(tmp_path):
    # With the suite's own, it would wait for the task for 25 seconds.
    with (
        override_settings(LEASEJOBS={"SHUTDOWN_SECONDS": 0}),
        WorkerProcess(lease=5, poll=0.1, timeout=15),
    ):
        tasks.run_and_note.enqueue(str(tmp_path), 60)
        until((tmp_path / "runs").exists)

    assert "end" not in (tmp_path / "runs").read_text()


@pytest.mark.django_db(transaction=True)
def test_options_that_the_command_refuses_are_told_with_its_words():
    with pytest.raises(AssertionError, match=r"exited with 2(?s:.*)must be a whole number"):
        WorkerProcess(processes=1000)


@pytest.mark.django_db(transaction=True)
def test_worker_that_does_not_drain_in_time_is_killed_and_told(tmp_path):
    tasks.run_and_note.enqueue(str(tmp_path), 60)

    with pytest.raises(AssertionError, match=r"does not drain within 10 s") as caught:
        WorkerProcess(drain=True, timeout=10)

    pid = int(str(caught.value).split()[1])
    until(lambda: is_gone(pid))


@pytest.mark.django_db(transaction=True)
def test_job_that_does_not_finish_and_one_that_is_not_there_are_told(tmp_path):
    job = JobFactory(queue="other")
    with WorkerProcess(queues=["default"]) as worker:
        with pytest.raises(AssertionError, match=f"does not finish job {job.pk} within"):
            worker.wait_for(job.pk, timeout=0.2)
        with pytest.raises(AssertionError, match="no job 0"):
            worker.wait_for(0)
        assert worker.wait_for() == []


@pytest.mark.django_db(transaction=True)
def test_worker_that_was_killed_is_told_while_waiting_and_at_the_end():
    job = JobFactory(queue="other")
    worker = WorkerProcess(queues=["default"])
    worker.process.kill()

    with pytest.raises(AssertionError, match="exited with -9"):
        worker.wait_for(job.pk)
    with pytest.raises(AssertionError, match="exited with -9"):
        worker.stop()
    worker.stop()
    until(lambda: is_gone(worker.pid))


@pytest.mark.django_db(transaction=True)
def test_worker_that_hangs_is_killed_and_told():
    worker = WorkerProcess()
    worker.timeout = 1
    os.killpg(worker.pid, signal.SIGSTOP)

    with pytest.raises(AssertionError, match="does not stop at SIGTERM within 1 s"):
        worker.stop()

    until(lambda: is_gone(worker.pid))


@pytest.mark.django_db(transaction=True)
def test_process_that_a_task_leaves_is_killed_and_told():
    worker = WorkerProcess()
    worker.wait_for(odd.leave_a_process.enqueue().job_id)
    worker.process.send_signal(signal.SIGTERM)
    worker.process.wait(30)
    worker.timeout = 0.5

    with pytest.raises(AssertionError, match=r"leaves a process behind within 0\.5 s"):
        worker.stop()

    until(lambda: is_gone(worker.pid))


def test_worker_without_a_child_is_refused():
    with pytest.raises(ValueError, match="needs a child"):
        WorkerProcess(processes=0)


@pytest.mark.django_db(transaction=True)
def test_project_without_a_settings_module_is_told(monkeypatch):
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")

    with pytest.raises(RuntimeError, match="DJANGO_SETTINGS_MODULE"):
        WorkerProcess()


@pytest.mark.django_db(transaction=True)
def test_worker_is_on_the_test_database_even_where_the_environment_names_another(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://nobody@localhost:1/nothing")
    result = tasks.echo.enqueue(connection.settings_dict["NAME"])

    WorkerProcess(drain=True)

    assert Job.objects.get(pk=result.job_id).state == State.SUCCEEDED
