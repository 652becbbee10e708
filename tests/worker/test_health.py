"""What a worker answers on its port, and that it does when its database or a child is gone."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from example_project.postgres import PROJECT
from leasejobs.metrics import METRICS
from leasejobs.models import Queue
from leasejobs.states import State
from leasejobs.worker import sampling
from leasejobs.worker.health import Monitor, Probes
from leasejobs.worker.sampling import Asked, Sample
from tests import tasks as plain
from tests.factories import JobFactory, job_in
from tests.worker import tasks
from tests.worker.fleet import (
    TIMEOUT_SECONDS,
    Fleet,
    Worker,
    state_of,
    until,
    until_all,
    until_noted,
)

IDLE = Sample(0, 0.0, 0, 0, 0, {}, 0, 0.0)


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Return (status, body)."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def value(port: int, name: str, **labels: str) -> float:
    """Return the sum of the samples of that name that have these labels."""
    status, text = get(port, "/metrics")
    assert status == 200, text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def names(port: int) -> set[str]:
    families = text_string_to_metric_families(get(port, "/metrics")[1])
    return {sample.name for family in families for sample in family.samples}


def port_of(worker: Worker) -> int:
    """Return the port a worker took, waiting for it."""
    return int(until(lambda: re.search(r"on port (\d+)", worker.output()))[1])


@pytest.fixture
def monitor() -> Iterator[Callable[..., Monitor]]:
    """Return a function that makes and serves a monitor; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(
            turned_at: Callable[[], float] = time.monotonic,
            rounds_at: Callable[[], list[float]] = lambda: [time.monotonic()],
            **options: Any,
        ) -> Monitor:
            made = stack.enter_context(Monitor(0, **{"sample": lambda: IDLE, **options}))
            made.serve(turned_at, rounds_at, patience=1)
            return made

        yield make


@pytest.fixture
def away(transactional_db, monkeypatch) -> Callable[[int], None]:
    """Return a function that sends new sessions to a port of this host."""

    def move(port: int) -> None:
        there = {**connections.settings["default"], "HOST": "127.0.0.1", "PORT": port}
        monkeypatch.setitem(connections.settings, "default", there)

    return move


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def probes(**changes: Any) -> Probes:
    now = time.monotonic()
    fields = {
        "turned_at": lambda: now, "rounds_at": lambda: [now, now], "patience": 1.0,
        "answers": lambda: True, "stuck": 60.0,
    }  # fmt: skip
    return Probes(**{**fields, **changes})


def test_worker_whose_loop_turns_is_healthy():
    assert probes().sickness() == ""


def test_worker_whose_loop_stands_still_is_not_healthy():
    assert probes(turned_at=lambda: time.monotonic() - 61).sickness()


def test_worker_whose_children_had_their_rounds_is_ready():
    assert probes().unreadiness() == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rounds_at": lambda: [time.monotonic(), 0.0]}, "1 of 2"),
        ({"rounds_at": lambda: [time.monotonic() - 2]}, "1 of 1"),
        ({"rounds_at": list}, "no child"),
        ({"answers": lambda: None}, "database"),
    ],
)
def test_worker_is_not_ready_and_says_why(changes, reason):
    assert reason in probes(**changes).unreadiness()


@pytest.mark.django_db(transaction=True)
def test_paths_are_answered_and_no_other(monitor):
    port = monitor().port

    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")
    assert get(port, "/metrics")[0] == 200
    assert get(port, "/")[0] == 404


def test_unready_worker_answers_503(monitor):
    port = monitor(rounds_at=list).port

    assert get(port, "/readyz") == (503, "no child is at work\n")


def test_stuck_worker_answers_503(monitor):
    port = monitor(turned_at=lambda: time.monotonic() - 1_000).port

    assert get(port, "/healthz")[0] == 503


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
def test_port_is_reached_by_both_families(monitor):
    port = monitor().port

    assert get(port, "/healthz", "[::1]")[0] == 200
    assert get(port, "/healthz", "127.0.0.1")[0] == 200


