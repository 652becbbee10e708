"""The fence on a model of a project's own: claim, renew, fenced(), its guard and its columns."""

import itertools
import os
import re
import socket
import threading
import uuid
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import IntegrityError, OperationalError, connection, connections, models, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

import leasejobs
from leasejobs import claiming, leases, points, policy, recovery
from leasejobs.enqueue import enqueue_many
from leasejobs.exceptions import LeaseLost, UnfencedWrite
from leasejobs.fencing import FENCE_COLUMNS, FencedModel, claim, fenced, local_clock
from leasejobs.leases import Written
from leasejobs.models import Job
from leasejobs.outcomes import Continued, Failed, Failure, Released, Snoozed, Succeeded
from leasejobs.renewal import renew
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests import tasks
from tests.factories import (
    HOLDER,
    LEASE,
    AccountFactory,
    JobFactory,
    attempts_of,
    forged_lease,
    lease_of,
    whole,
)
from tests.fenced_app.models import Account, Receipt
from tests.two_connections import (
    acting,
    own_pid,
    second_session,
    terminate,
    together,
    wait_until_blocked,
)

two_sessions = pytest.mark.django_db(transaction=True)
both_databases = pytest.mark.django_db(databases=["default", "other"])

OTHER = "test-host:2:def"
FACTORIES = {
    "account": lambda: AccountFactory(leased=True),
    "job": lambda: JobFactory(running=True),
}


@pytest.fixture(params=sorted(FACTORIES))
def held(request, db):
    """A leased row of either model."""
    return FACTORIES[request.param]()


@pytest.fixture
def arrivals():
    """Collect the points that are passed; a test may add an action to one."""
    actions: dict[str, list] = {}
    passed: list[str] = []

    def hook(name: str) -> None:
        passed.append(name)
        for action in actions.pop(name, []):
            action()

    points.install(hook)
    yield passed, actions
    points.install(None)


def claim_accounts(limit: int = 10, holder: str = HOLDER, duration: timedelta = LEASE, **changes):
    return claim(
        Account.objects.order_by("id"),
        holder=holder,
        duration=duration,
        limit=limit,
        changes=changes or None,
    )


# claim


@pytest.mark.django_db
def test_claim_writes_the_four_columns():
    account = AccountFactory(epoch=6)

    [(row, lease)] = claim_accounts()

    account.refresh_from_db()
    assert row.pk == account.pk
    assert (account.epoch, account.lease_token, account.leased_by) == (7, lease.token, HOLDER)
    assert account.lease_expires_at == lease.expires_at == row.lease_expires_at
    assert (lease.epoch, lease.holder, lease.duration, lease.pk) == (7, HOLDER, LEASE, account.pk)
    assert lease.model is Account


@pytest.mark.django_db
def test_claim_gives_one_token_to_all_rows_of_a_call_and_another_to_the_next():
    AccountFactory.create_batch(4)

    first, second = claim_accounts(2), claim_accounts(2)

    assert len({lease.token for _, lease in first}) == 1
    assert len({lease.token for _, lease in second}) == 1
    assert first[0][1].token != second[0][1].token


@pytest.mark.django_db
def test_claim_takes_rows_in_the_order_of_its_queryset_and_returns_them_so():
    for balance in (2, 5, 1, 4, 3):
        AccountFactory(balance=balance)

    found = claim(Account.objects.order_by("-balance"), holder=HOLDER, duration=LEASE, limit=3)

    assert [row.balance for row, _ in found] == [5, 4, 3]


@pytest.mark.django_db
def test_claim_leaves_out_what_its_queryset_leaves_out():
    AccountFactory(is_open=False)

    found = claim(Account.objects.filter(is_open=True), holder=HOLDER, duration=LEASE, limit=3)

    assert found == []


@pytest.mark.django_db
def test_claim_applies_further_changes_in_the_same_update():
    AccountFactory(balance=1)

    [(row, _)] = claim_accounts(balance=F("balance") + 10)

    assert row.balance == 11
    assert Account.objects.get().balance == 11


@pytest.mark.django_db
def test_claim_of_limit_zero_takes_nothing_and_asks_nothing(django_assert_num_queries):
    AccountFactory()

    with django_assert_num_queries(0):
        assert claim_accounts(0) == []


@pytest.mark.django_db
def test_claim_refuses_a_negative_limit():
    with pytest.raises(ValueError, match="limit"):
        claim_accounts(-1)


@pytest.mark.django_db
def test_claim_takes_a_limit_far_above_what_there_is():
    AccountFactory.create_batch(3)

    assert len(claim_accounts(10**12)) == 3


@pytest.mark.django_db
def test_claim_needs_a_holder():
    AccountFactory()

    with pytest.raises(ValueError, match="holder"):
        claim_accounts(holder="")

    assert Account.objects.get().lease_token is None


