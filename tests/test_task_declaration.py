"""How tasks are declared, what is checked before anything runs, and what the package exports."""

import dataclasses
import pickle
import subprocess
import sys
from datetime import timedelta

import django
import pytest
from django.core.checks import run_checks
from django.test.utils import override_settings

import leasejobs
from leasejobs import Backoff, Task, conf, enqueue_many, registry, task
from leasejobs.backend import LeaseBackend
from leasejobs.checks import check_backend, check_database, check_settings
from leasejobs.compat import InvalidTask, task_backends
from leasejobs.compat import Task as DjangoTask
from leasejobs.declare import NO_BACKEND
from leasejobs.exceptions import InvalidArguments, LeaseJobsError, NotConfigured, UnknownTask
from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks
from tests.running import run_next

if django.VERSION >= (6, 0):
    from django.tasks import task as django_task
else:
    from django_tasks import task as django_task

LEASE_BACKEND = {"BACKEND": "leasejobs.backend.LeaseBackend"}
DUMMY_MODULE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
DUMMY_BACKEND = {"BACKEND": f"{DUMMY_MODULE}.backends.dummy.DummyBackend"}


def plain() -> str:
    return "plain"


async def asynchronous() -> None: ...


def with_context(context) -> int:
    return context.epoch


def without_context(value) -> None: ...


@django_task
def of_django(value: int) -> int:
    return value + 1


@django_task(takes_context=True, queue_name="default", priority=4)
def of_django_with_context(context) -> int:
    return context.attempt


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {})


# the task


def test_task_is_a_task_of_django():
    assert isinstance(tasks.noop, Task)
    assert isinstance(tasks.noop, DjangoTask)
    assert tasks.noop.name == "noop"
    assert tasks.noop.module_path == "tests.tasks.noop"


def test_task_keeps_its_options_and_defaults():
    assert (tasks.explode.max_attempts, tasks.explode.backoff) == (3, tasks.QUICK)
    assert (tasks.noop.max_attempts, tasks.noop.max_crashes, tasks.noop.on_crash) == (8, 3, "retry")
    assert tasks.noop.backoff == Backoff(timedelta(seconds=5), timedelta(hours=1))


