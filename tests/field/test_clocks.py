"""Wrong clocks: the database's decides, and durations come from one that only goes forward."""

import ast
import os
from datetime import timedelta
from pathlib import Path

import pytest

import leasejobs
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import tasks
from tests.worker.fleet import outcomes, until_all, until_state

# Python imports it at start: everything a program may ask for the time of day tells another one.
SITE = """
import os, time
from datetime import timedelta
import django.utils.timezone

_time, _time_ns, _now = time.time, time.time_ns, django.utils.timezone.now
_began = time.monotonic()

def _skew():
    first, then = map(float, os.environ["CLOCK_SKEW"].split(","))
    return first if time.monotonic() - _began < 4 else then

time.time = lambda: _time() + _skew()
time.time_ns = lambda: _time_ns() + int(_skew() * 1e9)
django.utils.timezone.now = lambda: _now() + timedelta(seconds=_skew())
"""


@pytest.mark.field_case("B032")
def test_workers_with_wrong_and_jumping_clocks_neither_steal_nor_delay(fleet, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(tmp_path), fleet.environment["PYTHONPATH"]])
    long = [tasks.compute.enqueue(5).job_id for _ in range(2)]
    for skew in ("300,300", "-300,-300", "0,-3600"):
        fleet.start(
            "--lease=3", "--threads=2", "--poll=0.3", "--no-reload",
            PYTHONPATH=path, CLOCK_SKEW=skew,
        )  # fmt: skip

    now = [plain.noop.enqueue().job_id for _ in range(10)]
    later = plain.noop.using(run_after=timedelta(seconds=2)).enqueue().job_id
    until_all(State.SUCCEEDED, [*long, *now, later])

    assert set(Job.objects.values_list("epoch", "attempts", "crashes")) == {(1, 1, 0)}
    assert [outcomes(job_id) for job_id in long] == [["succeeded"]] * 2
    job = until_state(later, State.SUCCEEDED)
    # Not by the five minutes, or the hour, that some of them are wrong.
    assert timedelta(seconds=2) <= job.claimed_at - job.created_at < timedelta(seconds=60)
    for attempt in Attempt.objects.all():
        assert attempt.ended_at >= attempt.claimed_at


ASKS = {"time.time", "time.time_ns", "timezone.now", "datetime.now", "datetime.utcnow",
        "datetime.today", "date.today"}  # fmt: skip

TELLS_HOW_FAR_IT_IS_FROM_THE_DATABASE_S = {"management/probes.py: time.time()"}


@pytest.mark.field_case("B032")
def test_source_asks_no_clock_of_its_own_for_the_time_of_day():
    package = Path(leasejobs.__file__).parent
    asking = set()
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(tuple(ASKS)):
                asking.add(f"{path.relative_to(package)}: {ast.unparse(node)}")

    assert asking == TELLS_HOW_FAR_IT_IS_FROM_THE_DATABASE_S