@pytest.mark.django_db
def test_claim_takes_an_expired_row_and_leaves_an_unexpired_one():
    expired, alive = AccountFactory(leased=True), AccountFactory(leased=True)
    before = whole(alive)
    expire_lease(expired)

    [(row, lease)] = claim_accounts(holder=OTHER)

    assert (row.pk, lease.epoch) == (expired.pk, 2)
    assert whole(alive) == before


@pytest.mark.django_db
def test_deadline_counts_from_when_the_request_left(monkeypatch):
    AccountFactory()
    clock = itertools.count(1000)
    monkeypatch.setattr("leasejobs.fencing.local_clock", lambda: float(next(clock)))

    [(_, lease)] = claim_accounts()

    assert lease.deadline == 1000 + LEASE.total_seconds()


@pytest.mark.django_db
def test_lease_is_presumed_lost_once_its_local_deadline_has_passed():
    row = AccountFactory(leased=True)

    assert not lease_of(row).is_presumed_lost
    assert forged_lease(row, deadline=local_clock()).is_presumed_lost


@two_sessions
def test_claim_skips_rows_that_another_session_has_locked():
    accounts = AccountFactory.create_batch(3)

    with second_session() as other:
        other.execute("SELECT 1 FROM fenced_app_account WHERE id = %s FOR UPDATE", [accounts[0].pk])
        found = claim_accounts(2)

    assert [row.pk for row, _ in found] == [accounts[1].pk, accounts[2].pk]


@two_sessions
def test_claims_that_are_open_at_once_are_disjoint():
    AccountFactory.create_batch(10)
    may_commit = threading.Event()

    def claim_and_wait():
        with transaction.atomic():
            found = [row.pk for row, _ in claim_accounts(6, holder=OTHER)]
            claimed.set()
            assert may_commit.wait(20)
        return found

    claimed = threading.Event()
    with acting(claim_and_wait) as actor:
        assert claimed.wait(20)
        mine = [row.pk for row, _ in claim_accounts(6)]
        may_commit.set()

    assert len(mine) == 4
    assert set(mine).isdisjoint(actor.result())


@two_sessions
def test_claim_leaves_a_row_alone_that_is_only_referenced_by_an_open_transaction():
    """FOR NO KEY UPDATE: a foreign key's share lock neither hides nor delays the row."""
    job = JobFactory()

    with second_session() as other:
        other.execute("INSERT INTO fenced_app_receipt (job_id, text) VALUES (%s, 'open')", [job.pk])
        found = claim(
            Job.objects.claimable(),
            holder=HOLDER,
            duration=LEASE,
            limit=1,
            changes={"state": State.RUNNING},
        )

    assert [row.pk for row, _ in found] == [job.pk]


@two_sessions
def test_claim_rolled_back_by_its_caller_never_happened():
    account = AccountFactory()

    with pytest.raises(RuntimeError), transaction.atomic():
        claim_accounts()
        raise RuntimeError

    assert whole(account)["epoch"] == 0


# renew


def test_renewal_extends_the_expiry_and_the_deadline(held):
    type(held).objects.update(lease_expires_at=Now() + timedelta(seconds=5))
    lease = forged_lease(held, token=held.lease_token, deadline=0.0)

    renewed, locked, lost = renew([lease])

    held.refresh_from_db()
    assert (len(renewed), locked, lost) == (1, [], [])
    assert renewed[0].expires_at == held.lease_expires_at > timezone.now() + timedelta(seconds=25)
    assert renewed[0].deadline > local_clock()
    assert (renewed[0].token, renewed[0].epoch) == (lease.token, lease.epoch)


def test_renewal_of_nothing_asks_nothing(django_assert_num_queries, db):
    with django_assert_num_queries(0):
        assert renew([]) == ([], [], [])


def test_renewal_never_revives_an_expired_lease(held):
    lease = lease_of(held)
    expire_lease(held)
    before = whole(held)

    assert renew([lease]) == ([], [], [lease])
    assert whole(held) == before


def test_renewal_never_arms_a_released_row(held):
    lease = lease_of(held)
    changes = {"state": State.PENDING} if isinstance(held, Job) else {}
    type(held).objects.update(lease_token=None, leased_by="", lease_expires_at=None, **changes)
    before = whole(held)

    assert renew([lease]) == ([], [], [lease])
    assert whole(held) == before


def test_renewal_never_arms_a_row_claimed_again(held):
    lease = lease_of(held)
    type(held).objects.update(lease_token=uuid.uuid4(), leased_by=OTHER, epoch=2)
    before = whole(held)

    assert renew([lease]) == ([], [], [lease])
    assert whole(held) == before


def test_renewal_of_a_deleted_row_is_lost(held):
    lease = lease_of(held)
    type(held).objects.all().delete()

    assert renew([lease]) == ([], [], [lease])


