"""The server under load, in trouble, and what a worker's sessions do to it."""

import contextlib
import os
import queue
import random
import signal
import time
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, connections

from leasejobs import enqueue_many, wakeup
from leasejobs.models import Attempt, Job
from leasejobs.recovery import recover_expired
from leasejobs.states import State
from leasejobs.wakeup import Listener, Wake
from tests import tasks as plain
from tests.field import tasks
from tests.proxy import Proxy, proxied
from tests.two_connections import own_pid, together
from tests.worker.fleet import listening_backends, outcomes, until, until_all, until_state


@pytest.mark.field_case("B034")
def test_bulk_writers_workers_and_sweeps_do_not_deadlock(fleet):
    for _ in range(2):
        fleet.start("--lease=1", "--poll=0.1", "--threads=2")
    before = _deadlocks()
    end = time.monotonic() + 4
    keys = [f"key-{number}" for number in range(200)]

    def enqueue() -> int:
        created = 0
        while time.monotonic() < end:
            once = plain.noop.using(key_scope="live")
            shuffled = random.sample(keys, len(keys))
            created += sum(
                item.created
                for item in enqueue_many([once.using(key=key).prepare() for key in shuffled])
            )
        return created

    def sweep() -> int:
        while time.monotonic() < end:
            recover_expired()
            time.sleep(0.1)
        return 0

    created = sum(together(enqueue, enqueue, enqueue, enqueue, sweep))

    until_all(State.SUCCEEDED)
    assert _deadlocks() == before
    assert Job.objects.count() == created
    assert Attempt.objects.filter(outcome="succeeded").count() == created


def _deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


@pytest.mark.crash
@pytest.mark.field_case("B039")
def test_server_that_is_read_only_for_a_while_is_survived(fleet):
    worker = fleet.start_ready("--poll=0.2", LOG_LEVEL="WARNING")
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)
    child = worker.child()
    jobs = [item.job_id for item in enqueue_many([plain.run_and_sleep.prepare(0.05)] * 60)]
    until(lambda: Job.objects.filter(state=State.SUCCEEDED).count() > 5)

    with _read_only():
        until(lambda: "database_unavailable" in worker.output())
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 1.5)
        before = child.cpu_times().user
        until(lambda: time.monotonic() - began > 2.5)
        spent = child.cpu_times().user - before
    until_all(State.SUCCEEDED)

    assert spent < 0.7
    assert [outcomes(job_id)[-1] for job_id in jobs] == ["succeeded"] * len(jobs)
    assert set(Job.objects.values_list("attempts", "crashes")) == {(1, 0)}
    assert worker.child().pid == child.pid


@contextlib.contextmanager
def _read_only() -> Iterator[None]:
    """End every session on the test's database but its own; those opened now are read-only.

    Of this database alone: others of the server may be in use. A session keeps what it was opened
    with, so a worker that stays with its own goes on failing after the block.
    """
    target = connection.get_connection_params() | {"dbname": "postgres"}
    known = {key: value for key, value in target.items() if isinstance(value, str | int)}
    name = connection.settings_dict["NAME"]
    setting = f'ALTER DATABASE "{name}" {{}} default_transaction_read_only'
    with psycopg.connect(autocommit=True, **known) as administrator:
        administrator.execute(f"{setting.format('SET')} = on")
        try:
            administrator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND pid <> %s",
                [name, own_pid()],
            )
            yield
        finally:
            administrator.execute(setting.format("RESET"))


@pytest.mark.field_case("B106")
def test_listener_is_in_no_transaction_while_a_job_runs(fleet):
    fleet.start_ready("--lease=60")
    job_id = tasks.sleep_on_the_server.enqueue(2).job_id
    until_state(job_id, State.RUNNING)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, xact_start FROM pg_stat_activity WHERE pid = ANY(%s)",
            [listening_backends()],
        )
        assert cursor.fetchall() == [("idle", None)]


@pytest.mark.crash
@pytest.mark.field_case("B106")
def test_frozen_listener_keeps_nobody_from_enqueueing(fleet):
    worker = fleet.start_ready("--lease=60")
    child = worker.child()

    os.kill(child.pid, signal.SIGSTOP)
    try:
        for number in range(200):
            plain.noop.using(priority=number % 100).enqueue()
        assert Job.objects.filter(state=State.PENDING).count() == 200
    finally:
        os.kill(child.pid, signal.SIGCONT)
    until_all(State.SUCCEEDED)


@pytest.fixture
def listening(transactional_db, monkeypatch) -> Iterator[tuple[Proxy, "queue.Queue[Wake]"]]:
    """Let a listener listen by way of a proxy; yield the proxy and what wakes the listener."""
    monkeypatch.setattr(wakeup, "_READ_SECONDS", 0.05)
    monkeypatch.setattr(wakeup, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(wakeup, "_ANSWER_SECONDS", 1.0)
    heard: queue.Queue[Wake] = queue.Queue()
    connection.ensure_connection()  # the test's own goes past the proxy
    with proxied() as proxy:
        host, port = proxy.address
        monkeypatch.setitem(connections.settings["default"], "HOST", host)
        monkeypatch.setitem(connections.settings["default"], "PORT", str(port))
        listener = Listener(heard.put)
        listener.start()
        assert heard.get(timeout=10) == Wake()
        yield proxy, heard
        listener.stop()
        listener.join(10)
        assert not listener.is_alive()


@pytest.mark.field_case("B008")
def test_listener_whose_link_went_silent_listens_again(listening):
    proxy, heard = listening

    assert proxy.silence(b"LISTEN") == 1

    assert heard.get(timeout=10) == Wake()  # connected anew, and one look for what was missed
    plain.noop.enqueue()
    assert heard.get(timeout=10) == Wake("default", 0)


@pytest.mark.field_case("B008")
def test_listener_that_asks_whether_the_server_is_there_misses_nothing(listening):
    proxy, heard = listening
    until(lambda: proxy.sent_count(b"LISTEN") >= 4)
    for number in range(30):
        plain.noop.using(queue_name=f"queue-{number}").enqueue()
        assert heard.get(timeout=10) == Wake(f"queue-{number}", 0)
        time.sleep(random.random() * 0.1)  # the race is what this is about

    assert heard.empty()
    assert proxy.count == 1  # it stayed on its first session
