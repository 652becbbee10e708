"""Processes: as the first of a container, and with one tenant's backlog in front of another's."""

import shutil
import signal
import subprocess
import sys
from datetime import timedelta

import psutil
import pytest

from example_project.postgres import PROJECT
from leasejobs import enqueue_many
from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks as plain
from tests.field import tasks
from tests.proxy import proxied
from tests.worker.fleet import TIMEOUT_SECONDS, until, until_all, until_state


@pytest.mark.crash
@pytest.mark.field_case("B107")
def test_worker_that_is_process_1_hears_signals_and_reaps_what_tasks_leave(worker_env):
    unshare = shutil.which("unshare")
    options = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if unshare is None or subprocess.run([unshare, *options, "true"], check=False).returncode:
        pytest.skip("no process namespaces here")
    with proxied() as proxy:  # whoever is root in there may not open the server's own socket
        outer = subprocess.Popen(
            [unshare, *options, sys.executable, "manage.py", "runleaseworker", "--no-reload"],
            cwd=PROJECT, env=worker_env | {"DATABASE_URL": proxy.url}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            [first] = until(lambda: psutil.Process(outer.pid).children())
            jobs = [tasks.leave_a_grandchild.enqueue().job_id for _ in range(20)]
            until_all(State.SUCCEEDED, jobs)
            until(lambda: len(first.children(recursive=True)) == 1)  # not even a zombie

            first.send_signal(signal.SIGTERM)

            assert outer.wait(TIMEOUT_SECONDS) == 0
        finally:
            outer.kill()
            outer.wait(TIMEOUT_SECONDS)


@pytest.mark.field_case("B081")
def test_queue_with_a_worker_of_its_own_keeps_a_tenant_from_waiting_behind_another(fleet):
    """A worker of both queues would take their jobs in the order they came due."""
    busy = plain.run_and_sleep.using(tenant="a", queue_name="of-a")
    enqueue_many([busy.prepare(0.02) for _ in range(3_000)])
    fleet.start("--threads=2", "--poll=0.5", "--queues=of-a")
    fleet.start_ready("--threads=1", "--poll=0.5", "--queues=of-b")
    until(lambda: Job.objects.filter(state=State.SUCCEEDED).count() > 20)

    job = plain.noop.using(tenant="b", queue_name="of-b").enqueue()
    found = until_state(job.job_id, State.SUCCEEDED)

    assert found.claimed_at - found.created_at < timedelta(seconds=5)
    assert Job.objects.filter(tenant="a", state=State.PENDING).count() > 100
    Job.objects.filter(state=State.PENDING).delete()