@pytest.mark.django_db
def test_renewal_never_mixes_pairs_of_pk_and_token():
    """Crosswise: each token is right for one row and wrong for the other."""
    first, second = AccountFactory(leased=True), AccountFactory(leased=True)
    before = [whole(first), whole(second)]
    crossed = [
        forged_lease(first, token=second.lease_token),
        forged_lease(second, token=first.lease_token),
    ]

    assert renew(crossed) == ([], [], crossed)
    assert [whole(first), whole(second)] == before


@pytest.mark.django_db
def test_renewal_of_right_and_crossed_pairs_at_once_renews_the_right_ones():
    first, second = AccountFactory(leased=True), AccountFactory(leased=True)
    right = [lease_of(first), lease_of(second)]
    crossed = [
        forged_lease(first, token=second.lease_token),
        forged_lease(second, token=first.lease_token),
    ]

    renewed, locked, lost = renew([right[0], *crossed, right[1]])

    assert sorted(lease.pk for lease in renewed) == sorted([first.pk, second.pk])
    assert locked == []
    assert set(lost) == set(crossed)


@pytest.mark.django_db
def test_renewal_takes_leases_of_several_models_at_once():
    job, account = JobFactory(running=True), AccountFactory(leased=True)

    renewed, locked, lost = renew([lease_of(job), lease_of(account)])

    assert {lease.model for lease in renewed} == {Job, Account}
    assert locked == lost == []


@two_sessions
@pytest.mark.parametrize("expired", [False, True])
def test_row_locked_by_its_own_fenced_block_is_locked_and_not_waited_for(expired):
    account, free = AccountFactory(leased=True), AccountFactory(leased=True)
    lease, other_lease = lease_of(account), lease_of(free)

    with fenced(lease) as row:
        if expired:
            Account.objects.filter(pk=row.pk).update(lease_expires_at=Now() - timedelta(seconds=1))
        with acting(lambda: renew([lease, other_lease])) as heartbeat:
            renewed, locked, lost = heartbeat.result()

    assert [item.pk for item in renewed] == [free.pk]
    assert locked == [lease]
    assert lost == []


@two_sessions
def test_row_locked_under_a_newer_claim_is_lost():
    account = AccountFactory(leased=True)
    stale = forged_lease(account)

    with fenced(lease_of(account)), acting(lambda: renew([stale])) as heartbeat:
        assert heartbeat.result() == ([], [], [stale])


# fenced: commit, refusal, nesting


def test_fenced_commits_the_body_and_rearms_the_lease(held):
    type(held).objects.update(lease_expires_at=Now() + timedelta(seconds=5))

    with fenced(lease_of(held)) as row:
        Receipt.objects.create(text="written")

    held.refresh_from_db()
    assert Receipt.objects.count() == 1
    assert held.lease_expires_at > timezone.now() + timedelta(seconds=25)
    assert row.lease.expires_at == held.lease_expires_at
    assert (row.lease.token, row.lease.epoch) == (held.lease_token, held.epoch)


def test_fenced_refuses_a_stale_token_and_never_enters_the_body(held):
    before = whole(held)

    with pytest.raises(LeaseLost), fenced(forged_lease(held)):
        pytest.fail("entered")

    assert whole(held) == before


@pytest.mark.django_db
@pytest.mark.parametrize("state", [state for state in State if state != State.RUNNING])
def test_fenced_needs_the_models_own_filter_to_hold(state):
    job = JobFactory(state=state, epoch=1)

    with pytest.raises(LeaseLost), fenced(forged_lease(job)):
        pytest.fail("entered")


def test_body_that_raises_writes_nothing_and_keeps_the_lease_as_it_was(held):
    before = whole(held)

    with pytest.raises(ZeroDivisionError), fenced(lease_of(held)):
        Receipt.objects.create(text="never")
        raise ZeroDivisionError

    assert not Receipt.objects.exists()
    assert whole(held) == before


def test_fenced_rearms_a_lease_that_expired_before_and_nobody_claimed(held):
    expire_lease(held)

    with fenced(lease_of(held)) as row:
        pass

    assert row.lease.expires_at > timezone.now()
    assert whole(held)["lease_expires_at"] == row.lease.expires_at


def test_fenced_rearms_a_lease_that_expired_inside(held):
    with fenced(lease_of(held)):
        expire_lease(held)

    assert whole(held)["lease_expires_at"] > timezone.now()


def test_body_that_ends_the_lease_behind_the_back_of_fenced_loses(held):
    changes = {"state": State.PENDING} if isinstance(held, Job) else {}
    before = whole(held)

    with pytest.raises(LeaseLost), fenced(lease_of(held)) as row:
        type(held).objects.filter(pk=row.pk).update(
            lease_token=None, leased_by="", lease_expires_at=None, **changes
        )

    assert whole(held) == before


