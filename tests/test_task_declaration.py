"""How tasks are declared, what is checked before anything runs, and what the package exports."""

import contextlib
import copy
import dataclasses
import enum
import json
import pickle
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import django
import pytest
from django.core.checks import run_checks
from django.test.utils import modify_settings, override_settings

from leasejobs import Backoff, Task, conf, current, enqueue_many, registry, task
from leasejobs.backend import LeaseBackend
from leasejobs.checks import check_backend, check_database, check_handlers, check_settings
from leasejobs.compat import InvalidTask, task_backends
from leasejobs.compat import Task as DjangoTask
from leasejobs.declare import NO_BACKEND
from leasejobs.exceptions import InvalidArguments, NotConfigured, UnknownTask
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
    registry.autodiscover()  # or what it imports would be registered here alone
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_aliases", {})


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


def test_coroutine_function_is_a_task(own_registry):
    assert task(asynchronous).call() is None


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


# options


def refund(order_id: int, note: str = "none", *more, tags=(), **rest) -> None: ...


def only_positional(order_id, /, note="") -> None: ...


def keyed_with_context(context, order_id: int) -> None: ...


REF = UUID(int=5)


def dated(day: Any = date(2026, 1, 2), ref: Any = REF) -> None: ...


noop_elsewhere = tasks.noop


class Colour(str, enum.Enum):  # noqa: UP042 - its format() is "Colour.RED" on some versions
    RED = "red"


@task
def handler(job_id: int, reason: str) -> None: ...


@task(takes_context=True)
def handler_with_context(context, *, job_id, reason) -> None: ...


@task(key="receipt:{order_id}:{note}", lock_key="order:{order_id:05d}")
def templated(order_id: int, note: Any = "none") -> None: ...


@pytest.mark.parametrize("options", [
    {"timeout": timedelta(0)}, {"timeout": 5}, {"timeout": timedelta(days=400)},
    {"expires_after": timedelta(0)}, {"expires_after": 5}, {"expires_after": timedelta(days=9000)},
    {"on_dead": 5}, {"on_dead": plain}, {"aliases": "a.b"}, {"aliases": ["a.b"]},
    {"aliases": ("old",)}, {"aliases": ("a..b",)}, {"aliases": (5,)},
], ids=", ".join)  # fmt: skip
def test_policy_that_makes_no_sense_is_refused_at_import(options, own_registry):
    with pytest.raises(InvalidTask):
        task(**options)(plain)

    assert registry.known() == []


