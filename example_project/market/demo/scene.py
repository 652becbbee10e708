"""What the demo does to its workers: it kills one child and freezes another, each inside a job.

A scene is a generator, advanced between two looks at the tables. It waits for facts and never for
time alone; what does not come about in time ends the scene as `SceneFailedError`, and the verdict
says so. That the body of a job has begun is told by the job's own row: a slow job
writes the epoch of its claim into `progress_done`.
"""

import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime

import psutil
from django.db import connection
from django.db.models import F

from example_project.market.demo.fleet import Child, Fleet
from leasejobs.models import Attempt, Job
from leasejobs.states import AttemptOutcome

Scene = Generator[None, None, None]


class SceneFailedError(Exception):
    """What the scene waited for did not come about."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A child that was killed or frozen while it ran the body of a job."""

    holder: str
    pid: int
    job_id: int
    epoch: int
    at: datetime  # by the database's clock, just before the signal was sent


@dataclass(slots=True)
class Story:
    """What has been done so far."""

    killed: Struck | None = None
    frozen: Struck | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the scene is played: `ended()` says how many of the `total` jobs have ended."""

    fleet: Fleet
    tell: Callable[[str], None]
    ended: Callable[[], int]
    total: int
    patience: float

    def until(self, fact: Callable[[], bool], what: str) -> Scene:
        """Wait for a fact."""
        deadline = time.monotonic() + self.patience
        while not fact():
            if time.monotonic() > deadline:
                raise SceneFailedError(f"waited {self.patience:g} s for {what}")
            yield


def play(stage: Stage, story: Story) -> Scene:
    """Kill one child and then freeze another, at points of the drain that leave something to do."""
    yield from _drained(stage, 10)
    story.killed = yield from _strike(stage, signal.SIGKILL)
    killed = story.killed
    yield from stage.until(
        lambda: not _holds(killed.holder), "the killed child's jobs to come back"
    )
    stage.tell(f"the jobs of {_name(killed)} were taken back")
    yield from _drained(stage, 4)
    story.frozen = yield from _strike(stage, signal.SIGSTOP, avoid=_worker(killed.holder))
    frozen = story.frozen
    stage.tell(f"the lease of {_name(frozen)} ran out, and job {frozen.job_id} was taken back")
    yield from stage.until(lambda: _epoch(frozen) > frozen.epoch, "another worker to take over")
    stage.tell(f"job {frozen.job_id} was taken over, under epoch {_epoch(frozen)}")
    psutil.Process(frozen.pid).send_signal(signal.SIGCONT)
    stage.tell(f"SIGCONT to {_name(frozen)}: it goes on as if nothing had happened")
    yield from stage.until(lambda: bool(_late(frozen)), "the late outcome to be refused")
    stage.tell(
        f"refused: {_name(frozen)} reported job {frozen.job_id} as {_late(frozen)}, too late"
    )


def _drained(stage: Stage, share: int) -> Scene:
    """Wait until one job in `share` has ended; a short file has no time for that."""
    if stage.total >= 200:
        yield from stage.until(
            lambda: stage.ended() >= stage.total // share, f"1/{share} of the jobs to end"
        )


def _strike(stage: Stage, number: signal.Signals, avoid: str = "") -> Generator[None, None, Struck]:
    """Send a signal to a child inside a job's body, and see that it was still inside.

    The body may have ended just before, or a COMMIT of its may have been on its way: the attempt
    tells, at the latest when the lease has run out. A miss is made good with another child.
    `avoid` names a worker to leave in peace while others have a candidate.
    """
    deadline = time.monotonic() + stage.patience
    while time.monotonic() < deadline:
        found = _candidate(stage.fleet, avoid)
        if found is None:
            yield
            continue
        child, job_id, epoch = found
        struck = Struck(child.holder, child.process.pid, job_id, epoch, _database_now())
        child.process.send_signal(number)
        stage.tell(f"{number.name} to {_name(struck)}, inside job {job_id}, under epoch {epoch}")
        ended = Attempt.objects.filter(job_id=job_id, epoch=epoch)
        yield from stage.until(ended.all().exists, f"the attempt at job {job_id} to end")
        if ended.get().outcome == AttemptOutcome.LOST:
            return struck
        stage.tell(f"missed: job {job_id} had just ended")
        if number == signal.SIGSTOP:
            child.process.send_signal(signal.SIGCONT)
    raise SceneFailedError(f"no child was hit by {number.name} inside a job")


def _candidate(fleet: Fleet, avoid: str) -> tuple[Child, int, int] | None:
    begun = Job.objects.running().filter(progress_done=F("epoch")).order_by("-claimed_at")
    rows = list(begun.values_list("leased_by", "pk", "epoch")[:20])
    rows.sort(key=lambda row: _worker(row[0]) == avoid)
    for holder, job_id, epoch in rows:
        if child := fleet.child(holder):
            return child, job_id, epoch
    return None


def _holds(holder: str) -> bool:
    return bool(Job.objects.running().filter(leased_by=holder).exists())


def _epoch(struck: Struck) -> int:
    return int(Job.objects.values_list("epoch", flat=True).get(pk=struck.job_id))


def _late(struck: Struck) -> str:
    attempt = Attempt.objects.filter(job_id=struck.job_id, epoch=struck.epoch).first()
    return attempt.late_outcome if attempt else ""


def _worker(holder: str) -> str:
    return holder.partition("@")[0]


def _name(struck: Struck) -> str:
    return f"{_worker(struck.holder)}'s child {struck.pid}"


def _database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
