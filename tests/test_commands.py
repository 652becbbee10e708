"""`manage.py leasejobs …`, each subcommand as its user runs it."""

import contextlib
import getpass
import json
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from example_project.postgres import PROJECT
from leasejobs import operations, recovery
from leasejobs.management import doctor, operating, probes
from leasejobs.models import Job, OperatorAction, Queue, Worker
from leasejobs.states import State
from tests import tasks
from tests.factories import JobFactory, attempts_of, job_in, whole
from tests.two_connections import acting, second_session
from tests.worker.fleet import until

two_sessions = pytest.mark.django_db(transaction=True)

WHY = "--reason=the supplier asked"


def run(*arguments: object) -> str:
    """Run a subcommand that must succeed; return what it wrote."""
    out = StringIO()
    call_command("leasejobs", *map(str, arguments), stdout=out, stderr=StringIO())
    return out.getvalue()


def refuse(*arguments: object) -> str:
    """Run a subcommand that must fail; return its sentence and all it wrote before."""
    out, err = StringIO(), StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("leasejobs", *map(str, arguments), stdout=out, stderr=err)
    assert caught.value.returncode == 1
    return f"{caught.value}\n{out.getvalue()}{err.getvalue()}"


def manage(environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "leasejobs", *arguments],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


# The command itself


@pytest.mark.parametrize("arguments", [(), ("no-such-verb",), ("retry", "seven"), ("run",)])
def test_wrong_use_is_refused_before_anything_runs(arguments):
    with pytest.raises(CommandError):
        call_command("leasejobs", *arguments)


def test_command_line_user_sees_sentences_and_a_status_never_a_traceback(worker_env):
    for arguments, status, said in (
        (("run", "1"), 1, "There is no job 1."),
        (("enqueue", "no.such.task"), 1, "no.such.task"),
        (("enqueue", "tests.tasks.echo", "--args", "{"), 2, "must be JSON"),
        (("retry", "1"), 2, "--reason"),
    ):
        result = manage(worker_env, *arguments)
        assert result.returncode == status, result
        assert said in result.stderr
        assert "Traceback" not in result.stderr


def test_options_of_manage_may_follow_the_subcommand(worker_env):
    result = manage(worker_env, "status", "--settings=tests.settings", "--no-color", "--json")

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["queues"] == []


@two_sessions
def test_database_error_is_a_sentence():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leasejobs_worker RENAME TO elsewhere")
    try:
        assert "manage.py migrate" in refuse("status")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO leasejobs_worker")


# status


@pytest.mark.django_db
def test_status_counts_live_jobs_by_queue():
    minute = timedelta(minutes=1)
    for priority, age in ((0, 1), (-5, 3), (5, 2)):
        JobFactory(queue="mail", priority=priority, due_at=timezone.now() - minute * age)
    JobFactory(queue="mail", lock_key="one")
    JobFactory(queue="mail", crashes=1)
    job_in(State.RUNNING, queue="mail")
    job_in(State.RUNNING, queue="slow", lease_expires_at=timezone.now() - minute)
    job_in(State.SCHEDULED, queue="slow")
    job_in(State.RETRYABLE, queue="slow", due_at=timezone.now() - 9 * minute)
    for state in (State.SUCCEEDED, State.FAILED, State.FAILED, State.CANCELLED, State.PARKED):
        job_in(state, queue="done")

    found = json.loads(run("status", "--json"))

    mail, slow = found["queues"]
    assert (mail["name"], mail["pending"], mail["running"]) == ("mail", 5, 1)
    assert mail["oldest_due_seconds"] == pytest.approx(180, abs=10)
    assert (slow["name"], slow["running"], slow["scheduled"], slow["retryable"]) == (
        "slow", 1, 1, 1,
    )  # fmt: skip
    assert slow["oldest_due_seconds"] == pytest.approx(540, abs=10)
    assert (found["expired_leases"], found["failed"], found["parked"]) == (1, 2, 1)


@pytest.mark.django_db
def test_status_shows_paused_queues_and_workers():
    run("pause", "mail", WHY)
    Worker.objects.create(
        name="host:7", host="host", pid=7, version="1.2.3", processes=2, threads=4, queues=["mail"]
    )

    text = run("status")

    assert "paused since" in text
    assert "host:7" in text
    assert "1.2.3" in text


