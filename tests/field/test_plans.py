"""Plans over big tables: what the claim reads, whatever the table has been through."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import AddIndex
from django.test.utils import CaptureQueriesContext

from leasejobs import claiming
from leasejobs.models import Job
from tests.factories import HOLDER, LEASE
from tests.two_connections import second_session

ROWS = 20_000
FEW_BUFFERS = 200

INSERT = """
INSERT INTO leasejobs_job
    (task, queue, priority, args, kwargs, key_scope, state, due_at, created_at, max_attempts,
     max_crashes, on_crash, backoff)
SELECT 'tests.tasks.noop', %s, n %% 5, '[]', '{}', 'always', %s,
    statement_timestamp() + %s * n * interval '1 s', statement_timestamp(), 8, 3, 'retry', '{}'
FROM generate_series(1, %s) AS n
"""
PENDING, SCHEDULED, SUCCEEDED = 2, 1, 5


def insert(queue: str, state: int, rows: int = ROWS, sign: int = -1) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [queue, state, sign, rows])


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """Leave statistics behind that are those of an empty table."""
    execute("ALTER TABLE leasejobs_job SET (autovacuum_enabled = off)")
    execute("ANALYZE leasejobs_job")
    yield
    execute("TRUNCATE leasejobs_job, leasejobs_attempt RESTART IDENTITY CASCADE")
    execute("ALTER TABLE leasejobs_job RESET (autovacuum_enabled)")
    execute("ANALYZE leasejobs_job")


SHAPES: dict[str, list[tuple[str, int, int]]] = {
    "all finished": [("default", SUCCEEDED, -1)],
    "all ready": [("default", PENDING, -1)],
    "all later": [("default", SCHEDULED, 1)],
    "all ready in another queue": [("other", PENDING, -1)],
    "some of each": [("default", SUCCEEDED, -1), ("other", PENDING, -1), ("default", PENDING, -1)],
}


@pytest.mark.parametrize("is_analyzed", [True, False], ids=["analyzed", "as if empty"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.field_case("B072")
def test_claim_reads_little_and_sorts_nothing_in_any_shape(emptied, shape, is_analyzed):
    for queue, state, sign in SHAPES[shape]:
        insert(queue, state, ROWS, sign)
    if is_analyzed:
        execute("ANALYZE leasejobs_job")

    for stream in claiming.Stream:
        plan = plan_of_claim(stream=stream, limit=10)

        assert "Seq Scan on leasejobs_job" not in plan, plan
        assert "Sort" not in plan, plan
        assert buffers(plan) < FEW_BUFFERS, plan


@pytest.mark.field_case("B059")
def test_dead_entries_under_a_snapshot_cost_a_claim_little_behind_its_cursor(emptied):
    insert("default", PENDING)
    execute("ANALYZE leasejobs_job")
    with second_session() as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM leasejobs_job")
        execute(
            "UPDATE leasejobs_job SET state = 5 WHERE id IN (SELECT id FROM leasejobs_job"
            f" WHERE state = 2 ORDER BY priority, due_at, id LIMIT {ROWS - 1000})"
        )
        last = Job.objects.filter(state=SUCCEEDED).order_by("priority", "due_at", "id").last()

        from_its_head = plan_of_claim(limit=10)
        behind = plan_of_claim(limit=10, behind=last)

    assert buffers(behind) < FEW_BUFFERS < buffers(from_its_head)
    assert "job_claim" in behind


def plan_of_claim(**options: Any) -> str:
    """Return the plan, with the buffers it read, of a claim that is rolled back."""
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        claiming.claim_jobs("default", holder=HOLDER, duration=LEASE, **options)
        transaction.set_rollback(True)
    [sql] = [query["sql"] for query in captured if query["sql"].startswith("UPDATE")]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF) {sql}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
        transaction.set_rollback(True)
    return plan


def buffers(plan: str) -> int:
    """Return how many buffers selecting the rows took: of the update itself each row needs some."""
    lines = plan.splitlines()
    [at] = [number for number, line in enumerate(lines) if "InitPlan" in line][:1]
    [line] = [line for line in lines[at:] if "Buffers:" in line][:1]
    return sum(int(count) for count in re.findall(r"(?:hit|read)=(\d+)", line))


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B024")
def test_migrations_leave_no_invalid_index_and_may_be_run_again():
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
        assert cursor.fetchall() == []
        # What a build that was cut off leaves behind.
        cursor.execute("CREATE INDEX job_dead_building ON leasejobs_job (id) WHERE state = 99")
    call_command("migrate", "leasejobs", "0002", verbosity=0)
    call_command("migrate", "leasejobs", verbosity=0)

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relname LIKE '%%_building'")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'job_dead'")
        assert "99" not in cursor.fetchone()[0]


@pytest.mark.django_db
@pytest.mark.field_case("B024")
def test_no_migration_after_the_first_locks_the_big_tables_for_long():
    loader = MigrationLoader(connection, replace_migrations=False)
    later = [
        migration
        for (app, _), migration in sorted(loader.disk_migrations.items())
        if app == "leasejobs" and not migration.initial
    ]
    assert later
    for migration in later:
        for operation in migration.operations:
            if isinstance(operation, AddIndex):
                assert operation.model_name not in ("job", "attempt"), migration
        for statement in loader.collect_sql([(migration, False)]):
            text = " ".join(statement.upper().split())
            big = "LEASEJOBS_JOB" in text or "LEASEJOBS_ATTEMPT" in text
            if big and "INDEX" in text and not text.startswith(("ALTER", "--", "COMMENT")):
                assert "CONCURRENTLY" in text, statement
            if big and "ADD CONSTRAINT" in text:
                assert "NOT VALID" in text, statement
            if big and "ADD COLUMN" in text:
                assert "NOT NULL" not in text or "DEFAULT" in text, statement
            assert not (big and " TYPE " in text and "ALTER COLUMN" in text), statement
