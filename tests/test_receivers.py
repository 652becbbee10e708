"""Signals become events: in the table, in the project's log, and free where nobody listens."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import leasejobs
from leasejobs import executor, receivers, signals
from leasejobs.events import EVENTS
from leasejobs.heartbeat import Held
from leasejobs.leases import Ended
from leasejobs.states import AttemptOutcome, State
from tests.factories import JobFactory, lease_of

PACKAGE = Path(leasejobs.__file__).parent
SENDERS = {"emit", "_tell"}


def literals(node: ast.AST) -> list[str]:
    """Return the event names that an expression may stand for."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith("f'job_{"):
        return [f"job_{outcome.value}" for outcome in AttemptOutcome]
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    return []


def emitted() -> Iterator[tuple[str, set[str]]]:
    """Yield (event, its literal fields) for every place of the package that emits one."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keywords = {word.arg: word.value for word in node.keywords if word.arg}
            if name in SENDERS:
                fields = set(keywords) - {"level", "event"}
                for argument in node.args[:2]:
                    for event in literals(argument):
                        yield event, fields
            elif "event" in keywords and "fields" in keywords:
                written = keywords["fields"]
                keys = written.keys if isinstance(written, ast.Dict) else []
                for event in literals(keywords["event"]):
                    yield event, {key.value for key in keys if isinstance(key, ast.Constant)}


def test_every_emitted_event_is_in_the_table_and_the_reverse():
    assert {event for event, _ in emitted()} == set(EVENTS)


def test_emitted_fields_are_in_the_table():
    unknown = {
        event: fields - set(EVENTS[event].fields)
        for event, fields in emitted()
        if fields - set(EVENTS[event].fields)
    }

    assert unknown == {}


def test_meanings_are_sentences_and_names_are_snake_case():
    for name, event in EVENTS.items():
        assert name == name.lower()
        assert name.replace("_", "").isalpha()
        assert event.meaning[0].isupper()
        assert event.meaning.endswith(".")
        assert event.meaning.count(". ") == 0
        assert event.levels


def an_end(outcome: AttemptOutcome, state: State) -> Ended:
    return Ended(1, "tests.tasks.noop", "default", 1, 1, outcome, state)


@pytest.fixture
def seen(caplog) -> Any:
    """Return a function that tells the (level, event) the stdlib logger got."""
    caplog.set_level(logging.DEBUG, logger="leasejobs")

    def read() -> list[tuple[int, str]]:
        return [(record.levelno, record.msg.split()[0]) for record in caplog.records]

    return read


@pytest.fixture
def structured() -> Iterator[list[dict[str, Any]]]:
    """Configure structlog; yield the list of the entries logged, with what is bound."""
    entries: list[dict[str, Any]] = []

    def keep(_: Any, method: str, entry: Any) -> Any:
        entries.append({**entry, "level": method})
        raise structlog.DropEvent

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    try:
        yield entries
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
        structlog.contextvars.clear_contextvars()


@pytest.mark.parametrize(
    ("outcome", "state", "level"),
    [
        (AttemptOutcome.SUCCEEDED, State.SUCCEEDED, logging.DEBUG),
        (AttemptOutcome.FAILED, State.RETRYABLE, logging.WARNING),
        (AttemptOutcome.FAILED, State.FAILED, logging.ERROR),
        (AttemptOutcome.LOST, State.PENDING, logging.DEBUG),
        (AttemptOutcome.INTERRUPTED, State.PARKED, logging.ERROR),
    ],
)
def test_level_follows_what_became_of_the_job(seen, outcome, state, level):
    signals.attempts_ended.send(sender=None, attempts=[an_end(outcome, state)])

    assert seen() == [(level, f"job_{outcome.value}")]
    assert level in EVENTS[f"job_{outcome.value}"].levels


def test_event_carries_the_fields_of_the_table(caplog):
    caplog.set_level(logging.DEBUG, logger="leasejobs")

    signals.attempts_ended.send(sender=None, attempts=[an_end(AttemptOutcome.FAILED, State.FAILED)])

    [record] = caplog.records
    assert set(EVENTS["job_failed"].fields) <= set(vars(record))


def test_debug_events_cost_nothing_where_nobody_listens(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="leasejobs")
    monkeypatch.setattr(receivers, "emit", _never)
    quiet = [
        an_end(AttemptOutcome.SUCCEEDED, State.SUCCEEDED),
        an_end(AttemptOutcome.SNOOZED, State.SCHEDULED),
    ]

    for _, answer in signals.attempts_ended.send_robust(sender=None, attempts=quiet):
        assert not isinstance(answer, Exception), answer


@pytest.mark.skipif(
    not hasattr(structlog.make_filtering_bound_logger(logging.INFO), "is_enabled_for"),
    reason="this structlog cannot be asked",
)
def test_debug_events_cost_nothing_where_structlog_filters_them(monkeypatch, structured):
    monkeypatch.setattr(receivers, "emit", _never)
    quiet = [an_end(AttemptOutcome.SUCCEEDED, State.SUCCEEDED)]

    for _, answer in signals.attempts_ended.send_robust(sender=None, attempts=quiet):
        assert not isinstance(answer, Exception), answer


def _never(*_: Any, **__: Any) -> None:
    raise AssertionError("an event was made that nobody wants")


def test_events_go_to_structlog_where_it_is_configured(structured, seen):
    signals.attempts_ended.send(sender=None, attempts=[an_end(AttemptOutcome.FAILED, State.FAILED)])

    [entry] = structured
    assert (entry["event"], entry["level"], entry["job_id"]) == ("job_failed", "error", 1)
    assert seen() == []


@pytest.mark.parametrize(
    "wrapper", [structlog.BoundLogger, structlog.stdlib.BoundLogger], ids=["generic", "stdlib"]
)
def test_any_wrapper_of_structlog_is_understood(structured, wrapper):
    factory = structlog.stdlib.LoggerFactory if "stdlib" in wrapper.__module__ else None
    structlog.configure(
        wrapper_class=wrapper,
        logger_factory=factory() if factory else structlog.PrintLoggerFactory(),
    )

    signals.attempts_ended.send(sender=None, attempts=[an_end(AttemptOutcome.FAILED, State.FAILED)])

    assert [entry["event"] for entry in structured] == ["job_failed"]


def run_one(monkeypatch, body: Any) -> None:
    row = JobFactory(running=True, task="tests.tasks.noop", correlation_id="order 7")

    class Task:
        takes_context = False
        call = staticmethod(body)

    monkeypatch.setattr("leasejobs.registry.find", lambda name: Task)
    executor.run(row, Held(lease_of(row)), lambda: False)


@pytest.mark.django_db
def test_what_a_task_logs_carries_its_attempt(monkeypatch, structured):
    run_one(monkeypatch, lambda: structlog.get_logger().info("hello"))

    [entry] = structured
    assert entry["task"] == "tests.tasks.noop"
    assert (entry["attempt"], entry["epoch"]) == (1, 1)
    assert entry["correlation_id"] == "order 7"
    assert entry["job_id"] > 0


@pytest.mark.django_db
@pytest.mark.field_case("B038")
def test_what_was_bound_before_is_bound_after(monkeypatch, structured):
    structlog.contextvars.bind_contextvars(service="x", request_id="r", task="the caller's")

    for _ in range(3):
        run_one(monkeypatch, lambda: structlog.get_logger().info("hello"))

    assert {entry["service"] for entry in structured} == {"x"}
    assert {entry["task"] for entry in structured} == {"tests.tasks.noop"}
    assert structlog.contextvars.get_contextvars() == {
        "service": "x", "request_id": "r", "task": "the caller's",
    }  # fmt: skip


@pytest.mark.django_db
def test_what_was_bound_is_restored_after_a_failure(monkeypatch, structured):
    def fail() -> None:
        raise ValueError

    run_one(monkeypatch, fail)

    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.django_db
def test_nothing_is_bound_where_structlog_is_not_configured(monkeypatch):
    bound: list[dict[str, Any]] = []

    run_one(monkeypatch, lambda: bound.append(structlog.contextvars.get_contextvars()))

    assert bound == [{}]


@pytest.mark.django_db
def test_binding_reads_nothing_from_the_database(structured, django_assert_num_queries):
    row = JobFactory(running=True)
    partial = type(row).objects.deciding().defer("correlation_id").get(pk=row.pk)

    with django_assert_num_queries(0), receivers.attempt_context(partial):
        assert "correlation_id" not in structlog.contextvars.get_contextvars()