@pytest.mark.django_db
def test_status_stops_counting_at_its_cap(monkeypatch):
    monkeypatch.setattr("leasejobs.counting.CAP", 2)
    monkeypatch.setattr("leasejobs.management.showing.CAP", 2)
    for _ in range(4):
        JobFactory()
        job_in(State.RUNNING)

    assert "2+" in run("status")
    [queue] = json.loads(run("status", "--json"))["queues"]
    assert (queue["pending"], queue["running"]) == (2, 2)


@pytest.mark.django_db
def test_status_of_an_empty_table_says_how_to_start_a_worker():
    assert "runleaseworker" in run("status")


# tasks


def test_tasks_are_listed_with_their_options():
    found = {task["name"]: task for task in json.loads(run("tasks", "--json"))}

    assert found["tests.tasks.explode"]["max_attempts"] == 3
    assert "backoff" in found["tests.tasks.explode"]
    assert "example_project.market.tasks" in " ".join(found)
    assert "tests.tasks.explode" in run("tasks")


# enqueue


@pytest.mark.django_db
def test_enqueued_job_is_what_was_asked_for():
    text = run(
        "enqueue", "tests.tasks.echo", "--args", '["é"]', "--queue=mail", "--priority=-7",
        "--tenant=acme", "--key=k", "--run-after=3600",
    )  # fmt: skip

    job = Job.objects.get()
    assert text == f"{job.pk} created\n"
    assert (job.task, job.args, job.queue, job.priority) == ("tests.tasks.echo", ["é"], "mail", 7)
    assert (job.tenant, job.key, job.state) == ("acme", "k", State.SCHEDULED)


@pytest.mark.django_db
def test_enqueue_with_a_taken_key_says_so_and_names_the_job():
    run("enqueue", "tests.tasks.noop", "--key=k")

    text = run("enqueue", "tests.tasks.noop", "--key=k")

    assert text.startswith(f"{Job.objects.get().pk} not created")


@pytest.mark.django_db
def test_enqueue_takes_keyword_arguments():
    run("enqueue", "tests.tasks.echo", "--kwargs", '{"value": [1]}')

    assert Job.objects.get().kwargs == {"value": [1]}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tests.tasks.echo",), "value"),
        (("tests.tasks.nobody",), "no task"),
        (("tests.tasks.QUICK",), "not a task"),
        (("tests.tasks.noop", "--priority=101"), "priority"),
        (("tests.tasks.noop", "--queue=a,b"), "queue_name"),
        (("tests.tasks.noop", "--args=7"), "JSON list"),
        (("tests.tasks.noop", "--kwargs=[]"), "JSON object"),
        (("tests.tasks.noop", "--run-after=-1"), "whole number"),
        (("tests.tasks.echo", '--args=["\\u0000"]'), "NUL"),
    ],
)
def test_enqueue_says_what_is_wrong_and_enqueues_nothing(arguments, said):
    assert said in refuse("enqueue", *arguments)

    assert not Job.objects.exists()


# run


@two_sessions
@pytest.mark.parametrize("state", [State.PENDING, State.SCHEDULED, State.RETRYABLE])
def test_waiting_job_runs_in_the_foreground_under_the_fence(state):
    job = job_in(state, task="tests.tasks.echo", args=["a result"], attempts=2)

    assert "succeeded" in run("run", job.pk)

    row, [attempt] = whole(job), attempts_of(job)
    assert (row["state"], row["result"]) == (State.SUCCEEDED, "a result")
    assert (row["attempts"], row["epoch"], row["lease_token"]) == (3, 1, None)
    assert (attempt["outcome"], attempt["number"]) == ("succeeded", 3)
    assert attempt["worker"].startswith("foreground:")
    assert row["started_at"] is not None


@two_sessions
def test_failure_in_the_foreground_is_written_and_told():
    job = JobFactory(task="tests.tasks.explode", args=["boom"])

    text = refuse("run", job.pk)

    assert "task_raised boom" in text
    assert "RuntimeError" in text
    assert "retryable" in text
    assert whole(job)["state"] == State.RETRYABLE