@pytest.mark.parametrize("options", [
    {"expires_at": 5}, {"expires_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    {"expires_at": datetime(9999, 1, 1, tzinfo=UTC)},
    {"run_after": datetime(9999, 1, 1, tzinfo=UTC)},
    {"expires_at": datetime(2030, 1, 1, tzinfo=UTC), "expires_after": timedelta(1)},
    {"timeout": timedelta(-1)}, {"lock_key": None}, {"lock_key": "x" * 501}, {"lock_key": "\x00"},
    {"correlation_id": "x" * 201}, {"correlation_id": 5}, {"metadata": [1]},
    {"metadata": {"a": object()}}, {"metadata": {"a": "x" * 10_000}}, {"metadata": "text"},
], ids=", ".join)  # fmt: skip
def test_option_of_a_call_that_makes_no_sense_is_refused_at_the_door(options):
    with pytest.raises((InvalidTask, InvalidArguments)):
        tasks.noop.using(**options)


@pytest.mark.parametrize("name", ["nonsense", "func", "takes_context", "literals", "aliases"])
def test_using_has_no_option_that_a_call_could_not_have(name):
    with pytest.raises(TypeError, match=name):
        tasks.noop.using(**{name: "x"})


@pytest.mark.django_db
def test_options_of_a_call_reach_its_row():
    tasks.noop.using(
        timeout=timedelta(minutes=5), lock_key="l", correlation_id="c", metadata={"a": [1, "ä"]},
        expires_after=timedelta(hours=1),
    ).enqueue()  # fmt: skip

    row = Job.objects.get()
    assert (row.timeout_seconds, row.lock_key, row.correlation_id) == (300.0, "l", "c")
    assert (row.metadata, row.deadline_at) == (
        {"a": [1, "ä"]},
        row.created_at + timedelta(hours=1),
    )
    assert (row.on_dead, row.parent_id) == (None, None)


@pytest.mark.django_db
def test_deadline_of_a_call_is_an_instant_or_a_duration_whichever_came_last():
    instant = datetime(2040, 5, 6, tzinfo=UTC)
    once = tasks.noop.using(expires_after=timedelta(1)).using(expires_at=instant)
    back = once.using(expires_after=timedelta(1))

    once.enqueue()

    assert Job.objects.get().deadline_at == instant
    assert (once.expires_at, once.expires_after) == (instant, None)
    assert (back.expires_at, back.expires_after) == (None, timedelta(1))


# key templates


@pytest.mark.parametrize(("template", "said"), [
    ("{nothing}", "no parameter"), ("{rest}", "one value"), ("{more}", "one value"),
    ("{}", "name of a parameter"), ("{0}", "name of a parameter"),
    ("{order_id.real}", "name of a parameter"), ("{tags[0]}", "name of a parameter"),
    ("{order_id!r}", "conversions"), ("{order_id:{note}}", "nested"), ("{order_id", "no template"),
    ("}", "no template"),
])  # fmt: skip
@pytest.mark.parametrize("option", ["key", "lock_key"])
def test_template_that_does_not_fit_the_signature_is_refused_at_import(
    own_registry, option, template, said
):
    with pytest.raises(InvalidTask, match=said):
        task(**{option: template})(refund)


def test_template_cannot_name_what_callers_do_not_pass_by_name(own_registry):
    with pytest.raises(InvalidTask, match="passed by name"):
        task(key="{order_id}")(only_positional)
    with pytest.raises(InvalidTask, match=r"no parameter.*it has: order_id"):
        task(key="{context}", takes_context=True)(keyed_with_context)

    assert task(key="{note}")(only_positional).prepare(1, "x").key == "x"
    assert task(key="{order_id}", takes_context=True)(keyed_with_context).prepare(5).key == "5"


def test_template_is_filled_from_the_arguments_however_they_are_passed():
    assert templated.prepare(7).key == "receipt:7:none"
    assert templated.prepare(order_id=7, note="x").key == "receipt:7:x"
    assert templated.prepare(7, "x") == templated.prepare(7, "x")
    assert templated.prepare(7).lock_key == "order:00007"


@pytest.mark.parametrize(("value", "text"), [
    ("a{b}", "a{b}"), (True, "True"), (1.5, "1.5"), (2**70, str(2**70)), (Colour.RED, "red"),
    ("", ""),
])  # fmt: skip
def test_template_takes_what_has_one_text(value, text):
    assert templated.prepare(1, value).key == f"receipt:1:{text}"


def test_template_takes_defaults_that_are_no_json(own_registry):
    made = task(key="{day:%Y}-{ref}")(dated)

    assert made.prepare().key == f"2026-{REF}"


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, (1,)], ids=str)
def test_template_refuses_a_value_whose_text_is_ambiguous(value):
    with pytest.raises(InvalidArguments, match="note"):
        templated.prepare(1, value)


def test_template_refuses_a_call_it_cannot_be_filled_from(own_registry):
    with pytest.raises(InvalidArguments, match="does not fit order_id"):
        templated.prepare("seven")
    with pytest.raises(InvalidArguments, match="501 characters"):
        templated.using(lock_key="").prepare(1, "x" * (501 - len("receipt:1:")))
    with pytest.raises(InvalidArguments, match="empty"):
        task(key="{note}")(refund).prepare(1, "")
    with pytest.raises(InvalidArguments, match="at most"):
        task(key="{note}", tenant="ä" * 500)(refund).prepare(1, "😀" * 500)


def test_key_given_to_a_call_is_plain_text_and_replaces_the_template():
    varied = templated.using(key="{order_id}")

    assert varied.prepare(7).key == "{order_id}"
    assert varied.prepare(7).lock_key == "order:00007"
    assert varied.using(priority=3).prepare(7).key == "{order_id}"
    assert varied.using(lock_key="{}").prepare(7).lock_key == "{}"
    assert templated.using(key="").prepare(7).key == ""


@pytest.mark.django_db
def test_template_keeps_a_second_job_out():
    first, second = templated.enqueue(7), templated.enqueue(order_id=7)

    assert (first.created, second.created, second.job_id) == (True, False, first.job_id)
    assert templated.enqueue(8).created


