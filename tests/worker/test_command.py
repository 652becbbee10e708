"""The command line: what is wrong is said before anything runs."""

import subprocess
import sys
import uuid

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from example_project.postgres import PROJECT
from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker.fleet import TIMEOUT_SECONDS, holder_of, state_of, until, until_state


def run(environment, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "runleaseworker", *options],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip


WRONG = [
    "--threads=0", "--threads=-1", "--threads=1000", "--threads=many", "--threads=1.5",
    "--processes=-1", "--processes=1000", "--lease=0.1", "--lease=nan", "--lease=inf",
    "--lease=-5", "--lease=soon", "--poll=0", "--poll=-1", "--poll=nan", "--poll=1e99",
    "--holder=two\nlines", "--holder=" + "x" * 101, "--holder=nul\x07", "--no-such-option",
]  # fmt: skip


@pytest.mark.parametrize("option", WRONG)
def test_wrong_option_is_refused_before_anything_runs(option, monkeypatch):
    def never(*_):
        raise AssertionError("a supervisor was started")

    monkeypatch.setattr("leasejobs.worker.supervisor.Supervisor.run", never)

    with pytest.raises(CommandError):
        call_command("runleaseworker", option)


def test_wrong_option_ends_the_process_with_a_status_and_one_line(worker_env):
    result = run(worker_env, "--threads=0")

    assert result.returncode == 2
    assert "--threads" in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_holder_ends_the_process_with_a_status_and_one_line(worker_env):
    result = run(worker_env, "--holder=two\nlines")

    assert result.returncode == 1
    assert "--holder" in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_setting_ends_the_process_with_the_name_of_its_check(worker_env):
    job_id = plain.noop.enqueue().job_id
    environment = worker_env | {
        "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
        "LEASEJOBS_TEST_SHUTDOWN": "-1",
    }

    result = run(environment, "--drain")

    assert result.returncode == 1
    assert "leasejobs.E001" in result.stderr
    assert state_of(job_id) is State.PENDING


def test_database_without_the_tables_is_told_in_words(worker_env):
    with empty_database() as name:
        base, _, _ = worker_env["DATABASE_URL"].partition("?")
        environment = worker_env | {"DATABASE_URL": f"{base.rpartition('/')[0]}/{name}"}

        result = run(environment, "--drain")

    assert result.returncode == 1
    assert "migrate" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.field_case("B054")
def test_worker_that_cannot_reach_its_database_waits_for_it_and_stops_when_told(fleet):
    nowhere = "postgres://nobody@127.0.0.1:1/nothing"
    worker = fleet.start("--poll=1", DATABASE_URL=nowhere, LOG_LEVEL="WARNING")

    until(lambda: "database_unavailable" in worker.output())

    assert worker.stop() == 0
    assert "Traceback" not in worker.output()


def test_only_the_named_queues_are_taken(fleet):
    unwanted = plain.noop.using(queue_name="c", priority=100).enqueue().job_id
    wanted = [plain.noop.using(queue_name=name).enqueue().job_id for name in ("b", "a")]

    worker = fleet.start("--queues=a,b", "--holder=some-pod")
    for job_id in wanted:
        until_state(job_id, State.SUCCEEDED)

    assert Job.objects.get(pk=unwanted).epoch == 0
    assert holder_of(worker.child()).startswith("some-pod@")


def test_spaces_around_the_names_of_queues_do_not_count(fleet):
    wanted = [plain.noop.using(queue_name=name).enqueue().job_id for name in ("a", "b")]

    fleet.drain("--queues= a , b ")

    assert [state_of(job_id) for job_id in wanted] == [State.SUCCEEDED] * 2


class empty_database:  # noqa: N801 - used as a context
    """A database without any table on the server of the suite."""

    def __init__(self) -> None:
        self.name = f"leasejobs_empty_{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> str:
        self._execute(f'CREATE DATABASE "{self.name}" TEMPLATE template0')
        return self.name

    def __exit__(self, *_: object) -> None:
        self._execute(f'DROP DATABASE "{self.name}" WITH (FORCE)')

    def _execute(self, sql: str) -> None:
        target = connection.get_connection_params() | {"dbname": "postgres"}
        known = {key: value for key, value in target.items() if isinstance(value, str | int)}
        with psycopg.connect(autocommit=True, **known) as administrator:
            administrator.execute(sql)