@two_sessions
def test_interrupted_foreground_run_leaves_a_written_outcome(monkeypatch):
    def interrupt(value):
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.tasks.echo.func.__code__", interrupt.__code__)
    job = JobFactory(task="tests.tasks.echo", args=[1])

    refuse("run", job.pk)

    assert whole(job)["state"] == State.RETRYABLE


@two_sessions
def test_session_that_the_task_left_dirty_does_not_lose_its_outcome(monkeypatch):
    def dirty(value):
        from django.db import connection

        connection.set_autocommit(False)
        connection.cursor().execute("SELECT 1")

    monkeypatch.setattr("tests.tasks.echo.func.__code__", dirty.__code__)
    job = JobFactory(task="tests.tasks.echo", args=[1])

    run("run", job.pk)

    with second_session() as other:
        found = other.execute("SELECT state FROM leasejobs_job").fetchone()
    assert found == (State.SUCCEEDED,)


@two_sessions
def test_outcome_that_the_database_refuses_ends_in_one_that_it_takes(monkeypatch):
    def snooze_for_ever(value):
        from datetime import timedelta

        from leasejobs import Snooze

        return Snooze(timedelta(days=10**8))

    monkeypatch.setattr("tests.tasks.echo.func.__code__", snooze_for_ever.__code__)
    job = JobFactory(task="tests.tasks.echo", args=[1])

    assert "unrecordable_outcome" in refuse("run", job.pk)

    assert whole(job)["state"] == State.FAILED


@two_sessions
def test_outcome_of_a_run_that_lost_its_lease_is_refused(monkeypatch):
    def lose(value):
        from leasejobs.models import Job
        from leasejobs.recovery import recover_expired
        from leasejobs.testing import expire_lease

        expire_lease(Job.objects.get())
        recover_expired()

    monkeypatch.setattr("tests.tasks.echo.func.__code__", lose.__code__)
    job = JobFactory(task="tests.tasks.echo", args=[1])

    assert "the lease was lost" in refuse("run", job.pk)

    assert whole(job)["crashes"] == 1
    assert attempts_of(job)[0]["late_outcome"] == "succeeded"


@two_sessions
@pytest.mark.parametrize(
    "state", [State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.PARKED]
)
def test_job_that_does_not_wait_is_not_run(state):
    job = job_in(state)
    before = whole(job)

    assert state.name.lower() in refuse("run", job.pk)

    assert whole(job) == before


@two_sessions
def test_job_past_its_deadline_is_not_run():
    job = job_in(State.SCHEDULED, deadline_at=timezone.now() - timedelta(minutes=1))
    before = whole(job)

    assert "may not be started after" in refuse("run", job.pk)

    assert whole(job) == before


@two_sessions
def test_job_whose_row_is_locked_is_not_run():
    job = JobFactory()

    with second_session() as other:
        other.execute("SELECT 1 FROM leasejobs_job FOR NO KEY UPDATE")
        assert "locked" in refuse("run", job.pk)


@two_sessions
@pytest.mark.parametrize("state", [State.PENDING, State.SCHEDULED])
def test_job_whose_lock_key_is_held_is_not_run(state):
    job_in(State.RUNNING, lock_key="one")
    job = job_in(state, lock_key="one")
    before = whole(job)

    assert "lock key" in refuse("run", job.pk)

    assert whole(job) == before


@two_sessions
def test_foreground_run_is_told_of_a_cancel(settings, tmp_path):
    settings.LEASEJOBS = {"LEASE_SECONDS": 1}
    job = JobFactory(task="tests.tasks.wait_for_stop", args=[str(tmp_path), 30])

    def cancel_it():
        until(lambda: whole(job)["state"] == State.RUNNING)
        operations.cancel([job.pk], actor="ada", reason="why")

    with acting(cancel_it):
        run("run", job.pk)

    assert whole(job)["result"] == "stopped"


@two_sessions
def test_foreground_run_is_renewed_while_it_lasts(settings, tmp_path):
    settings.LEASEJOBS = {"LEASE_SECONDS": 1}
    job = JobFactory(task="tests.tasks.run_and_note", args=[str(tmp_path), 2.0])

    def recover_all_the_while():
        until(lambda: recovery.recover_expired() or whole(job)["state"] == State.SUCCEEDED)

    with acting(recover_all_the_while):
        run("run", job.pk)

    assert (whole(job)["state"], whole(job)["epoch"]) == (State.SUCCEEDED, 1)


