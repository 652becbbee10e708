"""Each system check: what it tells, and that it is silent otherwise."""

from typing import Any

import pytest
from django.core import checks
from django.test import override_settings

from leasejobs import redaction
from leasejobs.checks import pool_size
from leasejobs.compat import BaseTaskBackend


def told(**settings: Any) -> set[str]:
    with override_settings(**settings):
        found = checks.run_checks()
    return {message.id for message in found if str(message.id).startswith("leasejobs.")}


@pytest.fixture
def change_database(monkeypatch, settings):
    """Change what DATABASES says, while nobody connects."""

    def change(**changes: Any) -> None:
        default = settings.DATABASES["default"]
        monkeypatch.setitem(settings.DATABASES, "default", default | changes)

    return change


@pytest.fixture(autouse=True)
def known_task_modules(settings) -> None:
    """Checks import the task modules of every app: not those of the suite's own."""
    settings.LEASEJOBS = {"TASK_MODULES": []}


def test_sound_project_is_told_nothing():
    assert told() == set()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"LEASE_SECONDS": 0}, {"leasejobs.E001"}),
        ({"POLL_SECONDS": "1"}, {"leasejobs.E001"}),
        ({"SHUTDOWN_SECONDS": -1}, {"leasejobs.E001"}),
        ({"MAX_INTERRUPTIONS": True}, {"leasejobs.E001"}),
        ({"REQUIRE_TENANT": 1}, {"leasejobs.E001"}),
        ({"MAX_ARGUMENT_BYTES": 100}, {"leasejobs.E001"}),
        ({"MAX_ARGUMENT_BYTES": "1 MB"}, {"leasejobs.E001"}),
        ({"DATABASE": "nowhere"}, {"leasejobs.E001"}),
        ({"LISTEN_DATABASE": "nowhere"}, {"leasejobs.E001"}),
        ({"TASK_MODULES": "tasks"}, {"leasejobs.E001"}),
        ({"REDACTOR": "no.such.function"}, {"leasejobs.E001"}),
        ({"REDACTOR": "tests.factories.HOLDER"}, {"leasejobs.E001"}),
        ({"RETENTION_DAYS": 3}, {"leasejobs.E001"}),
        ({"RETENTION_DAYS": {"succeeded": -1}}, {"leasejobs.E001"}),
        ({"RETENTION_DAYS": {"finished": 1}}, {"leasejobs.E001"}),
        ({"RETENTION_DAYS": {"succeeded": None, "failed": 0.5}}, set()),
        ({"LEASE_SECOND": 30}, {"leasejobs.W001"}),
        ("no dictionary", {"leasejobs.E001"}),
    ],
)
def test_setting_is_judged(value, expected):
    if isinstance(value, dict):
        value = {"TASK_MODULES": []} | value

    assert told(LEASEJOBS=value) == expected


def test_unknown_setting_comes_with_a_suggestion():
    with override_settings(LEASEJOBS={"LEASE_SECOND": 30, "TASK_MODULES": []}):
        [message] = [found for found in checks.run_checks() if found.id == "leasejobs.W001"]

    assert message.hint == "Did you mean 'LEASE_SECONDS'?"


def test_naive_times_are_an_error():
    assert told(USE_TZ=False) >= {"leasejobs.E005"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pool": True}, {"leasejobs.W003"}),
        ({"pool": {"max_size": 4}}, {"leasejobs.W003"}),
        ({"pool": {"min_size": 2, "max_size": 9}}, set()),
        ({"pool": False}, set()),
    ],
)
def test_pool_has_to_hold_a_child(options, expected, change_database):
    change_database(OPTIONS=options)

    assert told() == expected


def test_pool_size_is_that_of_psycopg():
    assert pool_size({"OPTIONS": {"pool": {"min_size": 6}}}) == 6
    assert pool_size({"OPTIONS": {}}) is None


@pytest.mark.parametrize("changes", [{"PORT": 6432}, {"DISABLE_SERVER_SIDE_CURSORS": True}])
def test_pooler_needs_a_direct_alias_to_listen_on(changes, change_database):
    change_database(**changes)

    assert told() == {"leasejobs.W004"}
    assert told(LEASEJOBS={"LISTEN_DATABASE": "other", "TASK_MODULES": []}) == set()


def test_project_without_our_backend_is_told_how_to_add_it():
    module = BaseTaskBackend.__module__.removesuffix(".base")
    elsewhere = {"default": {"BACKEND": f"{module}.dummy.DummyBackend"}}

    assert told(TASKS=elsewhere) & {"leasejobs.W002", "leasejobs.E003"}


def hide_names(text: str) -> str:
    return text.replace("Ada", "***")


def fail(text: str) -> str:
    raise RuntimeError(text)


def test_projects_own_redactor_comes_after_ours(settings):
    settings.LEASEJOBS = {"REDACTOR": "tests.test_checks.hide_names"}

    assert redaction.redact("Ada: password=hunter2", 100) == "***: password=[redacted]"


def test_redactor_that_fails_hides_everything(settings):
    settings.LEASEJOBS = {"REDACTOR": "tests.test_checks.fail"}

    assert redaction.redact("Ada", 100) == "[redacted]"
