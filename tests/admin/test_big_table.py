"""The pages of a big table: few statements, none of which scans it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from leasejobs.admin import filters
from leasejobs.models import Job

pytestmark = pytest.mark.django_db

MOST_STATEMENTS = 12
ROWS = 40_000
LISTS = {name: reverse(f"admin:leasejobs_{name}_changelist")
         for name in ("job", "failedjob", "parkedjob")}  # fmt: skip


@pytest.fixture(scope="module")
def full_table(django_db_setup: None, django_db_blocker: Any) -> Any:
    """Fill the table once: nearly all rows are finished, some of each other kind among them."""
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO leasejobs_job
                    (task, queue, priority, args, kwargs, key, key_scope, state, due_at, created_at,
                     finished_at, max_attempts, max_crashes, on_crash, backoff)
                SELECT 'tests.tasks.task_' || n %% 7, 'queue-' || n %% 3, 0,
                    to_jsonb(ARRAY[repeat('x', 300)]), '{}', CASE WHEN n %% 10 = 0 THEN 'k' || n
                    ELSE '' END, 'always',
                    CASE WHEN n %% 200 = 0 THEN 6 WHEN n %% 200 = 1 THEN 8 WHEN n %% 200 = 2 THEN 2
                         WHEN n %% 200 = 3 THEN 1 ELSE 5 END,
                    statement_timestamp(), statement_timestamp(), statement_timestamp(), 8, 3,
                    'retry', '{}'
                FROM generate_series(1, %s) AS n
                """,
                [ROWS],
            )
            cursor.execute("VACUUM ANALYZE leasejobs_job")
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE leasejobs_job, leasejobs_attempt RESTART IDENTITY CASCADE")
            cursor.execute("ANALYZE leasejobs_job")


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look through as small a part of this table as of one with millions of rows."""
    monkeypatch.setattr(filters, "WINDOW", 1_000)


def newest() -> Job:
    job: Job = Job.objects.order_by("-pk")[0]
    return job


@pytest.mark.parametrize(
    "address",
    [
        lambda: LISTS["job"],
        lambda: LISTS["job"] + "?p=2",
        lambda: LISTS["job"] + "?p=40",
        lambda: LISTS["job"] + "?state=failed",
        lambda: LISTS["job"] + "?state=parked",
        lambda: LISTS["job"] + "?state=running",
        lambda: LISTS["job"] + "?state=pending",
        lambda: LISTS["job"] + "?state=succeeded",
        lambda: LISTS["job"] + "?state=scheduled&queue=queue-1&task=tests.tasks.task_1",
        lambda: LISTS["job"] + "?queue=queue-2",
        lambda: LISTS["job"] + "?queue=no-such-queue",
        lambda: LISTS["job"] + "?task=tests.tasks.task_3",
        lambda: LISTS["job"] + "?o=2",
        lambda: LISTS["job"] + f"?q={newest().pk - ROWS + 10}",
        lambda: LISTS["job"] + "?q=k20",
        lambda: LISTS["job"] + "?q=tests.tasks.task_2",
        lambda: LISTS["failedjob"],
        lambda: LISTS["failedjob"] + "?queue=queue-1",
        lambda: LISTS["failedjob"] + "?q=tests.tasks.task_2",
        lambda: LISTS["parkedjob"],
        lambda: reverse("admin:leasejobs_job_change", args=[newest().pk]),
        lambda: reverse("admin:leasejobs_job_change", args=[newest().pk - ROWS + 10]),
        lambda: reverse("admin:leasejobs_job_operate", args=["retry"]) + f"?rows={newest().pk}:0",
    ],
)  # fmt: skip
def test_page_needs_few_statements_and_no_scan(
    full_table: None, admin_client: Client, address: Callable[[], str]
) -> None:
    page = address()

    with CaptureQueriesContext(connection) as captured:
        answer = admin_client.get(page)

    assert answer.status_code == 200
    statements = [query["sql"] for query in captured]
    assert len(statements) <= MOST_STATEMENTS
    scans = [sql for sql in statements if scans_the_table(sql)]
    assert scans == []


@pytest.mark.parametrize(
    "page", [LISTS["failedjob"], LISTS["parkedjob"], LISTS["job"] + "?state=failed"]
)
def test_dead_jobs_are_found_by_their_index(
    full_table: None, admin_client: Client, page: str
) -> None:
    with CaptureQueriesContext(connection) as captured:
        admin_client.get(page)

    looked_up = [sql for query in captured if '"state" = ' in (sql := query["sql"])]
    assert looked_up
    assert all("job_dead" in plan_of(sql) for sql in looked_up)


def test_page_far_beyond_the_end_leads_back(full_table: None, admin_client: Client) -> None:
    with CaptureQueriesContext(connection) as captured:
        answer = admin_client.get(LISTS["job"], {"p": "200000"})

    assert answer.status_code == 302
    assert not [sql for query in captured if scans_the_table(sql := query["sql"])]
    assert not [query for query in captured if "OFFSET 199999" in query["sql"]]


@pytest.mark.parametrize("name", ["job_overview", "queue_changelist"])
def test_counting_pages_scan_nothing(full_table: None, admin_client: Client, name: str) -> None:
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(reverse(f"admin:leasejobs_{name}")).status_code == 200

    assert not [sql for query in captured if scans_the_table(sql := query["sql"])]


def scans_the_table(sql: str) -> bool:
    if '"leasejobs_job"' not in sql or not re.match(r"\s*(SELECT|WITH)", sql, re.I):
        return False
    return "Seq Scan on leasejobs_job" in plan_of(sql)


def plan_of(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(line for (line,) in cursor.fetchall())
