"""Tasks that are coroutines."""

from leasejobs import enqueue_many
from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks as plain
from tests.worker import limited_tasks as tasks
from tests.worker.fleet import backends, outcomes, until, until_state


def test_coroutines_run_like_other_tasks(fleet, tmp_path):
    fleet.start("--threads=2")
    (tmp_path / "finish").touch()

    found = enqueue_many([tasks.work_in_a_coroutine.prepare(str(tmp_path)) for _ in range(10)])
    for item in found:
        job = until_state(item.job_id, State.SUCCEEDED)
        assert (job.result["told"], job.checkpoint) == (False, {"step": 1})
        assert outcomes(item.job_id) == ["succeeded"]
    until_state(plain.noop.enqueue().job_id, State.SUCCEEDED)

    # Two threads, what a child has, the supervisor, and the threads that ran `sync_to_async`.
    assert len(backends()) <= 2 + 4 + 1 + 2


def test_coroutine_sees_that_the_worker_shuts_down(fleet, tmp_path):
    worker = fleet.start("--threads=1")
    job_id = tasks.work_in_a_coroutine.enqueue(str(tmp_path)).job_id
    until(lambda: Job.objects.get(pk=job_id).progress_done == 1)

    assert worker.stop() == 0

    assert Job.objects.get(pk=job_id).result["told"] is True
