"""The pages of `docs/` say what the code does: their Python runs, their tables equal the code."""

import ast
import inspect
import logging
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import django
import pytest
from django.apps import apps

from example_project.postgres import PROJECT
from leasejobs import conf, exceptions, recovery, registry, schedules
from leasejobs.events import EVENTS
from leasejobs.metrics import METRICS
from leasejobs.models import Job
from leasejobs.states import TRANSITIONS, State
from tests import pages
from tests.shop import models as shop_models

SOURCE = {path: path.read_text() for path in (PROJECT / "leasejobs").rglob("*.py")}


@pytest.fixture
def page_module(monkeypatch) -> ModuleType:
    """Return the module that a page's Python is run in: `tasks` of an app called `shop`."""
    package, tasks = ModuleType("shop"), ModuleType("shop.tasks")
    package.__dict__.update(__path__=[], models=shop_models, tasks=tasks)
    modules = {"shop": package, "shop.models": shop_models, "shop.tasks": tasks}
    if django.VERSION < (6, 0):
        import django_tasks

        modules["django.tasks"] = django_tasks
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(registry, "_aliases", dict(registry._aliases))
    monkeypatch.setattr(schedules, "_declared", dict(schedules._declared))
    return tasks


@pytest.mark.parametrize(
    "path",
    [path for path in pages.PAGES if "```python" in path.read_text()],
    ids=lambda path: path.relative_to(PROJECT).as_posix(),
)
def test_python_on_the_page_runs(path: Path, page_module, db):
    pages.run(path, page_module)


def test_page_that_fails_says_so(tmp_path, page_module):
    path = tmp_path / "page.md"
    path.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")

    with pytest.raises(AssertionError):
        pages.run(path, page_module)


def test_block_that_is_not_run_says_why():
    unexplained = [
        f"{page.name}: {line}"
        for page in pages.PAGES
        for line in page.read_text().splitlines()
        if re.match(r"\s*% skip:(?! next \"\w)", line)
    ]

    assert unexplained == []


def test_settings_are_those_of_the_code():
    stated = {
        code: ast.literal_eval(pages.code(row["default"]))
        for row in pages.rows("reference/settings.md", "setting")
        for code in [pages.code(row["setting"])]
    }

    assert stated == {
        field.name: getattr(conf.Settings(), field.name) for field in fields(conf.Settings)
    }


def test_retention_is_that_of_the_code():
    stated = {
        pages.code(row["what"]): ast.literal_eval(pages.code(row["days"]))
        for row in pages.rows("reference/settings.md", "what")
    }

    assert stated == dict(conf.RETENTION)


def test_checks_are_those_of_the_code():
    stated = {
        pages.code(row["check"]): row["level"] for row in pages.rows("reference/checks.md", "check")
    }

    found = {
        match for text in SOURCE.values() for match in re.findall(r"leasejobs\.[EW]\d{3}", text)
    }
    levels = {"E": "error", "W": "warning"}
    assert stated == {check: levels[check.removeprefix("leasejobs.")[0]] for check in found}


def test_metrics_are_those_of_the_code():
    stated = {
        pages.code(row["metric"]): (row["type"], tuple(pages.codes(row["labels"])), row["meaning"])
        for row in pages.rows("reference/metrics.md", "metric")
    }

    assert stated == {
        metric.name: (metric.type, metric.labels, metric.help) for metric in METRICS.values()
    }


def test_metrics_to_alert_on_exist():
    names = {
        name
        for row in pages.rows("reference/metrics.md", "when")
        for name in re.findall(r"leasejobs_\w+", row["when"])
    }

    assert names
    assert names <= set(METRICS)


def test_events_are_those_of_the_code():
    stated = {
        pages.code(row["event"]): (row["level"].split(), pages.codes(row["fields"]), row["meaning"])
        for row in pages.rows("reference/events.md", "event")
    }

    assert stated == {
        name: (
            [logging.getLevelName(level) for level in event.levels],
            list(event.fields),
            event.meaning,
        )
        for name, event in EVENTS.items()
    }


def test_errors_are_those_of_the_code():
    stated = {
        pages.code(row["error"]): pages.codes(row["also a"])
        for row in pages.rows("reference/errors.md", "error")
    }

    assert stated == {
        name: [
            base.__name__
            for base in value.__bases__
            if base not in (exceptions.LeaseJobsError, Exception)
        ]
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and value.__module__ == exceptions.__name__
    }


def test_failure_codes_are_those_of_the_code():
    written = {
        code
        for text in SOURCE.values()
        for code in re.findall(r'(?:Failure\(|failure_code["\']?(?:=|: ))\s*"([a-z_]+)"', text)
    }

    assert set(pages.names("reference/errors.md", "code")) == {*written, *recovery.Cause}


def test_permissions_are_those_of_the_code():
    stated = pages.names("howto/use-the-admin.md", "permission")

    own = {name for name, _ in Job._meta.permissions}
    models = apps.get_app_config("leasejobs").get_models()
    viewed = {f"view_{model._meta.model_name}" for model in models if not model._meta.proxy}
    assert {*stated} == own | viewed


def test_codes_of_parked_jobs_are_explained():
    codes = pages.names("reference/errors.md", "code")

    assert {*pages.names("howto/operate.md", "code")} <= {*codes}


def test_states_and_verbs_are_those_of_the_code():
    stated = {
        pages.code(row["verb"]): (pages.codes(row["from"]), pages.codes(row["to"]))
        for row in pages.rows("explanation/state-machine.md", "verb")
    }
    created = stated.pop("enqueue")

    assert created == ([], ["pending", "scheduled"])
    assert {
        verb: ({*sources}, {*targets}) for verb, (sources, targets) in stated.items()
    } == {verb: (_names(sources), _names(targets)) for verb, (sources, targets) in
         TRANSITIONS.items()}  # fmt: skip


def test_every_state_is_explained():
    assert pages.names("explanation/state-machine.md", "state") == [
        state.name.lower() for state in State
    ]


def _names(states: frozenset[State]) -> set[str]:
    return {state.name.lower() for state in states}


def test_pictures_name_every_state_and_verb(monkeypatch):
    monkeypatch.syspath_prepend(pages.DOCS / "_ext")
    state_diagram = pytest.importorskip("state_diagram", exc_type=ImportError)

    words = set(re.findall(r">([a-z ]+)</text>", state_diagram.verbs()))

    assert words == {*TRANSITIONS, *_names(frozenset(State))}


def test_picture_of_a_life_has_a_path_for_every_arrow(monkeypatch):
    monkeypatch.syspath_prepend(pages.DOCS / "_ext")
    state_diagram = pytest.importorskip("state_diagram", exc_type=ImportError)

    assert state_diagram.life().count("<path class") == len(state_diagram.arrows())


def test_every_page_is_reached_from_the_index():
    listed = set()
    for page in pages.PAGES[1:]:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    entry = re.sub(r".*<(.*)>", r"\1", line.strip())
                    listed.add((page.parent / f"{entry}.md").resolve())

    assert {page.resolve() for page in pages.PAGES[1:]} - {pages.DOCS / "index.md"} == listed
