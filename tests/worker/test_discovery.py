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

@task(aliases=("shop.old.pay",))
async def pay(amount):
    return f"paid {amount}"
"""


@pytest.fixture
def shop(worker_env, tmp_path):
    """Install an app `shop` in what is started with `worker_env`; return its directory."""
    app = tmp_path / "project/shop"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app.parent / "shop_settings.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'shop']\n"
    )
    worker_env["DJANGO_SETTINGS_MODULE"] = "shop_settings"
    worker_env["PYTHONPATH"] = os.pathsep.join([str(app.parent), worker_env["PYTHONPATH"]])
    return app


def test_worker_runs_a_coroutine_enqueued_under_its_former_name(shop, fleet):
    (shop / "tasks.py").write_text(TASKS)
    job = JobFactory(task="shop.old.pay", kwargs={"amount": 5})

    fleet.drain()

    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.result, row.attempts) == (State.SUCCEEDED, "paid 5", 1)


def test_worker_does_not_start_with_a_task_module_that_breaks(shop, worker_env):
    (shop / "tasks.py").write_text("import no_such_module\n")
    job = JobFactory(task="shop.tasks.pay")

    ended = subprocess.run(
        [sys.executable, "manage.py", "runleaseworker", "--drain"],
        cwd=PROJECT, env=worker_env, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip

    assert ended.returncode == 1
    assert "No module named 'no_such_module'" in ended.stderr
    assert "LEASEJOBS['TASK_MODULES']" in ended.stderr
    assert Job.objects.get(pk=job.pk).state == State.PENDING
