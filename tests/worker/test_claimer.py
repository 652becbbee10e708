"""The claimer's clock: when it looks at the table again."""

import time

import pytest

from leasejobs.claiming import Stream
from leasejobs.states import State
from leasejobs.worker.chores import Chores
from leasejobs.worker.heads import KnownTasks
from leasejobs.worker.options import Options
from tests.factories import JobFactory
from tests.two_connections import second_session

OPTIONS = Options(
    queues=(), processes=1, threads=1, lease=30, poll=30, shutdown=1, drain=False, holder=""
)


@pytest.mark.django_db(transaction=True)
def test_due_row_that_somebody_has_locked_is_not_asked_for_without_pause() -> None:
    job = JobFactory(state=State.SCHEDULED)
    chores = Chores(OPTIONS)

    with second_session() as other:
        other.execute("SELECT FROM leasejobs_job WHERE id = %s FOR UPDATE", [job.pk])
        now = time.monotonic()
        chores._promote(now)

    assert chores._promote_at >= now + 0.1


@pytest.mark.django_db(transaction=True)
def test_unknown_row_that_somebody_has_locked_is_not_looked_at_without_pause() -> None:
    job = JobFactory(state=State.PENDING, task="nowhere.at.all")
    tasks = KnownTasks()

    with second_session() as other:
        other.execute("SELECT FROM leasejobs_job WHERE id = %s FOR UPDATE", [job.pk])
        assert not tasks.clear_head(Stream.PLAIN, job.queue)

    assert tasks.clear_head(Stream.PLAIN, job.queue)
    job.refresh_from_db()
    assert job.state == State.SCHEDULED