@pytest.mark.django_db
def test_finish_that_ends_the_lease_leaves_no_receipt():
    account = AccountFactory(leased=True)

    def release(row):
        return Account.objects.filter(pk=row.pk).update(
            lease_token=None, leased_by="", lease_expires_at=None
        )

    with fenced(lease_of(account), finish=release) as row:
        pass

    assert row.lease is None
    assert whole(account)["lease_token"] is None


@two_sessions
def test_fenced_inside_fenced_is_refused():
    outer, inner = AccountFactory(leased=True), AccountFactory(leased=True)

    with fenced(lease_of(outer)), pytest.raises(RuntimeError), fenced(lease_of(inner)):
        pytest.fail("entered")


@two_sessions
def test_fenced_inside_atomic_is_refused():
    account = AccountFactory(leased=True)

    with transaction.atomic(), pytest.raises(RuntimeError), fenced(lease_of(account)):
        pytest.fail("entered")


@two_sessions
def test_atomic_inside_fenced_is_a_savepoint_that_may_fail():
    account = AccountFactory(leased=True)

    with fenced(lease_of(account)):
        Receipt.objects.create(text="kept")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Receipt.objects.create(text="dropped")
            raise ZeroDivisionError

    assert [receipt.text for receipt in Receipt.objects.all()] == ["kept"]


@pytest.mark.django_db
def test_inside_a_testcase_fenced_leaves_no_timeout_behind():
    account = AccountFactory(leased=True)

    with fenced(lease_of(account)):
        assert session_timeouts() == ("0", "0")

    assert session_timeouts() == ("0", "0")


# fenced: the bounds that the server keeps


@two_sessions
def test_statements_and_idling_are_bounded_by_the_lease_and_only_inside():
    account = AccountFactory(leased=True)

    with fenced(lease_of(account, timedelta(seconds=7))):
        assert session_timeouts() == ("7s", "7s")

    assert session_timeouts() == ("0", "0")


@two_sessions
def test_lease_longer_than_the_server_can_count_in_milliseconds_is_bounded_too():
    account = AccountFactory(leased=True)

    with fenced(lease_of(account, timedelta(days=30))):
        Receipt.objects.create(text="written")

    assert Receipt.objects.count() == 1


@two_sessions
def test_statement_that_outlasts_the_lease_is_cancelled_and_nothing_written():
    account = AccountFactory(leased=True)

    with (
        pytest.raises(OperationalError, match="statement timeout"),
        fenced(lease_of(account, timedelta(milliseconds=200))),
    ):
        Receipt.objects.create(text="never")
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    assert not Receipt.objects.exists()


@two_sessions
def test_holder_that_idles_longer_than_its_lease_is_cut_off_and_loses():
    account = AccountFactory(leased=True)

    with (
        pytest.raises(LeaseLost),
        fenced(lease_of(account, timedelta(milliseconds=200))),
    ):
        Receipt.objects.create(text="never")
        wait_until_gone(own_pid())

    assert not Receipt.objects.exists()


@two_sessions
def test_holder_cut_off_while_idle_frees_the_row_for_others():
    account = AccountFactory(leased=True)

    with (
        pytest.raises(LeaseLost),
        fenced(lease_of(account, timedelta(milliseconds=200))),
    ):
        wait_until_gone(own_pid())
        expire = Account.objects.filter(pk=account.pk).update
        with acting(lambda: expire(lease_expires_at=Now() - timedelta(seconds=1))):
            pass
        with acting(lambda: claim_accounts(holder=OTHER)) as successor:
            assert len(successor.result()) == 1


@two_sessions
def test_session_killed_inside_loses_and_writes_nothing():
    account = AccountFactory(leased=True)
    before = whole(account)

    with pytest.raises(LeaseLost), fenced(lease_of(account)):
        Receipt.objects.create(text="never")
        terminate(own_pid())
        Receipt.objects.create(text="never either")

    assert not Receipt.objects.exists()
    assert whole(account) == before


@two_sessions
def test_link_lost_inside_loses_and_writes_nothing():
    account = AccountFactory(leased=True)

    with pytest.raises(LeaseLost), fenced(lease_of(account)):
        Receipt.objects.create(text="never")
        cut_the_link()
        Receipt.objects.create(text="never either")

    assert not Receipt.objects.exists()


@two_sessions
def test_link_lost_at_commit_loses_unless_the_outcome_is_found(arrivals):
    _, actions = arrivals
    job = JobFactory(running=True)
    lease = lease_of(job)
    actions["fenced_written"] = [cut_the_link]

    with (
        pytest.raises(LeaseLost),
        fenced(
            lease,
            finish=complete_row,
            was_finished=lambda: leases.is_recorded(lease, "succeeded"),
        ),
    ):
        Receipt.objects.create(text="never")

    assert not Receipt.objects.exists()