def test_command_line_run_exits_with_the_outcome_as_its_status(worker_env):
    good, bad = tasks.echo.enqueue(1), tasks.discard.enqueue("card_expired")

    assert manage(worker_env, "run", str(good.job_id)).returncode == 0
    result = manage(worker_env, "run", str(bad.job_id))

    assert result.returncode == 1
    assert "card_expired" in result.stderr


@two_sessions
def test_job_of_a_task_that_no_code_here_knows_is_not_claimed():
    job = JobFactory(task="gone.task")
    before = whole(job)

    assert "no task 'gone.task'" in refuse("run", job.pk)

    assert whole(job) == before


# A task module that breaks


@pytest.fixture
def broken_modules(settings, tmp_path, monkeypatch):
    """Let the task module of an app raise at its import."""
    package = tmp_path / "broken_app"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "broken_tasks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "broken_app"]
    settings.LEASEJOBS = {"TASK_MODULES": ("broken_tasks",)}


@two_sessions
def test_task_module_that_breaks_is_a_sentence(broken_modules):
    for arguments in (("tasks",), ("enqueue", "tests.tasks.noop"), ("doctor",)):
        assert "ZeroDivisionError: division by zero" in refuse(*arguments)


# retry, cancel, park


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("retry", State.FAILED, State.PENDING),
        ("cancel", State.PENDING, State.CANCELLED),
        ("park", State.PENDING, State.PARKED),
    ],
)
def test_jobs_named_by_id_are_moved(verb, before, after):
    jobs = [job_in(before) for _ in range(2)]

    text = run(verb, jobs[0].pk, jobs[1].pk, WHY)

    assert text == f"{verb}: 2 moved\n"
    assert {whole(job)["state"] for job in jobs} == {after}
    action = OperatorAction.objects.first()
    assert (action.actor, action.reason) == (getpass.getuser(), "the supplier asked")


@pytest.mark.django_db
def test_what_was_not_moved_is_told_and_makes_the_status_one():
    failed, succeeded = job_in(State.FAILED), job_in(State.SUCCEEDED)

    text = refuse("retry", failed.pk, succeeded.pk, succeeded.pk + 1, WHY, "--actor=ada")

    assert "2 of 3 jobs were not moved" in text
    assert "retry: 1 missing, 1 moved, 1 refused" in text
    assert f"Job {succeeded.pk}: refused, it is succeeded" in text
    assert whole(failed)["state"] == State.PENDING
    assert OperatorAction.objects.get().actor == "ada"


@pytest.mark.django_db
def test_cancel_of_a_running_job_counts_as_done():
    job = job_in(State.RUNNING)

    assert run("cancel", job.pk, WHY) == "cancel: 1 requested\n"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "option",
    [
        "--queue=mail", "--task=a.b", "--failure-code=boom", "--tenant=acme", "--state=parked",
    ],
)  # fmt: skip
def test_filter_moves_what_it_matches_and_nothing_else(option):
    fields = {"queue": "mail", "task": "a.b", "failure_code": "boom", "tenant": "acme"}
    matching = job_in(State.PARKED, **fields)
    other = job_in(State.FAILED)
    before = whole(other)

    assert run("retry", option, "--yes", WHY) == "retry: 1 moved\n"

    assert whole(matching)["state"] == State.PENDING
    assert whole(other) == before


@pytest.mark.django_db
def test_filters_narrow_each_other_and_may_match_nothing():
    job_in(State.FAILED, queue="mail")

    assert "no job matches" in run("retry", "--queue=mail", "--tenant=acme", "--yes", WHY)


@pytest.mark.django_db
def test_filter_never_reaches_what_the_verb_does_not_move():
    succeeded, failed = (job_in(s, queue="mail") for s in (State.SUCCEEDED, State.FAILED))

    assert run("retry", "--queue=mail", "--yes", WHY) == "retry: 1 moved\n"

    assert whole(succeeded)["state"] == State.SUCCEEDED
    assert whole(failed)["state"] == State.PENDING


@pytest.mark.django_db
def test_many_matching_jobs_are_moved_slice_by_slice(monkeypatch):
    monkeypatch.setattr(operating, "_SLICE", 3)
    for _ in range(8):
        job_in(State.FAILED)

    assert run("retry", "--state=failed", "--yes", WHY) == "retry: 8 moved\n"


