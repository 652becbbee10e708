"""Replies that are lost on the way: what the server did all the same is found and told apart."""

from dataclasses import replace
from datetime import timedelta

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from tests import tasks as plain
from tests.proxy import proxied
from tests.worker import tasks
from tests.worker.fleet import outcomes, until, until_all, until_state

# Of a queue for which nobody is notified: there is one claim, and it finds the row.
CLAIM = b"UPDATE \"leasejobs_job\" SET state = 3.*'lost'"
COMPLETE = b"succeeded"
LEASE = 60


@pytest.fixture
def proxy(transactional_db):
    with proxied() as found:
        yield found


@pytest.mark.parametrize("kind", ["plain", "locked", "suspect"])
def test_rows_of_a_claim_whose_reply_was_lost_are_given_back_uncharged(proxy, fleet, kind):
    worker = fleet.start_ready(f"--lease={LEASE}", "--poll=0.2", DATABASE_URL=proxy.url)
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    child = worker.child()
    proxy.cut_reply_to(CLAIM)

    lock_key = "a" if kind == "locked" else ""
    later = replace(plain.noop.prepare(), queue="lost", delay=timedelta(hours=1))
    [item] = enqueue_many([replace(later, lock_key=lock_key, max_attempts=1)])
    crashes = 1 if kind == "suspect" else 0
    Job.objects.filter(pk=item.job_id).update(state=State.PENDING, crashes=crashes)
    assert proxy.was_cut.wait(20)
    job = until_state(item.job_id, State.SUCCEEDED)

    # One claim nobody knew of, released long before its lease would have run out, and another.
    assert (job.attempts, job.crashes, job.epoch) == (1, crashes, 2)
    assert outcomes(item.job_id) == ["released", "succeeded"]
    assert job.finished_at - job.created_at < timedelta(seconds=LEASE / 2)
    assert worker.child().pid == child.pid


def test_outcomes_whose_reply_was_lost_are_not_written_twice(proxy, fleet):
    worker = fleet.start_ready(f"--lease={LEASE}", DATABASE_URL=proxy.url, LOG_LEVEL="INFO")
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    proxy.cut_reply_to(COMPLETE)

    job_ids = [plain.noop.enqueue().job_id for _ in range(20)]
    assert proxy.was_cut.wait(20)
    until_all(State.SUCCEEDED, job_ids)
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)

    attempts = Attempt.objects.filter(job_id__in=job_ids)
    assert set(attempts.values_list("outcome", "late_outcome")) == {("succeeded", "")}
    assert attempts.count() == 20
    assert "lease_lost" not in worker.output()


def test_fenced_completion_whose_reply_was_lost_is_found_and_happens_once(proxy, fleet, tmp_path):
    fleet.start_ready(f"--lease={LEASE}", DATABASE_URL=proxy.url)
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    proxy.cut_reply_to(b"market_notification", b"COMMIT")

    job_id = tasks.tell_fenced.enqueue(str(tmp_path), "effect").job_id
    assert proxy.was_cut.wait(20)
    until_state(job_id, State.SUCCEEDED)

    until(lambda: outcomes(job_id))
    assert outcomes(job_id) == ["succeeded"]
    assert Job.objects.get(pk=job_id).epoch == 1
    assert tasks.told("effect") == 1