@two_sessions
def test_session_killed_at_commit_loses_and_writes_nothing(arrivals):
    _, actions = arrivals
    account = AccountFactory(leased=True)
    pid = own_pid()
    actions["fenced_written"] = [lambda: terminate(pid)]

    with pytest.raises(LeaseLost), fenced(lease_of(account)):
        Receipt.objects.create(text="never")

    assert not Receipt.objects.exists()


@two_sessions
def test_connection_is_usable_again_after_a_lost_session():
    account = AccountFactory(leased=True)
    with pytest.raises(LeaseLost), fenced(lease_of(account)):
        terminate(own_pid())

    with fenced(lease_of(account)):
        Receipt.objects.create(text="again")

    assert Receipt.objects.count() == 1


@two_sessions
def test_error_of_the_body_outlives_the_loss_of_the_session():
    account = AccountFactory(leased=True)

    with pytest.raises(ZeroDivisionError), fenced(lease_of(account)):
        terminate(own_pid())
        raise ZeroDivisionError

    assert Account.objects.count() == 1


@two_sessions
def test_commit_whose_reply_was_lost_is_found_by_the_outcome(monkeypatch):
    job = JobFactory(running=True)
    lease = lease_of(job)
    lose_reply_of_commit(monkeypatch)

    with fenced(
        lease,
        finish=complete_row,
        was_finished=lambda: leases.is_recorded(lease, "succeeded"),
    ) as row:
        Receipt.objects.create(text="written")

    assert row.lease is None
    assert Receipt.objects.count() == 1
    assert whole(job)["state"] == State.SUCCEEDED
    assert len(attempts_of(job)) == 1


@two_sessions
def test_commit_whose_reply_was_lost_is_found_by_the_rearmed_expiry(monkeypatch):
    job = JobFactory(running=True)
    lose_reply_of_commit(monkeypatch)

    with fenced(lease_of(job)) as row:
        Receipt.objects.create(text="written")

    assert row.lease is not None
    assert Receipt.objects.count() == 1


@two_sessions
def test_commit_that_never_happened_is_lost_though_an_outcome_was_recorded(arrivals):
    _, actions = arrivals
    job = JobFactory(running=True)
    lease = lease_of(job)
    pid = own_pid()
    actions["fenced_written"] = [lambda: terminate(pid)]

    with (
        pytest.raises(LeaseLost),
        fenced(
            lease,
            finish=complete_row,
            was_finished=lambda: leases.is_recorded(lease, "succeeded"),
        ),
    ):
        Receipt.objects.create(text="never")

    assert whole(job)["state"] == State.RUNNING
    assert attempts_of(job) == []
    assert not Receipt.objects.exists()


@two_sessions
def test_points_are_passed_in_the_order_of_their_names(arrivals):
    passed, _ = arrivals

    with fenced(lease_of(AccountFactory(leased=True))):
        passed.append("body")

    assert passed == ["fenced_locked", "body", "fenced_body", "fenced_written", "fenced_committed"]


# fenced: two sessions


@two_sessions
def test_claim_cannot_take_over_while_the_row_is_locked():
    account = AccountFactory(leased=True)
    expire_lease(account)

    with (
        fenced(lease_of(account)),
        acting(lambda: claim_accounts(holder=OTHER)) as successor,
    ):
        assert successor.result() == []

    assert whole(account)["leased_by"] == HOLDER


@two_sessions
def test_recovery_cannot_take_over_while_the_row_is_locked():
    job = JobFactory(running=True)
    expire_lease(job)

    with fenced(lease_of(job)), acting(recovery.recover_expired) as sweeper:
        assert sweeper.result() == 0

    assert whole(job)["state"] == State.RUNNING
    assert attempts_of(job) == []


@two_sessions
def test_claim_that_came_first_makes_the_late_holder_lose():
    account = AccountFactory(leased=True)
    late = lease_of(account)
    expire_lease(account)
    with acting(lambda: claim_accounts(holder=OTHER)) as successor:
        assert len(successor.result()) == 1
    before = whole(account)

    with pytest.raises(LeaseLost), fenced(late):
        pytest.fail("entered")

    assert whole(account) == before


@two_sessions
def test_fenced_waits_for_a_takeover_in_progress_and_then_loses():
    account = AccountFactory(leased=True)
    late = lease_of(account)

    def write():
        with fenced(late):
            pytest.fail("entered")

    with second_session() as other:
        other.execute(
            "UPDATE fenced_app_account SET lease_token = %s, epoch = 2 WHERE id = %s",
            [uuid.uuid4(), account.pk],
        )
        with acting(write) as holder:
            wait_until_blocked(holder.pid)
            other.commit()
            with pytest.raises(LeaseLost):
                holder.result()


