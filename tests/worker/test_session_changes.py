"""Which statements make a session unfit for the next job; told by their text."""

import pytest
from django.db import connections

from leasejobs.worker import sessions
from tests.worker.sessions_of_a_thread import in_worker_thread

CHANGING = (
    "SET statement_timeout = 1000",
    "set search_path to x",
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ALL",
    "SELECT set_config('search_path', 'x', false)",
    "SELECT pg_advisory_lock(7)",
    "SELECT pg_try_advisory_lock_shared(7)",
    "LISTEN somewhere",
    "CREATE TEMP TABLE t (a int)",
    "CREATE LOCAL TEMPORARY TABLE t (a int)",
    "SELECT 1; SET statement_timeout = 1000",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "DO $$ BEGIN END $$",
)
HARMLESS = (
    "SELECT 1",
    "UPDATE leasejobs_queue SET name = 'a' WHERE false",
    "INSERT INTO leasejobs_queue (name) SELECT 'SET' WHERE false",
    "SET LOCAL statement_timeout = 1000",
    "SET CONSTRAINTS ALL IMMEDIATE",
    "SELECT set_config('statement_timeout', '1000', true)",
    "SELECT pg_advisory_xact_lock(7)",
    "SELECT pg_try_advisory_xact_lock(7)",
    "SAVEPOINT a",
)


@pytest.mark.parametrize("statement", CHANGING)
def test_statement_that_lasts_is_recognised(statement):
    assert sessions._CHANGES_SESSION.search(statement)


@pytest.mark.parametrize("statement", HARMLESS)
def test_statement_that_ends_with_its_transaction_is_not(statement):
    assert not sessions._CHANGES_SESSION.search(statement)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["wrapper", "raw connection", "raw cursor"])
def test_changed_session_is_dropped_whichever_way_it_was_changed(how):
    def act() -> tuple[int, int]:
        connection = connections["default"]
        connection.ensure_connection()
        before = connection.connection.info.backend_pid
        statement = "SELECT pg_advisory_lock(4711)"
        if how == "wrapper":
            with connection.cursor() as cursor:
                cursor.execute(statement)
        elif how == "raw connection":
            connection.connection.execute(statement)
        else:
            connection.connection.cursor().execute(statement)
        sessions.discard_dirty()
        connections["default"].ensure_connection()
        return before, connections["default"].connection.info.backend_pid

    before, after = in_worker_thread(act)

    assert before != after


@pytest.mark.django_db(transaction=True)
def test_session_that_was_only_used_is_kept():
    def act() -> tuple[int, int]:
        connection = connections["default"]
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            before = connection.connection.info.backend_pid
        sessions.discard_dirty()
        return before, connections["default"].connection.info.backend_pid

    before, after = in_worker_thread(act)

    assert before == after
