"""Children that are replaced: after so many jobs, at so much memory, and when code changes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import limited_tasks as tasks
from tests.worker.fleet import is_alive, notes, outcomes, until, until_all, until_noted, until_state
from tests.worker.tasks import wait_for_file

RECYCLED = "child_recycled"


def assert_nothing_was_charged() -> None:
    assert set(Job.objects.values_list("state", "attempts", "crashes", "interruptions")) == {
        (State.SUCCEEDED, 1, 0, 0)
    }
    ended = Attempt.objects.exclude(outcome="released").values_list("outcome", flat=True)
    assert set(ended) == {"succeeded"}
    assert len(ended) == Job.objects.count()


def test_child_that_has_done_its_share_is_replaced_and_nothing_is_lost(fleet):
    worker = fleet.start("--max-jobs=40", "--threads=2", LOG_LEVEL="INFO")

    enqueue_many([plain.noop.prepare() for _ in range(300)])
    until_all(State.SUCCEEDED)

    assert_nothing_was_charged()
    succeeded = Attempt.objects.filter(outcome="succeeded")
    holders = list(succeeded.values_list("worker", flat=True))
    assert len(set(holders)) >= 300 // 40
    assert max(holders.count(holder) for holder in holders) <= 40
    assert worker.output().count(RECYCLED) >= 300 // 40
    assert "max_jobs" in worker.output()
    assert "child_died" not in worker.output()


def test_child_finishes_what_it_runs_before_it_is_replaced(fleet, tmp_path):
    worker = fleet.start("--max-jobs=1", "--threads=1", LOG_LEVEL="INFO")
    running = wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until_noted(tmp_path, "begin", running)
    child = worker.child()
    until(lambda: RECYCLED in worker.output())
    after = plain.noop.enqueue().job_id

    (tmp_path / "finish").touch()
    until_state(after, State.SUCCEEDED)

    # A recycling is no shutdown: the task was not told to stop.
    assert [line[0] for line in notes(tmp_path)] == ["begin", "end"]
    assert outcomes(running) == ["succeeded"]
    assert not is_alive(child)
    assert_nothing_was_charged()


def test_drain_goes_on_with_the_next_child(fleet):
    enqueue_many([plain.noop.prepare() for _ in range(25)])

    fleet.drain("--max-jobs=10")

    assert_nothing_was_charged()


def test_child_that_has_grown_too_big_is_replaced_and_nothing_is_lost(fleet):
    worker = fleet.start("--max-rss-mb=200", "--threads=1", LOG_LEVEL="INFO")

    pids = []
    for _ in range(2):
        job_id = tasks.hoard.enqueue(200).job_id
        pids.append(until_state(job_id, State.SUCCEEDED).result)
        neighbours = [item.job_id for item in enqueue_many([plain.noop.prepare()] * 10)]
        until_all(State.SUCCEEDED, neighbours)
        until(lambda: not _exists(pids[-1]))

    assert len(set(pids)) == 2
    assert_nothing_was_charged()
    assert worker.output().count("max_rss_mb") == 2
    assert "child_died" not in worker.output()


@pytest.mark.parametrize("heeds", [True, False], ids=["finishes", "is interrupted"])
def test_child_is_replaced_when_its_code_changes(fleet, tmp_path, heeds):
    module = tmp_path / "reloaded.py"
    module.write_text(MODULE.format(version=1))
    path = os.pathsep.join([str(tmp_path), fleet.environment["PYTHONPATH"]])
    worker = fleet.start(
        "--reload", "--threads=2", "--lease=60", shutdown=25 if heeds else 1,
        LOG_LEVEL="INFO", PYTHONPATH=path,
    )  # fmt: skip
    version = _job("reloaded.version")
    assert until_state(version, State.SUCCEEDED).result == 1
    running = _job("reloaded.run", f'["{tmp_path}", {str(heeds).lower()}]')
    until_noted(tmp_path, "begin", running)

    module.write_text(MODULE.format(version=2))
    until(lambda: _is_touched(module) and RECYCLED in worker.output())

    job = until_state(running, State.SUCCEEDED)
    assert job.crashes == 0
    assert outcomes(running) == (["succeeded"] if heeds else ["interrupted", "succeeded"])
    assert until_state(_job("reloaded.version"), State.SUCCEEDED).result == 2
    assert "child_died" not in worker.output()


def test_worker_survives_code_that_does_not_import_until_it_is_mended(fleet, tmp_path):
    module = tmp_path / "reloaded.py"
    module.write_text(MODULE.format(version=1))
    path = os.pathsep.join([str(tmp_path), fleet.environment["PYTHONPATH"]])
    fleet.start("--reload", PYTHONPATH=path)
    assert until_state(_job("reloaded.version"), State.SUCCEEDED).result == 1

    module.write_text("this is no Python")
    job_id = until(lambda: _is_touched(module) and _put_back())
    module.write_text(MODULE.format(version=3))
    Job.objects.filter(pk=job_id).update(state=State.PENDING)

    job = until_state(job_id, State.SUCCEEDED)
    assert (job.result, job.attempts, job.crashes) == (3, 1, 0)


MODULE = """
import os, time
from leasejobs import task
from tests.tasks import note

@task
def version():
    return {version}

@task(takes_context=True)
def run(context, directory, heeds):
    note(directory, f"begin {{context.job.pk}} {{context.epoch}} {{os.getpid()}}")
    while context.epoch == 1 and not (heeds and context.should_stop):
        time.sleep(0.01)
"""


def _job(name: str, args: str = "[]") -> int:
    [item] = enqueue_many([replace(plain.noop.prepare(), task=name, args=args)])
    return item.job_id


def _put_back() -> int | None:
    """Enqueue, and return the job if a worker found its task to be unknown."""
    job_id = _job("reloaded.version")
    until(lambda: Job.objects.filter(pk=job_id).exclude(state=State.PENDING).exists())
    job = until(lambda: Job.objects.filter(pk=job_id).exclude(state=State.RUNNING).first())
    return job_id if job.state == State.SCHEDULED else None


def _is_touched(module: Path) -> bool:
    """Change the file's time once more: the child may not have looked at it before the first."""
    changed_at = module.stat().st_mtime + 1
    os.utime(module, (changed_at, changed_at))
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