@two_sessions
def test_fenced_waits_for_a_takeover_that_is_rolled_back_and_then_writes():
    account = AccountFactory(leased=True)
    lease = lease_of(account)

    def write():
        with fenced(lease):
            Receipt.objects.create(text="written")

    with second_session() as other:
        other.execute(
            "UPDATE fenced_app_account SET lease_token = %s, epoch = 2 WHERE id = %s",
            [uuid.uuid4(), account.pk],
        )
        with acting(write) as holder:
            wait_until_blocked(holder.pid)
            other.rollback()
            holder.result()

    assert Receipt.objects.count() == 1


@two_sessions
def test_open_transaction_that_refers_to_the_row_does_not_block_fenced():
    job = JobFactory(running=True)

    with second_session() as other:
        other.execute("INSERT INTO fenced_app_receipt (job_id, text) VALUES (%s, 'open')", [job.pk])
        with fenced(lease_of(job, timedelta(seconds=2))):
            Receipt.objects.create(text="written")

    assert [receipt.text for receipt in Receipt.objects.all()] == ["written"]


@two_sessions
def test_fenced_does_not_block_a_transaction_that_refers_to_the_row():
    job = JobFactory(running=True)

    def refer():
        Receipt.objects.create(job=job, text="written meanwhile")

    with fenced(lease_of(job)), acting(refer) as other:
        other.result()
        assert Receipt.objects.count() == 1


@two_sessions
def test_only_one_of_two_holders_that_race_for_a_row_writes():
    """A stalls, B takes over, both write at once: one wins, whoever it is under one token."""
    account = AccountFactory(leased=True)
    stale, current = forged_lease(account), lease_of(account)

    def write(lease):
        def act():
            try:
                with fenced(lease):
                    Receipt.objects.create(text=str(lease.token))
            except LeaseLost:
                return "lost"
            return "written"

        return act

    assert together(write(stale), write(current)) == ["lost", "written"]
    assert [receipt.text for receipt in Receipt.objects.all()] == [str(current.token)]


# the guard over other databases

WRITES = {
    "insert": "INSERT INTO fenced_app_account (balance, is_open) VALUES (1, true)",
    "update": "UPDATE fenced_app_account SET balance = 2",
    "delete": "DELETE FROM fenced_app_account",
    "with delete": "WITH gone AS (DELETE FROM fenced_app_account RETURNING 1) SELECT * FROM gone",
    "for update": "SELECT * FROM fenced_app_account FOR UPDATE",
    "for no key update": "SELECT * FROM fenced_app_account FOR NO KEY UPDATE",
    "for share": "select * from fenced_app_account\nfor\nshare",
    "for key share": "SELECT * FROM fenced_app_account FOR KEY SHARE",
    "select into": "SELECT * INTO copied FROM fenced_app_account",
    "create": "CREATE TABLE made (id int)",
    "truncate": "TRUNCATE fenced_app_account",
    "call": "CALL something()",
    "do": "DO $$ BEGIN END $$",
    "comment first": "/* select */ DELETE FROM fenced_app_account",
    "second statement": "SELECT 1; DELETE FROM fenced_app_account",
    "hidden by comments": "SELECT * FROM fenced_app_account /* ' */ FOR UPDATE /* ' */",
    "hidden by an escape": r"SELECT *, E'\'' FROM fenced_app_account WHERE '' = '' FOR UPDATE -- '",
}
READS = {
    "plain": "SELECT * FROM fenced_app_account",
    "lower case": "  select 1",
    "in parentheses": "(SELECT 1) UNION (SELECT 2)",
    "literal for update": "SELECT 'a line for update and into the text'",
    "literal with quotes": "SELECT 'it''s for update'",
    "identifier": 'SELECT 1 AS "for update"',
    "show": "SHOW server_version",
}


@both_databases
@pytest.mark.parametrize("sql", WRITES.values(), ids=WRITES.keys())
def test_write_to_another_database_inside_fenced_is_refused(sql):
    account = AccountFactory(leased=True)

    with (
        pytest.raises(UnfencedWrite, match="'other'"),
        fenced(lease_of(account)),
        connections["other"].cursor() as cursor,
    ):
        cursor.execute(sql)


@both_databases
@pytest.mark.parametrize("sql", READS.values(), ids=READS.keys())
def test_plain_read_of_another_database_inside_fenced_is_allowed(sql):
    account = AccountFactory(leased=True)

    with fenced(lease_of(account)), connections["other"].cursor() as cursor:
        cursor.execute(sql)
        assert cursor.fetchall() is not None


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_orm_write_to_another_database_inside_fenced_is_refused():
    account = AccountFactory(leased=True)
    other = Account.objects.using("other").create()

    for write in (
        lambda: Account.objects.using("other").create(),
        lambda: Account.objects.using("other").update(balance=1),
        lambda: other.delete(),
        lambda: Account.objects.using("other").bulk_create([Account()]),
    ):
        with pytest.raises(UnfencedWrite), fenced(lease_of(account)):
            write()

    assert [row.balance for row in Account.objects.using("other").all()] == [0]