@pytest.mark.django_db
def test_filter_leaves_alone_what_was_moved_since_it_looked(monkeypatch):
    slices = operating._slices
    job = job_in(State.FAILED)

    def move_meanwhile(jobs):
        for found in slices(jobs):
            Job.objects.update(revision=1)  # failed anew, in another way
            yield found

    monkeypatch.setattr(operating, "_slices", move_meanwhile)

    assert "1 stale" in refuse("retry", "--state=failed", "--yes", WHY)

    assert whole(job)["state"] == State.FAILED


@pytest.mark.django_db
def test_filter_passes_over_what_it_cannot_move(monkeypatch):
    monkeypatch.setattr(operating, "_SLICE", 1)
    for key in ("k", ""):
        job_in(State.FAILED, key=key, key_scope="live")
    job_in(State.PENDING, key="k", key_scope="live")

    assert "1 key_taken, 1 moved" in refuse("retry", "--state=failed", "--yes", WHY)


@pytest.mark.django_db
def test_filter_without_a_terminal_needs_yes(monkeypatch):
    monkeypatch.setattr("sys.stdin", StringIO())
    job = job_in(State.FAILED)

    assert "1 jobs match; add --yes" in refuse("retry", "--state=failed", WHY)

    assert whole(job)["state"] == State.FAILED


@pytest.mark.django_db
@pytest.mark.parametrize(("answer", "state"), [("y", State.PENDING), ("", State.FAILED)])
def test_filter_at_a_terminal_asks(answer, state, monkeypatch):
    asked = []
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or answer)
    job = job_in(State.FAILED)

    (run if answer else refuse)("retry", "--state=failed", WHY)

    assert asked == ["retry 1 jobs? [y/N] "]
    assert whole(job)["state"] == state


@pytest.mark.django_db
def test_dry_run_counts_and_moves_nothing():
    jobs = [job_in(State.FAILED), job_in(State.SUCCEEDED)]
    before = [whole(job) for job in jobs]

    assert run("retry", jobs[0].pk, jobs[1].pk, "--dry-run", WHY) == "Would retry 1 jobs.\n"
    assert run("retry", "--state=failed", "--dry-run", WHY) == "Would retry 1 jobs.\n"

    assert [whole(job) for job in jobs] == before


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", [(), ("1", "--queue=mail"), ("1", "--state=failed")])
def test_jobs_are_named_by_ids_or_by_filters(arguments):
    assert "either" in refuse("retry", *arguments, WHY)


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["retry", "cancel", "park", "pause", "resume"])
def test_empty_reason_is_refused(verb):
    target = "mail" if verb in ("pause", "resume") else "1"

    assert "reason" in refuse(verb, target, "--reason=")


@pytest.mark.django_db
def test_state_that_the_verb_does_not_move_is_refused():
    assert "succeeded" in refuse("retry", "--state=succeeded", WHY)


# pause, resume


@pytest.mark.django_db
def test_queue_is_paused_and_resumed():
    assert run("pause", "mail", WHY) == "Queue mail is paused.\n"
    assert run("pause", "mail", WHY) == "Queue mail is paused already.\n"
    assert Queue.objects.get().paused_at is not None
    assert run("resume", "mail", WHY) == "Queue mail is resumed.\n"
    assert run("resume", "mail", WHY) == "Queue mail is not paused.\n"


# recover, prune


@pytest.mark.django_db
def test_recover_expires_promotes_and_takes_back():
    past = timezone.now() - timedelta(minutes=1)
    due = job_in(State.SCHEDULED, due_at=past)
    lost = job_in(State.RUNNING, lease_expires_at=past)
    late = job_in(State.PENDING, deadline_at=past)
    held = job_in(State.RUNNING)

    assert run("recover") == "expired 1, promoted 1, recovered 1\n"

    assert whole(late)["state"] == State.CANCELLED
    assert (whole(due)["state"], whole(lost)["crashes"]) == (State.PENDING, 1)
    assert whole(held)["state"] == State.RUNNING


