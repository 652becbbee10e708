"""The task modules of a project's apps, as a worker meets them when it starts."""

import os
import subprocess
import sys

import pytest

from example_project.postgres import PROJECT
from leasejobs.models import Job
from leasejobs.states import State
from tests.factories import JobFactory
from tests.worker.fleet import TIMEOUT_SECONDS

TASKS = """
from leasejobs import task

@task(aliases=("store.old.pay",))
async def pay(amount):
    return f"paid {amount}"
"""


@pytest.fixture
def store(worker_env, tmp_path):
    """Install an app `store` in what is started with `worker_env`; return its directory."""
    app = tmp_path / "project/store"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app.parent / "store_settings.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'store']\n"
    )
    worker_env["DJANGO_SETTINGS_MODULE"] = "store_settings"
    worker_env["PYTHONPATH"] = os.pathsep.join([str(app.parent), worker_env["PYTHONPATH"]])
    return app


def test_worker_runs_a_coroutine_enqueued_under_its_former_name(store, fleet):
    (store / "tasks.py").write_text(TASKS)
    job = JobFactory(task="store.old.pay", kwargs={"amount": 5})

    fleet.drain()

    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.result, row.attempts) == (State.SUCCEEDED, "paid 5", 1)


def test_worker_does_not_start_with_a_task_module_that_breaks(store, worker_env):
    (store / "tasks.py").write_text("import no_such_module\n")
    job = JobFactory(task="store.tasks.pay")

    ended = subprocess.run(
        [sys.executable, "manage.py", "runleaseworker", "--drain"],
        cwd=PROJECT, env=worker_env, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip

    assert ended.returncode == 1
    assert "No module named 'no_such_module'" in ended.stderr
    assert "LEASEJOBS['TASK_MODULES']" in ended.stderr
    assert Job.objects.get(pk=job.pk).state == State.PENDING