@both_databases
def test_executemany_on_another_database_inside_fenced_is_refused():
    account = AccountFactory(leased=True)

    with (
        pytest.raises(UnfencedWrite),
        fenced(lease_of(account)),
        connections["other"].cursor() as cursor,
    ):
        cursor.executemany("UPDATE fenced_app_account SET balance = %s", [[1], [2]])


@both_databases
def test_refused_write_takes_the_writes_of_the_body_with_it():
    account = AccountFactory(leased=True)

    with pytest.raises(UnfencedWrite), fenced(lease_of(account)):
        Receipt.objects.create(text="never")
        Account.objects.using("other").create()

    assert not Receipt.objects.exists()


@both_databases
def test_orm_reads_and_savepoints_of_another_database_inside_fenced_are_allowed():
    account = AccountFactory(leased=True)
    Account.objects.using("other").create(balance=5)

    with fenced(lease_of(account)), transaction.atomic(using="other"):
        assert Account.objects.using("other").get().balance == 5
        assert Account.objects.using("other").exists()


@both_databases
@pytest.mark.parametrize("ending", [None, ZeroDivisionError])
def test_guard_is_gone_after_the_block(ending):
    account = AccountFactory(leased=True)
    try:
        with fenced(lease_of(account)):
            if ending:
                raise ending
    except ZeroDivisionError:
        pass

    Account.objects.using("other").create()

    assert Account.objects.using("other").count() == 1
    assert connections["other"].execute_wrappers == []


@both_databases
def test_guard_is_gone_after_a_refused_lease():
    with pytest.raises(LeaseLost), fenced(forged_lease(AccountFactory(leased=True))):
        pytest.fail("entered")

    assert connections["other"].execute_wrappers == []


# the columns: constraint, save(), system check


@pytest.mark.django_db
@pytest.mark.parametrize("kept", [set(kept) for n in (1, 2) for kept in itertools.combinations(
    ("lease_token", "leased_by", "lease_expires_at"), n)],
    ids=lambda kept: ", ".join(sorted(kept)))  # fmt: skip
def test_database_refuses_a_lease_that_is_not_whole(kept):
    account = AccountFactory()
    values = {"lease_token": uuid.uuid4(), "leased_by": HOLDER, "lease_expires_at": Now()}

    with pytest.raises(IntegrityError, match="lease_whole"), transaction.atomic():
        Account.objects.filter(pk=account.pk).update(**{name: values[name] for name in kept})


@pytest.mark.django_db
def test_database_refuses_a_job_that_runs_unleased_or_is_leased_at_rest():
    running, pending = JobFactory(running=True), JobFactory()

    with pytest.raises(IntegrityError, match="leased_while_running"), transaction.atomic():
        Job.objects.filter(pk=running.pk).update(state=State.PENDING)
    with pytest.raises(IntegrityError, match="leased_while_running"), transaction.atomic():
        Job.objects.filter(pk=pending.pk).update(state=State.RUNNING)


@pytest.mark.django_db
@pytest.mark.parametrize("name", FENCE_COLUMNS)
@pytest.mark.parametrize("update_fields", [False, True])
def test_saving_an_existing_row_never_writes_a_fence_column(name, update_fields):
    account = AccountFactory(leased=True)
    before = whole(account)
    stale = Account.objects.get()
    values = {"epoch": 99, "lease_token": uuid.uuid4(), "leased_by": "x", "lease_expires_at": Now()}
    setattr(stale, name, values[name])

    stale.balance = 7
    stale.save(update_fields=[name, "balance"] if update_fields else None)

    assert whole(account) == before | {"balance": 7}


@pytest.mark.django_db
def test_saving_only_fence_columns_writes_nothing():
    account = AccountFactory(leased=True)
    before = whole(account)
    account.epoch = 99

    account.save(update_fields=["epoch", "lease_token"])

    assert whole(account) == before


@pytest.mark.django_db
@pytest.mark.parametrize("force_update", [False, True])
def test_saving_a_fresh_instance_over_an_existing_row_never_writes_the_fence(force_update):
    account = AccountFactory(leased=True)
    before = whole(account)

    Account(pk=account.pk, balance=3, epoch=0).save(force_update=force_update)

    assert whole(account) == before | {"balance": 3}


@pytest.mark.django_db
def test_save_still_refuses_to_update_a_row_that_is_gone():
    account = AccountFactory()
    Account.objects.all().delete()

    with pytest.raises(
        (ObjectDoesNotExist, Exception), match=r"did not affect any rows|NotUpdated"
    ):
        account.save(force_update=True)


