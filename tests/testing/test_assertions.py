"""`assert_enqueued` tells what was enqueued, from rows and from a `DummyBackend` alike."""

import datetime
from datetime import timedelta

import pytest
from django.test import TestCase, override_settings
from django.utils import timezone

from leasejobs import enqueue_many
from leasejobs.backend import LeaseBackend
from leasejobs.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends, task_enqueued
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import Job
from leasejobs.states import State
from leasejobs.testing import (
    DummyBackend,
    assert_enqueued,
    assert_not_enqueued,
    expire_lease,
    make_due,
    run_due,
)
from tests import tasks
from tests.factories import job_in
from tests.testing import tasks as odd


@override_settings(TASKS={"default": {"BACKEND": "leasejobs.testing.DummyBackend"}})
class InTestCase(TestCase):
    def test_nothing_is_stored_or_run(self):
        with self.assertNumQueries(0):
            tasks.echo.enqueue(1)
            assert_enqueued(tasks.echo, args=[1])


@pytest.fixture(params=["rows", "dummy"])
def either(request) -> str:
    """Let a test run with rows and with recorded calls."""
    request.getfixturevalue("db" if request.param == "rows" else "dummy")
    return request.param


def refused(*arguments, **described) -> list[str]:
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(*arguments, **described)
    return str(caught.value).splitlines()


def test_call_is_found_by_everything_it_has(either):
    when = timezone.now() + timedelta(minutes=1)
    result = (tasks.echo.using(queue_name="mail", tenant="acme", key="k", run_after=when)).enqueue(
        value=(1, 2)
    )

    [call] = assert_enqueued(
        tasks.echo, args=[], kwargs={"value": [1, 2]}, queue="mail", tenant="acme", key="k",
        within=timedelta(minutes=2),
    )  # fmt: skip

    assert call.job_id == result.job_id
    assert timedelta(seconds=30) < call.due_in < timedelta(minutes=2)


@pytest.mark.parametrize(
    "described",
    [
        {"args": [2]},
        {"kwargs": {"value": 1}},
        {"queue": "default"},
        {"tenant": ""},
        {"key": ""},
        {"within": timedelta(minutes=1)},
        {"count": 2},
        {"count": 0},
    ],
    ids=str,
)
def test_call_that_differs_in_one_thing_is_a_near_miss(described, either):
    tasks.echo.using(
        queue_name="mail", tenant="acme", key="k", run_after=timedelta(hours=1)
    ).enqueue(1)

    head, miss = refused(tasks.echo, **described)

    found = 1 if "count" in described else 0
    assert head.startswith("expected ")
    assert head.endswith(f"found {found}")
    assert "args=[1] kwargs={} queue='mail' tenant='acme' key='k' due in " in miss
    if not found:
        assert miss.startswith(f"  not its {next(iter(described))}: #")


def test_misses_are_told_nearest_first_and_not_all_of_them(either):
    for number in range(12):
        tasks.echo.using(tenant="t").enqueue(number)
    tasks.echo.enqueue("near")

    lines = refused(tasks.echo, args=[99], tenant="")

    assert "args=['near']" in lines[1]
    assert lines[1].startswith("  not its args: ")
    assert lines[2].startswith("  not its args, tenant: ")
    assert lines[-1] == "  and 3 more"
    assert len(lines) == 12


def test_where_nothing_of_the_task_was_enqueued_the_others_are_named(either):
    assert refused(tasks.echo)[1] == "  nothing of this task was enqueued at all"

    tasks.noop.enqueue()

    assert refused(tasks.echo)[1].endswith("; enqueued were tests.tasks.noop")


def test_long_arguments_are_cut_in_the_message(either):
    tasks.echo.enqueue("x" * 10_000)

    assert max(map(len, refused(tasks.echo, args=[1]))) < 300


def test_count_is_exact_and_none_means_some(either):
    tasks.echo.enqueue(1)
    tasks.echo.enqueue(2)

    assert len(assert_enqueued(tasks.echo, count=2)) == 2
    assert len(assert_enqueued(tasks.echo, count=None)) == 2
    assert refused(tasks.echo)[0] == "expected 1 call of tests.tasks.echo, found 2"
    assert refused(tasks.echo, args=[3], count=None)[0] == (
        "expected at least one call of tests.tasks.echo with args=[3], found 0"
    )


def test_absence_is_asserted_and_refused(either):
    assert_not_enqueued(tasks.echo)
    tasks.echo.using(run_after=timedelta(hours=1)).enqueue(1)

    assert_not_enqueued(tasks.echo, args=[2])
    assert_not_enqueued(tasks.echo, within=timedelta(minutes=59))
    with pytest.raises(AssertionError, match=r"expected 0 calls of .* found 1\n  fits: #"):
        assert_not_enqueued(tasks.echo, args=[1])


