"""The pytest plugin, in sessions of their own: of a project made for it, and of none at all."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import django
import pytest

from example_project.postgres import PROJECT

ENTRY = "leasejobs.testing.plugin"

SETTINGS = """
from example_project.settings import DATABASES

SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["leasejobs", *{backport}]
TASKS = {{"default": {{"BACKEND": "leasejobs.backend.LeaseBackend"}}}}
"""

TASKS = """
import os
from leasejobs import task

@task
def add(left: int, right: int) -> int:
    return left + right

@task(queue_name="mail")
def process() -> int:
    return os.getpid()

@task
def hang() -> None:
    import time
    while True:
        time.sleep(1)
"""

PASSING = """
import os, pytest
from shop.tasks import add, process
from leasejobs.models import Job
from leasejobs.testing import assert_enqueued

def test_run_due(run_due):
    add.enqueue(1, right=2)
    assert [job.result for job in run_due()] == [3]

def test_eager(leasejobs_eager):
    assert add.enqueue(1, 2).return_value == 3

def test_backend_is_put_back():
    assert type(add.get_backend()).__name__ == "LeaseBackend"

def test_dummy_needs_no_database(leasejobs_dummy):
    add.enqueue(1, 2)
    assert leasejobs_dummy.results[0].args == [1, 2]
    assert_enqueued(add, args=[1, 2])

def test_worker_of_another_process_on_the_test_database(leasejobs_worker):
    worker = leasejobs_worker(queues=["mail"])
    ours, other = process.enqueue(), add.enqueue(1, 2)
    [job] = worker.wait_for(ours.job_id)
    assert job.result not in (None, os.getpid())
    assert Job.objects.get(pk=other.job_id).epoch == 0

def test_worker_that_drains(leasejobs_worker):
    result = add.enqueue(1, 2)
    leasejobs_worker(drain=True)
    assert Job.objects.get(pk=result.job_id).result == 3

def test_database_is_flushed(db):
    assert not Job.objects.exists()
"""

FAILING = """
from shop.tasks import add, hang

def test_that_kills_its_worker(leasejobs_worker):
    leasejobs_worker().process.kill()

def test_that_drains_a_hanging_job(leasejobs_worker, settings):
    hang.enqueue()
    leasejobs_worker(drain=True)
"""

NO_BACKEND = """
def test_dummy(leasejobs_dummy):
    pass

def test_eager(settings, leasejobs_eager):
    pass
"""


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Return an environment in which the plugin's entry point is installed, and Django is not."""
    installed = tmp_path / "installed"
    about = installed / "leasejobs_plugin-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leasejobs-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[pytest11]\nleasejobs = {ENTRY}\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DJANGO_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(installed), str(PROJECT)]), "PYTEST_ADDOPTS": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


@pytest.fixture
def project(tmp_path, environment, postgres_server):
    """Return a function that runs tests of a project `shop`, with a test database of its own."""
    site = tmp_path / "site"
    (site / "shop").mkdir(parents=True)
    backport = ["django_tasks"] if django.VERSION < (6, 0) else []
    (site / "shop" / "__init__.py").touch()
    (site / "shop" / "settings.py").write_text(SETTINGS.format(backport=backport))
    (site / "shop" / "tasks.py").write_text(TASKS)

    def run(source: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
        (site / "test_shop.py").write_text(source)
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (site / "pytest.ini").write_text(
            f"[pytest]\nDJANGO_SETTINGS_MODULE = shop.settings\npythonpath = .\n{lines}"
        )
        return run_pytest(site, environment | {"TOX_ENV_NAME": f"plugin_{os.getpid()}"}, *options)

    return run


def run_pytest(
    directory: Path, environment: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *options],
        cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip


def test_entry_point_is_declared():
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())

    assert declared["project"]["entry-points"]["pytest11"] == {"leasejobs": ENTRY}
    assert importlib.util.find_spec(ENTRY) is not None


def test_importing_the_plugin_imports_no_django(environment):
    code = (
        f"import sys, {ENTRY}; "
        "print([name for name in sys.modules if name.partition('.')[0].startswith('django')])"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "[]"


def test_session_without_django_runs_and_the_plugin_imports_none(environment, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it(request):\n"
        "    assert request.config.pluginmanager.has_plugin('leasejobs')\n"
        "    assert request.config.getini('leasejobs_worker_timeout') == '30'\n"
        "    assert 'django' not in sys.modules\n"
    )

    # Of other plugins some import Django.
    alone = environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = run_pytest(tmp_path, alone, "-p", "leasejobs", "test_it.py")

    assert "1 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.crash
def test_fixtures_work_in_a_project_of_its_own(project):
    result = project(PASSING, "-p", "no:randomly")

    assert "7 passed" in result.stdout, result.stdout + result.stderr
    assert result.returncode == 0


@pytest.mark.crash
def test_worker_that_dies_or_hangs_fails_its_test_and_is_not_left(project):
    result = project(FAILING, leasejobs_worker_timeout="10")

    told = result.stdout
    assert "1 failed, 1 passed, 1 error" in told, told + result.stderr
    [hanging] = re.findall(r"E +AssertionError: worker (\d+) does not drain within 10\.0 s", told)
    [killed] = re.findall(r"^worker (\d+) exited with -9", told, re.M)
    assert hanging != killed


@pytest.mark.crash
def test_project_whose_tasks_have_another_backend_is_told(project, tmp_path):
    module = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    with (tmp_path / "site" / "shop" / "settings.py").open("a") as settings:
        settings.write(f'TASKS["default"]["BACKEND"] = "{module}.backends.dummy.DummyBackend"\n')

    result = project(NO_BACKEND)

    assert result.stdout.count("no alias of TASKS is a LeaseBackend") >= 2, result.stdout


def test_fixtures_are_listed_with_what_they_do(environment, tmp_path):
    result = run_pytest(tmp_path, environment, "--fixtures", "-p", "no:django")

    for name in ("run_due", "leasejobs_eager", "leasejobs_dummy", "leasejobs_worker"):
        assert re.search(rf"^{name} -- ", result.stdout, re.M), result.stdout
