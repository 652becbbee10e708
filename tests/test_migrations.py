"""The migrations lead to the models, to zero with rows in place, and back."""

import pytest
from django.core.management import call_command
from django.db import connection

from leasejobs.models import Attempt, Job
from tests import tasks


def schema() -> list[tuple[str, ...]]:
    """Return columns, constraints, indexes and storage options of the core's tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 'column', table_name, column_name, data_type, is_nullable,"
            " coalesce(column_default, '') FROM information_schema.columns"
            " WHERE table_name LIKE 'leasejobs\\_%%'"
            " UNION ALL SELECT 'constraint', conrelid::regclass::text, conname,"
            " pg_get_constraintdef(oid), '', '' FROM pg_constraint"
            " WHERE conrelid::regclass::text LIKE 'leasejobs\\_%%'"
            " UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes"
            " WHERE tablename LIKE 'leasejobs\\_%%'"
            " UNION ALL SELECT 'options', relname, coalesce(reloptions::text, ''), '', '', ''"
            " FROM pg_class WHERE relkind = 'r' AND relname LIKE 'leasejobs\\_%%' ORDER BY 1, 2, 3"
        )
        return cursor.fetchall()


@pytest.mark.django_db
def test_models_and_migrations_do_not_drift(capsys):
    call_command("makemigrations", "--check", "--dry-run", "leasejobs")

    assert "No changes detected" in capsys.readouterr().out


@pytest.mark.django_db(transaction=True)
def test_migrations_go_to_zero_with_rows_in_place_and_back():
    before = schema()
    job_id = tasks.noop.enqueue().job_id
    job = Job.objects.get(pk=job_id)
    Attempt.objects.create(
        job=job, epoch=1, number=1, worker="somebody", ended_at=job.created_at, outcome="lost"
    )

    try:
        call_command("migrate", "leasejobs", "zero", verbosity=0)
        at_zero = schema()
    finally:
        call_command("migrate", verbosity=0)

    assert at_zero == []
    assert schema() == before
    assert not Job.objects.exists()
    assert tasks.noop.enqueue().created
