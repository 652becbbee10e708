"""`--processes 0`: one loop in the process itself, without a supervisor."""

import signal

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker.fleet import outcomes, until, until_all, until_noted, until_state
from tests.worker.tasks import wait_for_file

ALONE = "--processes=0"


def test_worker_without_children_runs_jobs_and_stops_when_told(fleet, tmp_path):
    worker = fleet.start(ALONE)
    enqueue_many([plain.noop.prepare() for _ in range(50)])
    until_all(State.SUCCEEDED)
    running = plain.wait_for_stop.enqueue(str(tmp_path)).job_id
    until_noted(tmp_path, "begin", running)
    assert worker.children() == []

    worker.signal(signal.SIGTERM)

    assert worker.wait(12) == 0
    assert Job.objects.get(pk=running).result == "stopped"
    assert fleet.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_a_worker_without_children_at_once(fleet, tmp_path, number):
    worker = fleet.start(ALONE, "--lease=3")
    running = wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", running)

    worker.signal(number)
    until_noted(tmp_path, "told", running)
    assert worker.process.poll() is None
    worker.signal(number)

    assert worker.wait(8) == 0
    # Nobody is left who would know that the body had stopped: its lease runs out.
    assert Job.objects.get(pk=running).state == State.RUNNING
    (tmp_path / "finish").touch()
    fleet.start()
    until_state(running, State.SUCCEEDED)
    assert outcomes(running) == ["lost", "succeeded"]


def test_drain_of_a_worker_without_children_exits_0(fleet):
    enqueue_many([plain.noop.prepare() for _ in range(20)])

    fleet.drain(ALONE)

    until_all(State.SUCCEEDED)


def test_worker_without_children_that_has_done_its_share_exits_0(fleet):
    enqueue_many([plain.noop.prepare() for _ in range(20)])

    worker = fleet.start(ALONE, "--max-jobs=10")

    assert worker.wait() == 0, worker.output()
    assert Job.objects.filter(state=State.SUCCEEDED).count() == 10
    assert not Job.objects.filter(state=State.RUNNING).exists()


def test_database_that_is_away_does_not_end_a_worker_without_children(fleet):
    nowhere = "postgres://nobody@127.0.0.1:1/nothing"
    worker = fleet.start(ALONE, DATABASE_URL=nowhere)
    until(lambda: "database_unavailable" in worker.output())

    assert worker.stop() == 0