def test_what_is_no_task_is_refused():
    with pytest.raises(TypeError, match="takes a task"):
        assert_enqueued("tests.tasks.echo")


def test_jobs_that_ran_count_too(db):
    tasks.echo.enqueue(1)
    run_due()

    assert_enqueued(tasks.echo, args=[1])


def test_jobs_enqueued_in_bulk_and_eagerly_count(eager):
    tasks.echo.enqueue(1)
    enqueue_many([tasks.echo.prepare(2)])

    assert_enqueued(tasks.echo, count=2)


def test_dummy_records_results_and_touches_no_database(dummy):
    heard = []

    def hear(task_result, **_):
        heard.append(task_result)

    task_enqueued.connect(hear)
    result = tasks.echo.using(priority=3).enqueue(1)
    task_enqueued.disconnect(hear)

    [recorded] = dummy.results
    assert heard == [recorded]
    assert isinstance(dummy, DummyBackend)
    assert isinstance(dummy, LeaseBackend)
    assert (recorded.id, recorded.task) == (result.id, result.task)
    assert (result.status, result.created, result.args) == (TaskResultStatus.READY, True, [1])
    assert (result.task.priority, result.id) == (3, str(result.job_id))
    assert dummy.get_result(result.id) is recorded
    dummy.clear()
    assert dummy.results == []
    with pytest.raises(TaskResultDoesNotExist, match="nothing was recorded as '-1'"):
        dummy.get_result(result.id)


def test_record_is_not_what_the_caller_got(dummy):
    argument = [1]

    result = tasks.echo.enqueue(argument)
    result.args.append("more")
    argument.append("else")

    assert dummy.results[0].args == [[1]]


def test_key_that_a_recorded_call_has_is_taken(dummy):
    first = tasks.echo.using(key="k").enqueue(1)
    second = tasks.echo.using(key="k").enqueue(2)
    other = tasks.echo.using(key="k", tenant="acme").enqueue(3)

    assert (second.job_id, second.created) == (first.job_id, False)
    assert other.created
    assert len(dummy.results) == 2
    dummy.results.clear()
    assert tasks.echo.using(key="k").enqueue(1).created


def test_tenant_is_required_of_a_recorded_call_too(dummy, settings):
    settings.LEASEJOBS = {"REQUIRE_TENANT": True}

    with pytest.raises(InvalidArguments, match="REQUIRE_TENANT"):
        tasks.echo.enqueue(1)

    tasks.echo.using(tenant="acme").enqueue(1)
    assert_enqueued(tasks.echo, tenant="acme")


def test_call_that_does_not_fit_is_not_recorded(dummy):
    with pytest.raises(InvalidArguments):
        tasks.echo.enqueue(1, 2)

    assert dummy.results == []


def test_queue_that_a_backend_does_not_take_is_refused(settings):
    settings.TASKS = {
        "default": {"BACKEND": "leasejobs.testing.DummyBackend", "QUEUES": ["default"]}
    }

    with pytest.raises(Exception, match="Queue 'mail' is not valid"):
        tasks.echo.using(queue_name="mail").enqueue(1)
    assert task_backends["default"].results == []


@pytest.mark.parametrize("state", sorted(set(State) - {State.SCHEDULED, State.RETRYABLE}))
def test_only_a_waiting_job_is_made_due(state, db):
    job = job_in(state)

    with pytest.raises(AssertionError, match="is not waiting"):
        make_due(job)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYABLE])
def test_waiting_job_is_made_due(state, db):
    job = job_in(state, due_at=datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC))
    assert not Job.objects.due().exists()

    make_due(job)

    assert Job.objects.due().get() == job


def test_only_a_leased_row_has_a_lease_to_expire(db):
    with pytest.raises(AssertionError, match="is not leased"):
        expire_lease(job_in(State.PENDING))

    expire_lease(job_in(State.RUNNING))

    assert Job.objects.expired().count() == 1


def test_unknown_name_of_the_package_is_an_attribute_error():
    import leasejobs.testing

    assert set(leasejobs.testing.__all__) <= set(dir(leasejobs.testing))
    for name in leasejobs.testing.__all__:
        assert getattr(leasejobs.testing, name).__module__.startswith("leasejobs.testing.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = leasejobs.testing.nothing


def test_failing_assertion_is_not_hidden_behind_eager_runs(eager):
    odd.snooze.enqueue()

    assert refused(odd.snooze, count=2)[0].endswith("found 1")