@pytest.mark.django_db
def test_prune_walks_to_the_end():
    old = timezone.now() - timedelta(days=30)
    for _ in range(5):
        job_in(State.SUCCEEDED, created_at=old, finished_at=old)
    job_in(State.FAILED, created_at=old, finished_at=old)

    assert "would delete 5 jobs" in run("prune", "--batch=2", "--dry-run")
    assert Job.objects.count() == 6
    assert "deleted 5 jobs" in run("prune", "--batch=2")
    assert Job.objects.get().state == State.FAILED


@two_sessions
def test_second_pruner_says_that_it_stops():
    with second_session() as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [int.from_bytes(b"leasepru", "big")])

        assert "Another pruner" in refuse("prune")


# doctor


def levels(*arguments: str) -> dict[str, str]:
    out = StringIO()
    with contextlib.suppress(CommandError):
        call_command("leasejobs", "doctor", "--json", *arguments, stdout=out)
    return {finding["check"]: finding["level"] for finding in json.loads(out.getvalue())}


@two_sessions
def test_doctor_finds_a_sound_installation_sound():
    Worker.objects.create(
        name="host:7", host="h", pid=7, version="1", processes=1, threads=1, queues=[]
    )
    job_in(State.PENDING)

    found = levels()

    assert set(found) == {name for name, _, _ in doctor._CHECKS}
    assert set(found.values()) == {"ok"}
    assert "ok" in run("doctor")


@two_sessions
def test_doctor_misses_workers_and_a_migration_and_knows_what_to_do():
    assert levels()["workers"] == "warning"
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE app = 'leasejobs' AND name = '0002_engine'"
            " RETURNING app, name, applied"
        )
        [row] = cursor.fetchall()
    try:
        text = refuse("doctor")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO django_migrations (app, name, applied)"
                           " VALUES (%s, %s, %s)", row)  # fmt: skip

    assert "not applied: 0002_engine" in text
    assert "manage.py migrate leasejobs" in text


@two_sessions
def test_doctor_finds_an_invalid_index():
    JobFactory.create_batch(2)
    with second_session(autocommit=True) as other:
        with pytest.raises(Exception, match="is duplicated"):
            other.execute("CREATE UNIQUE INDEX CONCURRENTLY half_built ON leasejobs_job (task)")
        try:
            assert "REINDEX INDEX CONCURRENTLY half_built" in refuse("doctor")
        finally:
            other.execute("DROP INDEX half_built")


@two_sessions
def test_doctor_finds_tasks_that_no_code_knows():
    job_in(State.SCHEDULED, task="gone.task")
    job_in(State.FAILED, task="another.gone")

    text = refuse("doctor")

    assert "gone.task" in text
    assert "another.gone" not in text


@two_sessions
def test_doctor_says_when_notifications_do_not_arrive(monkeypatch):
    monkeypatch.setattr(probes, "_ROUND_TRIP_SECONDS", 0.05)
    real = probes._ask

    def without_notify(alias, sql, params=None):
        return [] if "pg_notify(" in sql else real(alias, sql, params)

    monkeypatch.setattr(probes, "_ask", without_notify)

    assert probes.notifications("default")[0] == "warning"


@two_sessions
def test_doctor_finds_autovacuum_off_for_our_table():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leasejobs_job SET (autovacuum_enabled = false)")
    try:
        assert probes.vacuum("default")[0] == "problem"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE leasejobs_job RESET (autovacuum_enabled)")


@two_sessions
def test_doctor_names_the_oldest_transaction(monkeypatch):
    monkeypatch.setattr(probes, "_LONG_TRANSACTION", 0.0)

    with second_session() as other:
        other.execute("SELECT 1")
        level, _, advice = probes.oldest_transaction("default")
        assert level == "warning"
        assert str(other.info.backend_pid) in advice


@two_sessions
def test_doctor_sees_clocks_apart(monkeypatch):
    monkeypatch.setattr(probes, "_CLOCK_SECONDS", -1.0)

    assert probes.clocks("default")[0] == "warning"


@two_sessions
def test_doctor_refuses_a_read_only_database():
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        assert probes.database("default")[0] == "problem"
    finally:
        connection.close()


def test_doctor_says_that_a_database_is_away_and_stops(worker_env):
    away = worker_env | {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}

    result = manage(away, "doctor")

    assert result.returncode == 1
    assert "problem" in result.stdout
    assert "migrations" not in result.stdout
    assert "Traceback" not in result.stderr