def test_tenant_and_key_of_a_call_have_to_fit_one_index_entry():
    with pytest.raises(InvalidArguments, match="together"):
        tasks.noop.using(key="\N{GRINNING FACE}" * 500).using(tenant="\N{GRINNING FACE}" * 200)


# on_dead


@pytest.mark.django_db
def test_policy_of_the_handler_is_kept_on_the_row():
    strict = handler.using(
        queue_name="alerts", priority=9, max_attempts=2, on_crash="park", timeout=timedelta(1)
    )
    tasks.noop.using(on_dead=strict).enqueue()

    assert Job.objects.get().on_dead == {
        "task": "tests.test_task_declaration.handler", "queue": "alerts", "priority": 9,
        "max_attempts": 2, "max_crashes": 3, "on_crash": "park", "timeout_seconds": 86400,
        "backoff": {"base": 5, "cap": 3600, "jitter": 0.25},
    }  # fmt: skip


def test_handler_may_be_named_before_it_exists_and_has_none_of_its_own(own_registry):
    named = task(on_dead=f"{__name__}.handler_with_context")(plain)

    kept = json.loads(named.prepare().on_dead)

    assert kept["task"] == f"{__name__}.handler_with_context"
    assert "on_dead" not in kept


@pytest.mark.parametrize("path", ["tests.gone.handler", "tests.tasks.note", "tests.tasks.echo"])
def test_handler_that_is_none_is_told_by_a_check_and_refused_at_enqueue(own_registry, path):
    named = task(on_dead=path)(plain)

    [error] = check_handlers()

    assert (error.id, path.split(".")[-1] in error.msg) == ("leasejobs.E004", True)
    with pytest.raises(InvalidTask):
        named.prepare()


def test_handler_has_to_take_the_job_and_the_reason(own_registry):
    with pytest.raises(InvalidTask, match="job_id and reason"):
        task(on_dead=tasks.echo)(plain)


# aliases


def test_registry_finds_a_renamed_task_by_its_old_names(own_registry):
    renamed = task(aliases=("shop.jobs.plain", "shop.tasks.plain"))(plain)

    assert registry.find("shop.jobs.plain") is registry.find(renamed.module_path) is renamed
    assert registry.known() == ["shop.jobs.plain", "shop.tasks.plain", renamed.module_path]
    assert registry.tasks() == (renamed,)


def test_alias_belongs_to_one_task(own_registry):
    first = task(aliases=("shop.tasks.old",))(plain)

    with pytest.raises(InvalidTask, match=r"shop\.tasks\.old.*plain"):
        task(aliases=("shop.tasks.old",))(with_context)
    with pytest.raises(InvalidTask, match="belongs to"):
        task(aliases=(first.module_path,))(with_context)

    assert registry.find("shop.tasks.old") is first
    assert registry.tasks() == (first,)


def test_task_cannot_have_a_name_that_is_an_alias(own_registry):
    task(aliases=(f"{__name__}.with_context",))(plain)

    with pytest.raises(InvalidTask, match="alias of"):
        task(takes_context=True)(with_context)


def test_module_that_is_loaded_again_keeps_and_changes_its_aliases(own_registry):
    task(aliases=("shop.a.b",))(plain)
    again = task(aliases=("shop.a.b", "shop.c.d"))(plain)
    assert registry.find("shop.a.b") is registry.find("shop.c.d") is again

    task(aliases=("shop.c.d",))(plain)

    assert registry.known() == ["shop.c.d", again.module_path]


@pytest.mark.django_db
def test_jobs_of_a_renamed_task_run_and_are_counted(own_registry):
    Job.objects.filter(pk=task(plain).enqueue().job_id).update(task="shop.tasks.plain")
    renamed = task(aliases=("shop.tasks.plain",))(plain)

    run = run_next()

    assert run.row["result"] == "plain"
    assert renamed.jobs.count() == 1


# discovery