def test_task_is_frozen_hashable_and_equal_by_value():
    again = tasks.noop.using()

    assert again == tasks.noop
    assert hash(again) == hash(tasks.noop)
    assert len({tasks.noop, again, tasks.noop.using(key="k")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        tasks.noop.key = "k"


def test_task_runs_its_function_when_called():
    assert tasks.echo.call(3) == 3
    assert tasks.echo.func(3) == 3


def test_using_varies_a_copy_and_keeps_the_rest():
    varied = tasks.explode.using(key="k", queue_name="mail", priority=5, tenant="acme")

    assert (varied.key, varied.queue_name, varied.priority) == ("k", "mail", 5)
    assert (varied.max_attempts, varied.func) == (3, tasks.explode.func)
    assert (tasks.explode.key, tasks.explode.queue_name) == ("", "default")


def test_using_takes_none_for_unchanged_where_django_does():
    urgent = tasks.noop.using(priority=5, queue_name="mail")

    assert urgent.using(priority=None, queue_name=None, backend=None) == urgent


def test_using_keeps_a_duration_apart_from_an_instant():
    varied = tasks.noop.using(run_after=timedelta(minutes=5))

    assert (varied.run_after, varied.delay) == (None, timedelta(minutes=5))


def test_decorator_takes_its_forms(own_registry):
    bare, called, optioned = task(plain), task()(plain), task(max_attempts=2, queue_name="x")(plain)

    assert bare == called
    assert (optioned.max_attempts, optioned.queue_name) == (2, "x")
    assert registry.find(optioned.module_path) is optioned


def test_decorator_uses_the_first_alias_with_a_lease_backend(own_registry):
    with override_settings(TASKS={"default": DUMMY_BACKEND, "jobs": LEASE_BACKEND}):
        assert task(plain).backend == "jobs"
        assert task(backend="jobs")(plain).backend == "jobs"


@pytest.mark.parametrize("options", [
    {"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 1.5}, {"max_attempts": 10**7},
    {"max_crashes": 0}, {"max_crashes": "3"}, {"on_crash": "explode"}, {"backoff": 5},
    {"key_scope": "sometimes"}, {"terminal": ValueError}, {"terminal": (5,)},
    {"terminal": (KeyboardInterrupt,)}, {"delay": timedelta(-1)}, {"delay": 5}, {"priority": 101},
], ids=str)  # fmt: skip
def test_option_that_makes_no_sense_is_refused_at_import(options, own_registry):
    with pytest.raises(InvalidTask):
        task(**options)(plain)

    assert registry.tasks() == ()


@pytest.mark.parametrize("options", [{"terminal": [ValueError]}, {"nonsense": 1}], ids=str)
def test_option_of_the_wrong_kind_is_refused_at_import(options, own_registry):
    with pytest.raises((TypeError, InvalidTask)):
        task(**options)(plain)


def test_coroutine_function_is_refused(own_registry):
    with pytest.raises(InvalidTask, match="async"):
        task(asynchronous)


def test_function_inside_a_function_is_refused(own_registry):
    def local() -> None: ...

    with pytest.raises(InvalidTask, match="module level"):
        task(local)


def test_context_has_to_be_the_first_argument(own_registry):
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(without_context)

    assert task(takes_context=True)(with_context).takes_context


def test_prepared_job_can_be_pickled_and_is_frozen():
    prepared = tasks.echo.using(key="k", run_after=timedelta(1)).prepare([1])

    assert pickle.loads(pickle.dumps(prepared)) == prepared
    with pytest.raises(AttributeError):
        prepared.key = "x"


# the backend


def test_backend_has_the_features_of_a_job():
    backend = task_backends["default"]

    assert isinstance(backend, LeaseBackend)
    assert backend.task_class is Task
    assert backend.supports_defer
    assert backend.supports_priority


def test_backend_without_queues_takes_any_and_with_queues_its_own(own_registry):
    assert task(queue_name="anything")(plain).queue_name == "anything"

    with override_settings(TASKS={"default": {**LEASE_BACKEND, "QUEUES": ["mail"]}}):
        assert task(queue_name="mail")(plain).queue_name == "mail"
        with pytest.raises(InvalidTask, match="'other'"):
            task(queue_name="other")(plain)


@pytest.mark.django_db
def test_function_declared_with_django_runs_on_the_backend():
    result = of_django.enqueue(41)

    run = run_next()

    assert isinstance(of_django, Task)
    assert (run.job.pk, run.row["state"], run.row["result"]) == (result.job_id, State.SUCCEEDED, 42)


@pytest.mark.django_db
def test_context_of_a_function_declared_with_django():
    of_django_with_context.enqueue()

    run = run_next()

    assert run.row["result"] == 1
    assert run.row["priority"] == -4


@pytest.mark.django_db
def test_function_declared_with_django_can_be_enqueued_in_bulk():
    found = enqueue_many([of_django.prepare(1), of_django.using(key="k").prepare(2)])

    assert [item.created for item in found] == [True, True]
    assert Job.objects.filter(task=of_django.module_path).count() == 2


@pytest.mark.django_db(transaction=True)
def test_enqueue_from_a_coroutine():
    from asgiref.sync import async_to_sync

    result = async_to_sync(tasks.echo.aenqueue)(5)

    assert Job.objects.get(pk=result.job_id).args == [5]


# no backend


def test_task_without_a_backend_is_told_by_a_check_and_refuses_to_enqueue(own_registry):
    with override_settings(TASKS={"default": DUMMY_BACKEND}):
        orphan = task(plain)
        [error] = check_backend()

        assert orphan.backend == NO_BACKEND
        assert error.id == "leasejobs.E003"
        assert "test_task_declaration.plain" in error.msg
        assert "leasejobs.backend.LeaseBackend" in error.hint
        with pytest.raises(NotConfigured, match=r"leasejobs\.backend\.LeaseBackend"):
            orphan.enqueue()
        with pytest.raises(NotConfigured):
            orphan.using(key="k").enqueue()


@pytest.mark.django_db
def test_job_of_a_task_without_a_backend_is_not_prepared_into_a_row(own_registry):
    with override_settings(TASKS={"default": DUMMY_BACKEND}):
        orphan = task(plain)
        with pytest.raises(NotConfigured):
            enqueue_many([orphan.prepare()])

    assert not Job.objects.exists()


def test_project_without_tasks_and_backend_is_warned(own_registry):
    with override_settings(TASKS={"default": DUMMY_BACKEND}):
        [warning] = check_backend()

    assert warning.id == "leasejobs.W002"


# settings


def test_project_of_the_suite_passes_every_check():
    assert [found for found in run_checks() if "leasejobs" in str(found.id)] == []


def test_misspelt_setting_is_warned_with_a_suggestion(settings):
    settings.LEASEJOBS = {"LEASE_SECOND": 5}

    [warning] = check_settings()

    assert (warning.id, "LEASE_SECONDS" in warning.hint) == ("leasejobs.W001", True)
    assert conf.load().LEASE_SECONDS == 30


@pytest.mark.parametrize("value", [
    {"LEASE_SECONDS": 0.5}, {"LEASE_SECONDS": "30"}, {"LEASE_SECONDS": True},
    {"LEASE_SECONDS": float("nan")}, {"LEASE_SECONDS": float("inf")}, {"LEASE_SECONDS": 10**9},
    {"POLL_SECONDS": 0}, {"POLL_SECONDS": -1}, {"SHUTDOWN_SECONDS": -1}, {"SHUTDOWN_SECONDS": None},
    {"MAX_INTERRUPTIONS": -1}, {"MAX_INTERRUPTIONS": 1.5}, {"MAX_INTERRUPTIONS": True},
    {"DATABASE": "nowhere"}, {"DATABASE": None}, {"DATABASE": ["default"]}, {"DATABASE": {}},
    {"REQUIRE_TENANT": "no"},
    "leasejobs", None, [], 5,
], ids=str)  # fmt: skip
def test_setting_that_makes_no_sense_is_an_error_and_no_check_crashes(settings, value):
    settings.LEASEJOBS = value

    found = [*check_settings(), *check_database(), *check_backend()]

    assert "leasejobs.E001" in {message.id for message in found}


@pytest.mark.parametrize("value", [
    {}, {"LEASE_SECONDS": 1}, {"LEASE_SECONDS": 3600.5}, {"POLL_SECONDS": 0.01},
    {"SHUTDOWN_SECONDS": 0}, {"MAX_INTERRUPTIONS": 0}, {"DATABASE": "other"},
    {"REQUIRE_TENANT": True},
], ids=str)  # fmt: skip
def test_setting_that_makes_sense_is_taken(settings, value):
    settings.LEASEJOBS = value

    assert check_settings() == []
    assert check_database() == []
    for name, item in value.items():
        assert getattr(conf.load(), name) == item


def test_database_of_another_vendor_is_an_error(settings, monkeypatch):
    from django.db import connections

    monkeypatch.setattr(connections["other"], "vendor", "sqlite", raising=False)
    settings.LEASEJOBS = {"DATABASE": "other"}

    [error] = check_database()

    assert error.id == "leasejobs.E002"


# the registry


def test_registry_finds_a_task_by_name_and_imports_it_if_need_be(own_registry):
    assert registry.find("tests.tasks.noop") is tasks.noop


@pytest.mark.parametrize(
    "name", ["tests.tasks.gone", "tests.tasks.note", "gone.at.all", "gone", ""]
)
def test_registry_says_what_it_does_not_know(name):
    with pytest.raises(UnknownTask):
        registry.find(name)


@pytest.mark.parametrize(
    "text",
    ["raise RuntimeError('at import')", "raise SystemExit(3)", "raise KeyboardInterrupt", "def"],
)
def test_name_whose_module_breaks_at_import_is_unknown(tmp_path, monkeypatch, text):
    (tmp_path / "broken_tasks.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UnknownTask):
        registry.find("broken_tasks.task")


# the package


IMPORTS = """
import importlib, os, pkgutil, sys, types
import django
django.setup()
import leasejobs
names = [
    module.name
    for module in pkgutil.walk_packages(leasejobs.__path__, "leasejobs.")
    if ".migrations." not in module.name and not module.name.endswith("__main__")
]
def check(*steps):
    if os.fork() == 0:
        try:
            for step in steps:
                step()
            for name in leasejobs.__all__:
                value = getattr(importlib.import_module("leasejobs"), name)
                assert not isinstance(value, types.ModuleType), name
                assert value.__module__.startswith("leasejobs."), name
        except BaseException as error:
            print(names, steps, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.wait()[1]
def public():
    exec("from leasejobs import " + ", ".join(leasejobs.__all__))
failed = 0
for name in names:
    submodule = lambda: importlib.import_module(name)
    failed |= check(submodule, public) | check(public, submodule, public)
print(len(names), "submodules")
sys.exit(failed != 0)
"""


@pytest.mark.django_db(databases=[])
def test_public_names_are_what_they_are_before_and_after_every_submodule():
    found = run_python(IMPORTS)

    assert found.returncode == 0, found.stdout + found.stderr
    assert int(found.stdout.split()[0]) > 25


def test_no_submodule_has_the_name_of_a_public_export():
    import pkgutil

    modules = {module.name for module in pkgutil.iter_modules(leasejobs.__path__)}

    assert modules.isdisjoint(leasejobs.__all__)


def test_importing_the_package_imports_nothing_else():
    found = run_python(
        "import sys; before = set(sys.modules); import leasejobs; leasejobs.__version__;"
        "dir(leasejobs); new = {n.split('.')[0] for n in set(sys.modules) - before};"
        "print(sorted(n for n in new if n not in sys.stdlib_module_names))"
    )

    assert found.stdout.strip() == "['leasejobs']", found.stderr


def test_package_says_what_it_does_not_have():
    with pytest.raises(AttributeError, match="nonsense"):
        leasejobs.nonsense  # noqa: B018

    assert set(leasejobs.__all__) <= set(dir(leasejobs))


def test_errors_hang_under_one_base():
    assert issubclass(InvalidArguments, LeaseJobsError)
    assert issubclass(InvalidArguments, ValueError)
    for name in leasejobs.__all__:
        value = getattr(leasejobs, name)
        if isinstance(value, type) and value.__module__ == "leasejobs.exceptions":
            assert issubclass(value, LeaseJobsError)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("name", ["", " ", "a,b", " a", "a "])
def test_queue_that_no_worker_could_be_told_of_is_refused(name):
    with pytest.raises(InvalidTask, match="queue_name"):
        tasks.noop.using(queue_name=name)


@pytest.mark.parametrize("when", [5, "tomorrow", True])
def test_waiting_is_an_instant_or_a_duration(when):
    with pytest.raises(InvalidTask, match="datetime or a timedelta"):
        tasks.noop.using(run_after=when)


def test_decorator_takes_no_instant():
    with pytest.raises(TypeError, match="using"):
        task(run_after=5)


@pytest.mark.django_db
def test_enqueue_many_says_what_it_takes():
    with pytest.raises(InvalidArguments, match="prepare"):
        enqueue_many([tasks.noop])
