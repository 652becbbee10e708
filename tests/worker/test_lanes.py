"""Lanes that an app registers: claimed, run and settled beside the jobs."""

import time

import pytest

from leasejobs import enqueue_many
from leasejobs.models import Job
from leasejobs.states import State
from leasejobs.wakeup import notify_lane
from tests import tasks as plain
from tests.factories import AccountFactory
from tests.fenced_app.models import Account, Receipt
from tests.worker import tasks
from tests.worker.account_lanes import DIE, RAISE, WAIT
from tests.worker.fleet import holder_of, is_alive, until, until_all, until_state


@pytest.fixture
def start(fleet):
    """Start workers that have the lane `accounts`, or those named."""

    def start(*options: str, lanes: str = "accounts", **more):
        return fleet.start(
            *options, DJANGO_SETTINGS_MODULE="tests.worker.lane_settings",
            LEASEJOBS_TEST_LANES=lanes, LOG_LEVEL="INFO", **more,
        )  # fmt: skip

    return start


def receipts(word: str) -> list[list[str]]:
    """Return the receipts that begin with a word, in the order they were written."""
    texts = Receipt.objects.filter(text__startswith=word).order_by("pk")
    return [text.split() for text in texts.values_list("text", flat=True)]


def until_closed(*accounts: Account) -> None:
    until(lambda: not Account.objects.filter(pk__in=[a.pk for a in accounts], is_open=True))


def test_rows_of_a_lane_are_claimed_run_and_closed_once(start):
    accounts = AccountFactory.create_batch(20)

    start("--poll=0.2")
    until_closed(*accounts)

    assert sorted(int(pk) for _, pk, _ in receipts("closed")) == [a.pk for a in accounts]
    assert set(Account.objects.values_list("epoch", "leased_by")) == {(1, "")}


def test_lane_is_woken_by_a_notification_of_its_own(start):
    worker = start("--poll=30")
    until(worker.is_listening)

    began = time.monotonic()
    for _ in range(20):
        account = AccountFactory()
        notify_lane("accounts", "default")
        until_closed(account)

    assert time.monotonic() - began < 15


def test_neither_a_backlog_of_jobs_starves_a_lane_nor_the_reverse(start):
    enqueue_many([plain.run_and_sleep.prepare(0.02) for _ in range(600)])
    start("--threads=2", "--poll=0.5")
    until(lambda: Job.objects.filter(state=State.SUCCEEDED).exists())

    accounts = AccountFactory.create_batch(30)
    until_closed(*accounts)

    assert Job.objects.filter(state=State.PENDING).count() > 50
    waiting = AccountFactory.create_batch(2, balance=WAIT)
    until(lambda: Account.objects.filter(pk__in=[a.pk for a in waiting]).leased().count() == 2)
    Job.objects.filter(state=State.PENDING).delete()
    # With every thread of the lane busy, long jobs have all of their own.
    for _ in range(3):
        long = [item.job_id for item in enqueue_many([plain.run_and_sleep.prepare(0.3)] * 2)]
        until_all(State.SUCCEEDED, long)


@pytest.mark.crash
def test_row_of_a_lane_whose_child_died_is_settled_by_the_lane_and_run_again(start):
    worker = start("--lease=60", "--poll=0.2")
    child = worker.child()
    holder = holder_of(child)

    account = AccountFactory(balance=DIE)
    until(lambda: not is_alive(child))
    until_closed(account)

    assert receipts("settled") == [["settled", str(account.pk), "crashed"]]
    [(_, pk, closed_by)] = receipts("closed")
    assert (int(pk), closed_by != holder) == (account.pk, True)
    assert Account.objects.get(pk=account.pk).epoch == 2


def test_row_a_lane_failed_on_comes_back_by_its_lease(start):
    worker = start("--lease=1.5", "--poll=0.2")

    failing, fine = AccountFactory(balance=RAISE), AccountFactory()
    until_closed(failing, fine)

    assert Account.objects.get(pk=failing.pk).epoch == 2
    assert Account.objects.get(pk=fine.pk).epoch == 1
    assert "lane_failed" in worker.output()


def test_lane_is_told_of_a_shutdown(start):
    account = AccountFactory(balance=WAIT)
    worker = start("--poll=0.2")
    until(lambda: Account.objects.leased().exists())

    assert worker.stop() == 0

    assert not Account.objects.get(pk=account.pk).is_open


def test_drain_does_the_work_of_lanes_too(start):
    accounts = AccountFactory.create_batch(10)
    enqueue_many([plain.noop.prepare() for _ in range(10)])

    worker = start("--drain")

    assert worker.wait() == 0
    assert not Account.objects.filter(is_open=True).exists()
    assert len(receipts("closed")) == len(accounts)
    until_all(State.SUCCEEDED)


@pytest.mark.crash
def test_lane_that_always_fails_stops_neither_jobs_nor_other_lanes(start):
    worker = start("--poll=0.2", "--lease=60", lanes="a_broken_one accounts")
    accounts = AccountFactory.create_batch(4)

    until_closed(*accounts)
    took = []
    for _ in range(5):
        began = time.monotonic()
        until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
        took.append(time.monotonic() - began)
    assert max(took) < 3
    assert "lane_failed" in worker.output()
    assert "database_unavailable" not in worker.output()

    # Nor does it keep the supervisor from settling what a dead child held of others.
    account = AccountFactory(balance=DIE)
    until_closed(account)
    assert receipts("settled") == [["settled", str(account.pk), "crashed"]]
    assert worker.output().count("settling is broken") == 1


def test_lane_goes_on_to_its_next_rows_at_once(start):
    """At the pace of the loop's own rounds, a few a second, it would take a minute."""
    accounts = AccountFactory.create_batch(300)

    start("--poll=60")
    until(lambda: not Account.objects.filter(is_open=True).exists(), timeout=25)

    assert len(receipts("closed")) == len(accounts)


def test_suspect_runs_beside_no_row_of_a_lane(start):
    """It may take its child along, and whatever runs in it."""
    AccountFactory.create_batch(2000)
    suspect = Job.objects.get(pk=tasks.watch_accounts.enqueue(0.3).job_id)
    Job.objects.filter(pk=suspect.pk).update(crashes=1)

    start("--threads=1")
    job = until_state(suspect.pk, State.SUCCEEDED)

    assert job.result == 0
    assert Account.objects.filter(is_open=True).exists()
