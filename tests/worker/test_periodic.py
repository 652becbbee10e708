"""Schedules fired by real processes that are killed: each slot once, and none lost."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from example_project.market.models import Notification
from example_project.postgres import PROJECT
from leasejobs.models import Job, Schedule
from leasejobs.states import State
from tests.worker.fleet import TIMEOUT_SECONDS, database_now, until, until_all

pytestmark = pytest.mark.crash

SECONDS = 10
TICKING = "import django; django.setup(); from tests.worker import ticks; ticks.main()"


@pytest.fixture
def start_ticking(worker_env) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes that fire schedules; at the end they are killed."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", TICKING], cwd=PROJECT, env=worker_env | variables
        )
        processes.append(process)
        return process

    yield start

    for process in processes:
        process.kill()
        process.wait(TIMEOUT_SECONDS)


def slot_of(job: Job) -> datetime:
    return datetime.fromisoformat(job.metadata["slot"])


def slots() -> list[datetime]:
    return sorted(map(slot_of, Job.objects.all()))


def assert_once(first: datetime, end: datetime) -> None:
    """Each second from `first` to `end` was fired and told once."""
    found = [slot for slot in slots() if slot <= end]
    assert found[0] == first
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(seconds=1)}
    refs = Notification.objects.values_list("event_ref", flat=True)
    told = [slot for slot in map(datetime.fromisoformat, refs) if slot <= end]
    assert sorted(told) == found


def test_slot_of_a_process_killed_before_commit_is_fired_by_the_next(start_ticking):
    seen = database_now() - timedelta(seconds=3)
    Schedule.objects.create(name="every-second", last_slot=seen)

    dying = start_ticking(LEASEJOBS_TEST_DIE="1")
    assert dying.wait(TIMEOUT_SECONDS) == -signal.SIGKILL
    assert Schedule.objects.get().last_slot == seen
    assert not Job.objects.exists()

    start_ticking()
    until(lambda: len(slots()) >= 5)
    found = slots()
    assert found[0] - seen <= timedelta(seconds=1)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(seconds=1)}


@pytest.mark.field_case("B109")
def test_workers_fire_and_run_every_slot_once_though_their_children_are_killed(fleet):
    settings = "tests.worker.clock_settings"
    workers = [
        fleet.start("--processes=2", "--threads=2", DJANGO_SETTINGS_MODULE=settings)
        for _ in range(2)
    ]
    until(lambda: len(slots()) >= 2)
    first = min(slots())

    for number in range(6):
        time.sleep(random.uniform(0.3, 1))
        random.choice(until(workers[number % 2].children)).kill()
    end = database_now()
    until(lambda: max(slots()) >= end)
    until_all(State.SUCCEEDED, [job.pk for job in Job.objects.all() if slot_of(job) <= end])

    assert_once(first, end)


def test_every_slot_is_fired_and_run_once_though_processes_are_killed(fleet, start_ticking):
    worker = fleet.start("--processes=2", "--threads=2")
    ticking = [start_ticking() for _ in range(4)]
    until(lambda: Job.objects.exists())
    first = min(slots())

    killed = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(random.uniform(0.1, 1))
        number = random.randrange(len(ticking))
        ticking[number].kill()
        ticking[number].wait(TIMEOUT_SECONDS)
        ticking[number] = start_ticking()
        killed += 1
        if killed % 5 == 0 and (children := worker.children()):
            random.choice(children).kill()
    # Whatever they did not come to while they were killed, those that live now make up for.
    end = database_now()
    until(lambda: max(slots()) >= end)
    for process in ticking:
        process.kill()
        process.wait(TIMEOUT_SECONDS)
    # The workers know the schedule, too, once they ran a tick.
    until_all(State.SUCCEEDED, [job.pk for job in Job.objects.all() if slot_of(job) <= end])

    assert_once(first, end)
