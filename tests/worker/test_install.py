"""The wheel in an empty environment: a project made from nothing runs its first job."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import django
import psycopg
import pytest
from django.db import connection

from example_project.postgres import PROJECT

pytestmark = pytest.mark.crash

PROJECT_SETTINGS = """

import os
from urllib.parse import parse_qsl, unquote, urlsplit

INSTALLED_APPS += ["leasejobs"]
if os.environ["BACKPORT"]:
    INSTALLED_APPS += ["django_tasks"]
_url = urlsplit(os.environ["DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(_url.path[1:]),
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
        "HOST": unquote(_url.netloc.rpartition("@")[2].partition(":")[0]),
        "PORT": _url.port or "",
        "OPTIONS": dict(parse_qsl(_url.query)),
    }
}
TASKS = {"default": {"BACKEND": "leasejobs.backend.LeaseBackend"}}
"""

TASKS = """
from leasejobs import task


@task
def add(left: int, right: int) -> int:
    return left + right
"""

ENQUEUE = "from shop.tasks import add; print(add.enqueue(2, right=3).job_id)"
READ = (
    "from leasejobs.models import Job; job = Job.objects.get(); "
    "print(job.get_state_display(), job.result, job.attempts)"
)
FOREIGN = "import importlib.util as u; print(u.find_spec('tests'), u.find_spec('example_project'))"


@pytest.fixture
def empty_database(worker_env):
    """Return an environment whose DATABASE_URL names a new database on the suite's server."""
    name = f"leasejobs_install_{uuid.uuid4().hex[:8]}"
    target = connection.get_connection_params() | {"dbname": "postgres"}
    known = {key: value for key, value in target.items() if isinstance(value, str | int)}
    place, _, rest = worker_env["DATABASE_URL"].partition("?")
    url = f"{place.rpartition('/')[0]}/{name}" + (f"?{rest}" if rest else "")
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE", "VIRTUAL_ENV")
    }
    with psycopg.connect(autocommit=True, **known) as administrator:
        administrator.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        yield kept | {
            "DATABASE_URL": url, "PYTHONNOUSERSITE": "1",
            "BACKPORT": "1" if django.VERSION < (6, 0) else "",
        }  # fmt: skip
        administrator.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_wheel_alone_runs_a_job_of_a_project_made_from_nothing(empty_database, tmp_path):
    def run(*command: object, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=cwd, env=empty_database, check=False,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    python = tmp_path / "venv" / "bin" / "python"
    site = tmp_path / "site"
    run(
        *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "wheel",
        PROJECT,
    )  # fmt: skip
    (wheel,) = (tmp_path / "wheel").glob("leasejobs-*.whl")
    # Without pip in it: ensurepip is a package of its own on some systems.
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    run(
        *pip, "--python", python, "install", wheel, "psycopg[binary]",
        f"Django=={django.__version__}",
    )  # fmt: skip
    site.mkdir()
    run(python, "-m", "django", "startproject", "shop", site)
    with (site / "shop" / "settings.py").open("a") as settings:
        settings.write(PROJECT_SETTINGS)
    (site / "shop" / "tasks.py").write_text(TASKS)
    manage = [python, "-W", "error::DeprecationWarning:leasejobs", "manage.py"]

    run(*manage, "check", "--fail-level", "WARNING", cwd=site)
    run(*manage, "migrate", cwd=site)
    run(*manage, "makemigrations", "--check", "--dry-run", cwd=site)
    run(*manage, "shell", "-c", ENQUEUE, cwd=site)
    run(*manage, "runleaseworker", "--drain", cwd=site)

    assert run(*manage, "shell", "-c", READ, cwd=site).splitlines()[-1] == "succeeded 5 1"
    assert run(python, "-c", FOREIGN, cwd=site) == "None None"