@isolate_apps("tests.fenced_app")
def test_check_names_a_model_whose_meta_lost_the_constraint():
    class Forgetful(FencedModel):
        class Meta:
            app_label = "fenced_app"

    [error] = Forgetful.check()

    assert error.id == "leasejobs.E010"
    assert "fenced_app_forgetful_lease_whole" in error.msg
    assert "FencedModel.Meta" in error.hint


@isolate_apps("tests.fenced_app")
def test_check_is_content_with_an_inherited_meta_and_with_none():
    class Inheriting(FencedModel):
        class Meta(FencedModel.Meta):
            app_label = "fenced_app"

    class Plain(Account):
        class Meta:
            app_label = "fenced_app"
            proxy = True

    assert Inheriting.check() == []
    assert Plain.check() == []
    assert Account.check() == []
    assert Job.check() == []


@isolate_apps("tests.fenced_app")
def test_check_is_content_with_a_child_table_of_a_fenced_model():
    class Parent(FencedModel):
        class Meta(FencedModel.Meta):
            app_label = "fenced_app"

    class Child(Parent):
        note = models.TextField()

        class Meta:
            app_label = "fenced_app"

    assert Child.check() == []


# the clock of the statement


def test_source_never_says_now_or_current_timestamp():
    banned = re.compile(r"\b(?<!_)now\(\)|\bcurrent_timestamp\b|\btransaction_timestamp\b", re.I)
    found = []
    for path in Path(leasejobs.__file__).parent.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            # Django's Now() is STATEMENT_TIMESTAMP() on PostgreSQL; prose may name the banned.
            code = line.split("#")[0].replace("Now()", "").replace("timezone.now()", "")
            if banned.search(code) and "`now()`" not in code and "never `now()" not in code:
                found.append(f"{path.name}:{number}: {line.strip()}")

    assert found == []


@two_sessions
def test_sql_of_every_verb_uses_the_statements_clock_only():
    with CaptureQueriesContext(connection) as queries:
        enqueue_many([
            tasks.noop.using(key="k", run_after=timedelta(0)).prepare(),
            tasks.noop.using(key="k", key_scope="live").prepare(),
            tasks.noop.using(key="q", key_scope="queued").prepare(),
            tasks.noop.prepare(),
        ])  # fmt: skip
        recovery.promote()
        outcomes = [
            Succeeded(1), Failed(Failure("x")), Snoozed(timedelta(0)), Continued(2), Released(),
        ]  # fmt: skip
        for outcome in outcomes:
            leases.end(lease_of(JobFactory(running=True)), outcome)
        for _, lease in claiming.claim_jobs("default", holder=HOLDER, duration=LEASE, limit=10):
            renew([lease])
            leases.record_progress(lease, 1, 2)
            with fenced(lease) as row:
                leases.record_checkpoint(row, 1)
        job = JobFactory(running=True)
        assert leases.complete_many([(job, lease_of(job))], {job.pk: 1}) == {
            job.pk: Written.WRITTEN
        }
        leases.complete_many([(job, lease_of(job))], {})
        leases.record_late(lease_of(job), "failed")
        expired = JobFactory(running=True)
        expire_lease(expired)
        recovery.recover_expired()
        recovery.settle_dead(HOLDER, {})
        claim_accounts()
        Job.objects.due().exists()
    statements = [query["sql"] for query in queries]

    banned = re.compile(r"\bnow\(\)|\bcurrent_timestamp\b|\btransaction_timestamp\b", re.I)
    assert len(statements) > 40
    assert [sql for sql in statements if banned.search(sql)] == []


def session_timeouts() -> tuple[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('statement_timeout'),"
            " current_setting('idle_in_transaction_session_timeout')"
        )
        return cursor.fetchone()


def wait_until_gone(pid: int) -> None:
    """Return once the server has ended a session by itself."""
    with second_session(autocommit=True) as observer:
        for _ in range(2000):
            if not observer.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]
            ).fetchone():
                return
            observer.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("the session is still there")


def complete_row(row: Job) -> bool:
    leases.write_end(row, policy.after(Succeeded(1), row, 0))
    return True


def lose_reply_of_commit(monkeypatch) -> None:
    """Let the next COMMIT happen on the server and its reply never arrive."""
    wrapper = type(connections["default"])
    commit = wrapper._commit

    def commit_and_lose_the_link(self):
        commit(self)
        monkeypatch.setattr(wrapper, "_commit", commit)
        self.connection.pgconn.finish()
        with self.wrap_database_errors:
            raise psycopg.OperationalError(
                "consuming input failed: server closed the connection unexpectedly"
            )

    monkeypatch.setattr(wrapper, "_commit", commit_and_lose_the_link)


def cut_the_link() -> None:
    """Let the network between this thread's session and the server go away, unannounced."""
    with socket.socket(fileno=os.dup(connection.connection.fileno())) as link:
        link.shutdown(socket.SHUT_RDWR)