@pytest.mark.field_case("B019")
def test_port_is_reached_on_a_host_without_ipv6(monitor, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    assert get(monitor().port, "/healthz")[0] == 200


def test_closed_monitor_gives_its_port_and_its_directories_back():
    monitor = Monitor(0)
    path = Path(monitor.child_environment("a")["PROMETHEUS_MULTIPROC_DIR"])
    monitor.serve(time.monotonic, list, 1)
    assert path.exists()

    monitor.close()

    assert not path.parent.exists()
    Monitor(monitor.port).close()


def test_client_that_hangs_up_leaves_no_trace(monitor, capfd):
    port = monitor().port

    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert get(port, "/healthz")[0] == 200

    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_port_in_use_is_an_error_before_any_work(host, monkeypatch):
    def never(*_: Any) -> None:
        raise AssertionError("a supervisor was started")

    monkeypatch.setattr("leasejobs.worker.supervisor.Supervisor.run", never)
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(CommandError, match=f"--metrics-port {port} .*in use"):
            call_command("runleaseworker", f"--metrics-port={port}")


@pytest.mark.parametrize("port", ["-1", "65536", "http", ""])
def test_wrong_port_is_refused(port):
    with pytest.raises(CommandError, match="metrics-port"):
        call_command("runleaseworker", f"--metrics-port={port}")


@pytest.mark.field_case("B019")
def test_workers_cannot_share_a_port(fleet: Fleet):
    first = fleet.start_ready("--metrics-port=0")
    port = port_of(first)
    others = [
        subprocess.Popen(
            [sys.executable, "manage.py", "runleaseworker", f"--metrics-port={port}"],
            cwd=PROJECT, env=fleet.environment, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip

    for other in others:
        _, errors = other.communicate(timeout=TIMEOUT_SECONDS)
        assert other.returncode == 1
        assert f"--metrics-port {port}" in errors
        assert "Traceback" not in errors
    assert get(port, "/healthz")[0] == 200


@pytest.mark.field_case("B019")
def test_no_other_command_opens_a_port(fleet: Fleet):
    fleet.start_ready(f"--metrics-port={free_port()}")
    listening = (
        "import psutil; print([c for c in psutil.Process().net_connections() if c.status"
        " == psutil.CONN_LISTEN])"
    )

    for command in (["check"], ["migrate", "--check"], ["shell", "-c", listening]):
        result = subprocess.run(
            [sys.executable, "manage.py", *command], cwd=PROJECT, env=fleet.environment,
            capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    assert result.stdout.splitlines()[-1] == "[]"


def test_worker_without_the_option_opens_no_port(fleet: Fleet):
    worker = fleet.start_ready()

    for process in (psutil.Process(worker.pid), worker.child()):
        found = process.net_connections()
        assert [link for link in found if link.status == psutil.CONN_LISTEN] == []


def test_chosen_port_is_told_in_an_event(fleet: Fleet):
    worker = fleet.start_ready("--metrics-port=0", LOG_LEVEL="INFO")

    assert f"metrics_listening port={port_of(worker)}" in worker.output()


@pytest.mark.field_case("B037")
def test_children_are_counted_together(fleet: Fleet):
    done = [plain.noop.enqueue() for _ in range(100)]
    broken = [plain.discard.enqueue("no_use") for _ in range(20)]

    workers = [fleet.start_ready("--processes=2", "--metrics-port=0") for _ in range(2)]
    ports = [port_of(worker) for worker in workers]
    until_all(State.SUCCEEDED, [result.job_id for result in done])
    until_all(State.FAILED, [result.job_id for result in broken])

    def total(name: str, **labels: str) -> float:
        return sum(value(port, name, **labels) for port in ports)

    until(lambda: total("leasejobs_runs_total") == 120)
    assert total("leasejobs_runs_total", outcome="failed") == 20
    until(lambda: total("leasejobs_run_seconds_count") == 120)
    assert total("leasejobs_queue_wait_seconds_count") == 120
    until(lambda: total("leasejobs_listeners_connected") == 4)


@pytest.mark.field_case("B037")
def test_death_of_a_child_is_counted_and_takes_no_counts_along(fleet: Fleet):
    worker = fleet.start_ready("--metrics-port=0")
    port = port_of(worker)
    until_all(State.SUCCEEDED, [plain.noop.enqueue().job_id for _ in range(10)])
    until(lambda: value(port, "leasejobs_run_seconds_count") == 10)
    directories = set(directories_of(worker))

    job_id = tasks.die_once.enqueue().job_id
    until(lambda: state_of(job_id) is State.SUCCEEDED)

    until(lambda: value(port, "leasejobs_runs_total", outcome="succeeded") == 11)
    assert value(port, "leasejobs_runs_total", outcome="lost") == 1
    assert value(port, "leasejobs_recoveries_total", cause="crashed") == 1
    assert value(port, "leasejobs_recovery_seconds_count", cause="crashed") == 1
    assert value(port, "leasejobs_run_seconds_count") == 11
    assert value(port, "leasejobs_listeners_connected") == 1
    assert not directories & set(directories_of(worker))


def directories_of(worker: Worker) -> list[str]:
    return [child.environ()["PROMETHEUS_MULTIPROC_DIR"] for child in worker.children()]


def test_stopped_worker_leaves_no_directory(fleet: Fleet):
    worker = fleet.start_ready("--metrics-port=0")
    [path] = directories_of(worker)
    assert Path(path).is_relative_to(tempfile.gettempdir())

    worker.stop()

    assert not Path(path).parent.exists()


def test_worker_with_a_frozen_child_is_not_ready_until_it_goes_on(fleet: Fleet):
    worker = fleet.start_ready("--processes=2", "--metrics-port=0", "--lease=1", "--poll=0.1")
    port = port_of(worker)
    until(lambda: get(port, "/readyz")[0] == 200)
    child = until(worker.children)[0]

    child.send_signal(signal.SIGSTOP)

    until(lambda: get(port, "/readyz")[0] == 503)
    assert "1 of 2 children" in get(port, "/readyz")[1]
    assert get(port, "/healthz")[0] == 200
    child.send_signal(signal.SIGCONT)
    until(lambda: get(port, "/readyz")[0] == 200)


def test_worker_that_stops_is_alive_and_not_ready(fleet: Fleet, tmp_path):
    tasks.wait_for_file.enqueue(str(tmp_path), "go")
    worker = fleet.start_ready("--metrics-port=0")
    port = port_of(worker)
    until_noted(tmp_path, "begin")

    worker.signal(signal.SIGTERM)

    until(lambda: get(port, "/readyz")[0] == 503)
    assert get(port, "/healthz")[0] == 200
    (tmp_path / "go").touch()


@pytest.mark.crash
@pytest.mark.field_case("B097")
def test_rows_of_a_dead_host_are_running_expired(fleet: Fleet, tmp_path):
    for _ in range(5):
        tasks.wait_for_file.enqueue(str(tmp_path), "never")
    worker = fleet.start_ready("--lease=1", "--threads=5")
    until(lambda: sampling.sample().running_live == 5)

    worker.kill_host()

    found = until(lambda: (now := sampling.sample()).running_expired == 5 and now)
    assert found.running_live == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B097")
def test_idle_system_has_no_age():
    assert sampling.sample()._replace(notification_queue_usage=0.0) == IDLE._replace(
        dead={State.FAILED: 0, State.CANCELLED: 0, State.PARKED: 0}
    )


@pytest.mark.django_db(transaction=True)
def test_every_row_is_in_the_gauge_it_belongs_to():
    past, future = (timezone.now() + timedelta(seconds=seconds) for seconds in (-100, 1_000))
    JobFactory(due_at=timezone.now())
    JobFactory(lock_key="one")
    JobFactory(crashes=1, attempts=1)
    job_in(State.SCHEDULED, due_at=past)
    job_in(State.RETRYABLE, due_at=future)
    job_in(State.SCHEDULED, due_at=future)
    JobFactory(running=True)
    JobFactory(running=True, lease_expires_at=past)
    JobFactory.create_batch(3, state=State.FAILED)
    job_in(State.CANCELLED)
    JobFactory.create_batch(2, state=State.PARKED)
    job_in(State.SUCCEEDED)
    Queue.objects.create(name="still", paused_at=past)
    Queue.objects.create(name="at work")

    found = sampling.sample()

    assert (found.due, found.scheduled) == (4, 2)
    assert (found.running_live, found.running_expired) == (1, 1)
    assert found.dead == {State.FAILED: 3, State.CANCELLED: 1, State.PARKED: 2}
    assert 100 <= found.oldest_due_age < 130
    assert found.queues_paused == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "fields",
    [{}, {"lock_key": "one"}, {"crashes": 1}, {"state": State.RETRYABLE}],
    ids=["plain", "locked", "suspect", "waiting"],
)
def test_oldest_is_found_behind_more_urgent_queues_and_priorities(fields):
    for queue in ("a", "b", "c"):
        for priority in (-5, 0, 5):
            JobFactory(queue=queue, priority=priority)
    JobFactory(queue="c", priority=4, due_at=timezone.now() - timedelta(seconds=500), **fields)

    assert 500 <= sampling.sample().oldest_due_age < 530


@pytest.mark.django_db(transaction=True)
def test_age_is_never_negative():
    JobFactory(due_at=timezone.now() + timedelta(hours=1))  # hand-made: pending, not due

    assert sampling.sample().oldest_due_age == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.field_case("B027")
def test_counts_use_the_partial_indexes_whatever_the_statistics_say():
    JobFactory.create_batch(50, state=State.FAILED)
    with transaction.atomic(), connection.cursor() as cursor:
        # Nearly every row is what the planner thinks we look for: why not read them all?
        cursor.execute("ANALYZE leasejobs_job")
        cursor.execute(sampling._SETTINGS)
        cursor.execute(f"EXPLAIN {sampling._SAMPLE}")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    used = set(re.findall(r"using (\w+) on leasejobs_job", plan))
    assert used == {"job_claim", "job_locked", "job_suspect", "job_due", "job_leased", "job_dead"}
    assert not re.search(r"(Seq|Bitmap Heap) Scan on leasejobs_job", plan)


@pytest.mark.django_db(transaction=True)
def test_sample_gives_up_a_statement_that_takes_too_long(monkeypatch):
    monkeypatch.setattr(sampling, "_SETTINGS", sampling._SETTINGS.replace("'2000'", "'50'"))

    with pytest.raises(OperationalError, match="statement timeout"):
        sampling._read("SELECT pg_sleep(60)")


@pytest.mark.django_db(transaction=True)
def test_sample_leaves_no_session_behind():
    before = sessions()

    sampling.sample()

    until(lambda: sessions() == before)


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.mark.field_case("B027")
def test_many_scrapes_ask_the_database_once(monitor):
    asked = []

    def count() -> Sample:
        asked.append(1)
        return IDLE

    port = monitor(sample=count).port

    scrapers = [
        threading.Thread(target=lambda: [get(port, "/metrics") for _ in range(10)])
        for _ in range(5)
    ]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert len(asked) == 1


def test_answer_is_asked_for_again_once_it_is_old():
    answers = iter([1, 2])
    asked = Asked(lambda: next(answers), keep=0.05, patience=5)

    assert asked.get() == 1
    until(lambda: asked.get() == 2)


def test_question_that_hangs_is_asked_once_and_waited_for_briefly():
    calls, go = [], threading.Event()

    def hang() -> int:
        calls.append(1)
        go.wait()
        return 7

    asked = Asked(hang, keep=60, patience=0.01)
    assert [asked.get() for _ in range(5)] == [None] * 5
    assert len(calls) == 1

    go.set()

    assert until(asked.get) == 7
    assert len(calls) == 1


def test_scrape_is_answered_while_the_database_refuses(monitor, away):
    away(free_port())
    port = monitor(sample=sampling.sample).port

    began = time.monotonic()
    found = names(port)

    assert time.monotonic() - began < 1
    assert value(port, "leasejobs_database_up") == 0
    assert "leasejobs_jobs_due" not in found
    assert get(port, "/readyz") == (503, "the database does not answer\n")
    assert get(port, "/healthz")[0] == 200


@pytest.mark.field_case("B027")
def test_scrape_is_answered_within_a_second_while_the_database_is_silent(
    monitor, away, silent_port
):
    away(silent_port)
    port = monitor(sample=sampling.sample).port

    began = time.monotonic()
    up = value(port, "leasejobs_database_up")

    assert time.monotonic() - began < 1
    assert up == 0


@pytest.mark.django_db(transaction=True)
def test_scrape_tells_every_metric_of_the_table(monitor):
    port = monitor(sample=sampling.sample).port

    text = get(port, "/metrics")[1]

    for line in METRICS.values():
        assert f"# HELP {line.name} {line.help}\n" in text
        assert f"# TYPE {line.name} {line.type}\n" in text
    assert value(port, "leasejobs_database_up") == 1
