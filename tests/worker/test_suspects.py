"""Jobs that kill their worker: they run alone, are bounded, and hurt nobody for long."""

from pathlib import Path

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import notes, outcomes, until, until_state

pytestmark = pytest.mark.crash


def runs_beside(directory: Path, job_id: int, epoch: int) -> list[list[str]]:
    """Return what other jobs noted in the same child while one run of a job was on.

    The runs of a job that died end with their process, and so does the process's part of the log.
    """
    lines = notes(directory)
    (start,) = [
        index for index, line in enumerate(lines) if line[:3] == ["begin", str(job_id), str(epoch)]
    ]
    pid = lines[start][3]
    before = [line for line in lines[:start] if line[3] == pid]
    ended = {line[1] for line in before if line[0] == "end"}
    beside = [line for line in before if line[0] == "begin" and line[1] not in ended]
    for line in lines[start + 1 :]:
        if line[3] != pid:
            continue
        if line[:3] == ["end", str(job_id), str(epoch)]:
            break
        beside.append(line)
    return beside


@pytest.mark.field_case("B083")
def test_two_poison_jobs_among_fifty_good_ones(fleet, tmp_path):
    worker = fleet.start("--lease=60", "--processes=2", "--threads=4")

    found = enqueue_many(
        (tasks.die if number in (10, 30) else plain.run_and_note).prepare(str(tmp_path))
        for number in range(52)
    )
    ids = [item.job_id for item in found]
    poison = [ids[10], ids[30]]
    for job_id in poison:
        job = until_state(job_id, State.FAILED)
        assert (job.failure_code, job.crashes, job.attempts) == ("crashed", 3, 3)
        assert outcomes(job_id) == ["lost"] * 3
    good = Job.objects.filter(pk__in=ids).exclude(pk__in=poison)
    until(lambda: not good.exclude(state=State.SUCCEEDED).exists())

    # A good one may have been running beside a poison one at its first run, and never again.
    for job in good:
        assert job.crashes <= 1
        assert job.attempts == job.crashes + 1
    assert Attempt.objects.filter(job__in=good, outcome="succeeded").count() == 50
    # A dying run is known by its attempt; what ran alone is every run after a crash.
    for job in Job.objects.filter(pk__in=ids, crashes__gt=0):
        lost = set(Attempt.objects.filter(job=job, outcome="lost").values_list("epoch", flat=True))
        epochs = Attempt.objects.filter(job=job, epoch__gt=min(lost)).exclude(outcome="released")
        for epoch in epochs.values_list("epoch", flat=True):
            assert runs_beside(tmp_path, job.pk, epoch) == []
    assert len(until(worker.children)) > 0
    until(lambda: len(worker.children()) == 2)


@pytest.mark.parametrize("processes", [1, 2])
def test_suspect_does_not_starve_under_a_steady_load(fleet, tmp_path, processes):
    fleet.start("--lease=2", f"--processes={processes}", "--threads=2")

    enqueue_many([plain.run_and_note.prepare(str(tmp_path), 0.02) for _ in range(100)])
    suspect = tasks.die_once.using(priority=100).enqueue().job_id

    def is_done() -> bool:
        # More and more urgent work, so the suspect is never the only one.
        urgent = plain.run_and_note.using(priority=50)
        if Job.objects.due().count() < 100:
            enqueue_many([urgent.prepare(str(tmp_path), 0.02) for _ in range(100)])
        return Job.objects.get(pk=suspect).state == State.SUCCEEDED

    until(is_done)

    assert Job.objects.due().count() > 0
    assert outcomes(suspect) == ["lost", "succeeded"]


def test_suspect_waits_for_long_work_no_longer_than_a_lease_costs_the_others(fleet, tmp_path):
    """A child that holds long work hands the turn on, and plain work goes on beside it."""
    fleet.start("--lease=1.5", "--threads=2")
    long = tasks.wait_for_file.enqueue(str(tmp_path), "finish").job_id
    until(lambda: notes(tmp_path))
    Job.objects.create(
        task=plain.noop.module_path, queue="default", priority=0, state=State.PENDING,
        due_at=Job.objects.get(pk=long).due_at, created_at=Job.objects.get(pk=long).created_at,
        max_attempts=8, max_crashes=3, crashes=1, attempts=1,
    )  # fmt: skip

    for _ in range(5):
        until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)

    assert Job.objects.filter(crashes=1, state=State.PENDING).count() == 1
    (tmp_path / "finish").touch()
    until(lambda: not Job.objects.exclude(state=State.SUCCEEDED).exists())
