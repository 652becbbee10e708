"""The claimer's clock: when it looks at the table again."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from leasejobs import enqueue_many
from leasejobs.claiming import Stream
from leasejobs.states import State
from leasejobs.worker.chores import Chores
from leasejobs.worker.claimer import Claimer
from leasejobs.worker.heads import KnownTasks
from leasejobs.worker.options import Options
from tests import tasks
from tests.factories import HOLDER, JobFactory
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


@pytest.mark.django_db(transaction=True)
def test_urgent_locked_jobs_come_before_a_plain_backlog() -> None:
    enqueue_many([tasks.noop.prepare() for _ in range(200)])
    urgent = [tasks.noop.using(priority=50, lock_key=f"key {n}").prepare() for n in range(5)]
    locked = {item.job_id for item in enqueue_many(urgent)}
    claimer = Claimer(OPTIONS, HOLDER, 1000, None)

    first = [job.pk for _ in range(5) for job, _ in claimer.claim(0, 1000)]

    assert set(first) == locked


@pytest.mark.django_db(transaction=True)
def test_queue_does_not_wait_for_the_backlog_of_another_that_is_no_older() -> None:
    for number in range(40):
        JobFactory(queue="ab"[number % 2], due_at=timezone.now() - timedelta(seconds=60 - number))
    claimer = Claimer(OPTIONS, HOLDER, 1000, None)

    queues = [job.queue for _ in range(10) for job, _ in claimer.claim(0, 1000)]

    assert 4 <= queues.count("a") <= 6


@pytest.mark.django_db(transaction=True)
def test_quiet_queue_does_not_wait_for_an_older_backlog_of_another() -> None:
    old = timezone.now() - timedelta(hours=1)
    for _ in range(30):
        JobFactory(queue="busy", due_at=old)
    JobFactory(queue="quiet")
    claimer = Claimer(OPTIONS, HOLDER, 1000, None)

    queues = [job.queue for _ in range(3) for job, _ in claimer.claim(0, 1000)]

    assert "quiet" in queues


@pytest.mark.django_db(transaction=True)
def test_queue_that_was_quiet_gets_its_share_and_no_more() -> None:
    for _ in range(20):
        JobFactory(queue="busy")
    claimer = Claimer(OPTIONS, HOLDER, 1000, None)
    for _ in range(10):
        claimer.claim(0, 1000)
    for _ in range(20):
        JobFactory(queue="late")
    claimer.look_again("late")

    queues = [job.queue for _ in range(10) for job, _ in claimer.claim(0, 1000)]

    assert 4 <= queues.count("late") <= 6