def test_autodiscovery_imports_the_task_modules_of_every_app(tmp_path, monkeypatch, settings):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/__init__.py").touch()
    (tmp_path / "store/work.py").write_text(
        "from leasejobs import task\n@task(aliases=('store.old.pay',))\ndef pay(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings.LEASEJOBS = {"TASK_MODULES": ["work", "absent"]}
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_aliases", {})

    with modify_settings(INSTALLED_APPS={"append": "store"}):
        registry.autodiscover()
        registry.autodiscover()

    assert registry.known() == ["store.old.pay", "store.work.pay"]


def test_task_module_that_breaks_says_who_imported_it(tmp_path, monkeypatch, settings):
    (tmp_path / "broken_store").mkdir()
    (tmp_path / "broken_store/__init__.py").touch()
    (tmp_path / "broken_store/work.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings.LEASEJOBS = {"TASK_MODULES": ["work"]}

    with modify_settings(INSTALLED_APPS={"append": "broken_store"}):
        with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
            registry.autodiscover()

    assert "'work'" in caught.value.__notes__[0]


def test_function_declared_with_django_is_known_to_the_registry(own_registry):
    made = django_task(plain)
    made.using(priority=5)

    assert registry.tasks() == (made,)
    assert registry.find(made.module_path) is made


def test_name_under_which_a_task_is_imported_elsewhere_finds_it(own_registry):
    assert registry.find(f"{__name__}.noop_elsewhere") is tasks.noop


# pickling


@pytest.mark.parametrize("original", [
    tasks.noop, templated, of_django,
    tasks.explode.using(
        key="k", on_dead=handler, timeout=timedelta(5), metadata={"a": 1}, terminal=(ValueError,),
        run_after=datetime(2040, 1, 1, tzinfo=UTC), queue_name="mail",
    ),
])  # fmt: skip
def test_task_survives_pickling_and_copying(original):
    for twin in (
        pickle.loads(pickle.dumps(original)),
        copy.copy(original),
        copy.deepcopy(original),
    ):
        assert twin == original
        assert hash(twin) == hash(original)
        assert twin.func is original.func


# provenance


@pytest.fixture
def running():
    @contextlib.contextmanager
    def inside(job):
        token = current.running_job.set(current.Running(job))
        try:
            yield
        finally:
            current.running_job.reset(token)

    return inside


def test_job_enqueued_outside_of_any_has_no_parent():
    assert (tasks.noop.prepare().parent_id, tasks.noop.prepare().correlation_id) == (None, "")


def test_job_enqueued_inside_another_is_its_child(running):
    with running(Job(pk=5, correlation_id="")):
        child = tasks.noop.prepare()
    with running(Job(pk=6, correlation_id=child.correlation_id)):
        grandchild = tasks.noop.prepare()
        told = tasks.noop.using(correlation_id="own").prepare()

    assert (child.parent_id, child.correlation_id) == (5, "job:5")
    assert (grandchild.parent_id, grandchild.correlation_id) == (6, "job:5")
    assert (told.parent_id, told.correlation_id) == (6, "own")


@task
def have_child() -> None:
    tasks.echo.enqueue(1)


@task
async def have_child_from_a_coroutine() -> None:
    await tasks.echo.aenqueue(1)


@pytest.mark.django_db
@pytest.mark.parametrize("parent", [have_child, have_child_from_a_coroutine])
def test_body_of_a_job_is_the_parent_of_what_it_enqueues(parent):
    root = parent.enqueue()

    run = run_next()

    child = tasks.echo.jobs.get()
    assert run.row["state"] == State.SUCCEEDED
    assert (child.parent_id, child.correlation_id) == (root.job_id, f"job:{root.job_id}")
    assert current.running_job.get() is None


def test_lock_key_that_would_fit_no_index_is_refused_before_any_claim_meets_it():
    long = "漢" * 500  # 1,500 bytes

    with pytest.raises(InvalidArguments, match="tenant and lock_key have 3000 bytes"):
        tasks.noop.using(tenant=long, lock_key=long)
    with pytest.raises(InvalidArguments, match="tenant and lock_key"):
        tasks.noop.using(lock_key=long).using(tenant=long)
    templated = task(lock_key="{value}")(tasks.echo.func).using(tenant=long)
    with pytest.raises(InvalidArguments, match="tenant and lock_key"):
        templated.prepare(long)


def test_option_nobody_knows_is_named_with_those_there_are():
    with pytest.raises(TypeError, match=r"no option retries; it has: aliases, .*max_attempts"):
        task(retries=3)


def test_task_above_a_task_is_told_which_way_round():
    with pytest.raises(InvalidTask, match="@periodic stands above @task"):
        task(tasks.noop)
