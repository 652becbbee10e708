"""What a task leaves behind or throws: its outcome is written; the next job meets none of it."""

import pytest
from django.db import connection

from leasejobs import enqueue_many
from leasejobs.models import Attempt, Job
from leasejobs.states import TERMINAL, State
from tests import tasks as plain
from tests.worker import limited_tasks, tasks
from tests.worker.fleet import outcomes, until, until_all, until_state

CLEAN = {"in_atomic_block": False, "autocommit": True, "assigned": None, "timeout": "0"}
DIRTY = ("aborted", "manual", "open", "raised", "raw", "closed")


def until_ended(job_ids) -> dict[int, Job]:
    jobs = Job.objects.filter(pk__in=job_ids)
    until(lambda: not jobs.exclude(state__in=TERMINAL).exists())
    return jobs.in_bulk()


@pytest.mark.field_case("B033")
def test_session_a_task_left_dirty_is_clean_for_the_next_job_of_the_thread(fleet):
    pairs = []
    for how in DIRTY:
        dirty = tasks.leave_dirty.enqueue(how).job_id
        pairs.append((how, dirty, tasks.describe_session.enqueue().job_id))

    worker = fleet.start("--threads=1")
    until_ended([job_id for pair in pairs for job_id in pair[1:]])

    for how, dirty, after in pairs:
        left = Job.objects.get(pk=dirty)
        if how == "raised":
            assert (left.state, left.failure_code) == (State.FAILED, "task_raised")
        else:
            assert (left.state, left.result) == (State.SUCCEEDED, how)
        following = Job.objects.get(pk=after)
        assert (how, following.result) == (how, CLEAN)
        assert following.attempts == 1
    assert tasks.told("dirty") == 0
    assert worker.child()


LEFT_BEHIND = ("set", "set_config", "advisory", "with_hold", "temporary", "listen", "prepare")


@pytest.mark.field_case("B033")
def test_what_a_task_does_to_its_session_does_not_reach_the_next_job_of_the_thread(fleet):
    before = limited_tasks.inspect_session.enqueue().job_id
    pairs = []
    for how in LEFT_BEHIND:
        left = limited_tasks.change_session.enqueue(how).job_id
        pairs.append((how, left, limited_tasks.inspect_session.enqueue().job_id))

    fleet.start("--threads=1")
    found = until_ended([before, *(job_id for pair in pairs for job_id in pair[1:])])

    clean = found[before].result
    assert clean["advisory"] == clean["cursors"] == clean["tables"] == clean["channels"] == 0
    for how, left, after in pairs:
        assert (how, found[left].state) == (how, State.SUCCEEDED)
        assert (how, found[after].result) == (how, clean)


@pytest.mark.field_case("B079")
def test_process_a_task_forked_has_sessions_of_its_own(fleet):
    fleet.start("--threads=2")

    jobs = [limited_tasks.fork_and_query.enqueue().job_id for _ in range(20)]
    found = until_ended(jobs)

    assert {job.state for job in found.values()} == {State.SUCCEEDED}
    for job in found.values():
        assert (job.result["child"], job.result["status"]) == ("fine", 0)


@pytest.mark.field_case("B035")
def test_task_whose_session_the_server_ended_fails_alone(fleet):
    ended = tasks.leave_dirty.enqueue("terminated").job_id
    after = tasks.describe_session.enqueue().job_id

    fleet.start("--threads=1")
    found = until_ended([ended, after])

    assert found[ended].failure_code == "task_raised"
    assert found[after].result == CLEAN


RAISED = {
    "exit": ("task_exited", "builtins.SystemExit"),
    "exit_code": ("task_exited", "builtins.SystemExit"),
    "unprintable": ("task_raised", "tests.worker.tasks.Unprintable"),
    "exiting": ("task_raised", "tests.worker.tasks.Exiting"),
    "two_arguments": ("task_raised", "tests.worker.tasks.TwoArguments"),
    "unstorable": ("task_raised", "builtins.ValueError"),
    "huge": ("task_raised", "builtins.ValueError"),
    "recursion": ("task_raised", "builtins.RecursionError"),
    "chain": ("task_raised", "builtins.ValueError"),
    "group": ("task_raised", "builtins.ExceptionGroup"),
    "stop_iteration": ("task_raised", "builtins.StopIteration"),
    "memory": ("task_raised", "builtins.MemoryError"),
    "base_exception": ("task_raised", "tests.worker.tasks.NotAnException"),
    "cancelled": ("task_raised", "asyncio.exceptions.CancelledError"),
    "interrupt": ("task_raised", "builtins.KeyboardInterrupt"),
    "generator_exit": ("task_raised", "builtins.GeneratorExit"),
    "not_a_number": ("result_not_json", "builtins.ValueError"),
    "object": ("result_not_json", "builtins.TypeError"),
    "deep": ("result_not_json", "builtins.ValueError"),
    "endless": ("result_not_json", "builtins.ValueError"),
    "long_snooze": ("unrecordable_outcome", ""),
}


@pytest.mark.field_case("B002")
@pytest.mark.field_case("B078")
def test_whatever_a_task_raises_or_returns_is_written_and_the_worker_goes_on(fleet):
    worker = fleet.start_ready()
    child = worker.child()

    job_ids = {how: tasks.misbehave.enqueue(how).job_id for how in RAISED}
    stored = tasks.return_unstorable.enqueue().job_id
    found = until_ended([*job_ids.values(), stored])
    after = plain.noop.enqueue().job_id
    until_state(after, State.SUCCEEDED)

    for how, (code, path) in RAISED.items():
        job = found[job_ids[how]]
        attempt = Attempt.objects.get(job=job)
        assert (how, job.state, job.failure_code) == (how, State.FAILED, code)
        assert (how, attempt.outcome, attempt.exception_path) == (how, "failed", path)
        assert len(attempt.detail) <= 2_000
        assert len(attempt.traceback) <= 20_000
    assert found[stored].result == {"nul \ufffd": ["surrogate \ufffd", {"plain": "text"}]}
    assert worker.child().pid == child.pid


def test_drain_exits_0_whatever_its_tasks_do_and_one_thread_runs_them_all(fleet):
    hows = ("exit", "unprintable", "base_exception", "cancelled", "interrupt", "long_snooze")
    for how in hows:
        tasks.misbehave.enqueue(how)
    after = plain.noop.using(priority=-100).enqueue().job_id

    fleet.drain("--threads=1", "--lease=60")

    assert Job.objects.filter(state=State.FAILED, crashes=0).count() == len(hows)
    assert outcomes(after) == ["succeeded"]


@pytest.mark.field_case("B063")
def test_worker_keeps_a_small_and_steady_number_of_sessions(fleet):
    threads, of_the_child, of_the_supervisor = 8, 4, 1
    fleet.start_ready(f"--threads={threads}")
    enqueue_many([tasks.count_markets.prepare() for _ in range(2_000)])

    most, seen = 0, set()

    def is_done() -> bool:
        nonlocal most
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            now = {row[0] for row in cursor.fetchall()}
        most = max(most, len(now))
        seen.update(now)
        return not Job.objects.exclude(state=State.SUCCEEDED).exists()

    until(is_done)

    bound = threads + of_the_child + of_the_supervisor
    assert most <= bound
    assert len(seen) <= bound
    until_all(State.SUCCEEDED)
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
