"""Every query of the hot path runs on the index that was made for it."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasejobs import claiming, counting, leases, operations, recovery
from leasejobs.fencing import Lease, local_clock
from leasejobs.models import Job
from leasejobs.renewal import renew
from leasejobs.worker import chores, heads
from tests.factories import HOLDER, LEASE

TOKEN = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def full_table(django_db_setup: None, django_db_blocker: Any) -> Any:
    """Fill the table once: 60,000 finished rows, and 1,000 of each kind that somebody looks for."""
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO leasejobs_job
                    (task, queue, priority, args, kwargs, key_scope, state, due_at, created_at,
                     max_attempts, max_crashes, crashes, on_crash, backoff, lease_token, leased_by,
                     lease_expires_at)
                SELECT 'tests.tasks.noop', 'queue-' || n %% 3, n %% 5, '[]', '{}', 'always', kind,
                    statement_timestamp() + (CASE WHEN kind = 1 AND n %% 2 = 0 THEN 1 ELSE -1 END)
                        * n * interval '1 s',
                    statement_timestamp(), 8, 3, suspect, 'retry', '{}',
                    CASE WHEN kind = 3 THEN %s::uuid END,
                    CASE WHEN kind = 3 THEN %s ELSE '' END,
                    CASE WHEN kind = 3 THEN statement_timestamp()
                        + (CASE WHEN n %% 2 = 0 THEN 1 ELSE -1 END) * interval '1 hour' END
                FROM (VALUES (5, 0, 60000), (2, 0, 1000), (2, 1, 1000), (1, 0, 1000), (3, 0, 1000))
                    AS kinds (kind, suspect, count), generate_series(1, count) AS n
                """,
                [TOKEN, HOLDER],
            )
            cursor.execute("ANALYZE leasejobs_job")
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE leasejobs_job, leasejobs_attempt RESTART IDENTITY CASCADE")
            cursor.execute("ANALYZE leasejobs_job")


def claim(**options: Any) -> None:
    claiming.claim_jobs("queue-1", holder=HOLDER, duration=LEASE, limit=100, **options)


def renew_one() -> None:
    row = Job.objects.running().filter(lease_token=TOKEN).first()
    assert row is not None
    assert row.lease_expires_at is not None
    renew([Lease(Job, row.pk, 1, TOKEN, HOLDER, row.lease_expires_at, LEASE, local_clock() + 30)])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("act", "index"),
    [
        (claim, "job_claim"),
        (lambda: claim(stream=claiming.Stream.SUSPECT), "job_suspect"),
        (lambda: heads.heads_of(claiming.Stream.PLAIN), "job_claim"),
        (lambda: heads.heads_of(claiming.Stream.SUSPECT), "job_suspect"),
        (chores._seconds_to_next_due, "job_due"),
        (lambda: recovery.promote(100), "job_due"),
        (lambda: recovery.recover_expired(5), "job_leased"),
        (lambda: recovery.settle_dead("nobody", {}), "job_leased"),
        (counting.survey, "job_dead"),
        (lambda: operations.prune(100, after=2000), "leasejobs_job_pkey"),
    ],
    ids=[
        "claim",
        "suspects",
        "queues",
        "suspect queues",
        "next due",
        "promote",
        "recover",
        "settle",
        "status",
        "prune",
    ],
)
def test_query_uses_the_index_made_for_it(
    full_table: None, act: Callable[[], Any], index: str
) -> None:
    with CaptureQueriesContext(connection) as captured:
        act()

    plans = [plan_of(query["sql"]) for query in captured if "leasejobs_job" in query["sql"]]
    assert any(index in plan for plan in plans)
    assert not [plan for plan in plans if "Seq Scan on leasejobs_job" in plan]


@pytest.mark.django_db
@pytest.mark.parametrize("act", [renew_one], ids=["renew"])
def test_query_by_key_never_scans_the_table(full_table: None, act: Callable[[], Any]) -> None:
    with CaptureQueriesContext(connection) as captured:
        act()

    plans = [plan_of(query["sql"]) for query in captured if "leasejobs_job" in query["sql"]]
    assert plans
    assert not [plan for plan in plans if "Seq Scan on leasejobs_job" in plan]


@pytest.mark.django_db
def test_batch_of_outcomes_is_written_by_primary_key(full_table: None) -> None:
    held = claiming.claim_jobs("queue-1", holder=HOLDER, duration=timedelta(seconds=30), limit=100)

    with CaptureQueriesContext(connection) as captured:
        leases.complete_many(held, {held[0][0].pk: "a result"})

    plans = [plan_of(query["sql"]) for query in captured if "leasejobs_job" in query["sql"]]
    assert len(plans) == 2
    assert all("leasejobs_job_pkey" in plan for plan in plans)
    assert not [plan for plan in plans if "Seq Scan on leasejobs_job" in plan]


@pytest.mark.django_db
@pytest.mark.field_case("B072")
def test_claim_finds_its_rows_though_the_statistics_are_those_of_an_empty_table(
    full_table: None,
) -> None:
    with connection.cursor() as cursor:  # undone with the test's transaction
        cursor.execute("SELECT current_setting('is_superuser')")
        if cursor.fetchone() != ("on",):
            pytest.skip("only a superuser may write statistics")
        cursor.execute(
            "UPDATE pg_class SET reltuples = 0, relpages = 0 WHERE relname = 'leasejobs_job'"
        )

    with CaptureQueriesContext(connection) as captured:
        claim()

    assert "job_claim" in plan_of(captured[0]["sql"])


def plan_of(sql: str) -> str:
    """Return the plan of a statement; of what is no plain statement (SAVEPOINT), nothing."""
    if not sql.lstrip().upper().startswith(("SELECT", "UPDATE", "WITH", "INSERT")):
        return ""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(row[0] for row in cursor.fetchall())
