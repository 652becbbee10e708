"""A worker on psycopg's connection pool: what a task ruined goes back to it, and is not missed."""

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Job
from leasejobs.states import State
from tests.worker import tasks
from tests.worker.fleet import until

POOLED = {"DJANGO_SETTINGS_MODULE": "tests.worker.pooled_settings"}


@pytest.mark.field_case("B079")
def test_sessions_that_tasks_ruin_do_not_exhaust_the_pool(fleet):
    hows = ["aborted", "open", "raw", "closed", "terminated"] * 6
    enqueue_many([tasks.leave_dirty.using(max_attempts=1).prepare(how) for how in hows])
    after = enqueue_many([tasks.count_markets.prepare() for _ in range(20)])

    fleet.start("--threads=2", **POOLED)
    until(lambda: not Job.objects.exclude(state__in=[State.SUCCEEDED, State.FAILED]).exists())

    clean = Job.objects.filter(pk__in=[item.job_id for item in after])
    assert set(clean.values_list("state", "attempts")) == {(State.SUCCEEDED, 1)}


def test_pool_that_is_too_small_is_refused_before_any_work(fleet):
    job_id = tasks.count_markets.enqueue().job_id

    worker = fleet.start("--threads=3", **POOLED)

    assert worker.wait() == 1
    assert "has 6 connections and a child needs 7" in worker.output()
    assert Job.objects.get(pk=job_id).attempts == 0
    fleet.workers.remove(worker)
