"""The page of a job: its standing and family, and what it carries for who may see that."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from leasejobs import claiming, operations
from leasejobs.admin import filters, page, payloads
from leasejobs.claiming import Stream
from leasejobs.models import Attempt, Job
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests.factories import JobFactory, job_in

pytestmark = pytest.mark.django_db

Staff = Callable[..., Client]
ARGUMENTS = ("args", "kwargs", "result", "metadata", "checkpoint")


def page_of(job: Job) -> str:
    return reverse("admin:leasejobs_job_change", args=[job.pk])


def text_of(client: Client, job: Job) -> str:
    return client.get(page_of(job)).content.decode()


def carrying() -> Job:
    """Make a job with a mark in each payload column, and in the traceback of an attempt."""
    job = JobFactory.create(
        args=["mark-args"], kwargs={"x": "mark-kwargs"}, result="mark-result",
        metadata={"x": "mark-metadata"}, checkpoint={"x": "mark-checkpoint"}, state=State.FAILED,
    )  # fmt: skip
    Attempt.objects.create(
        job=job, epoch=1, number=1, worker="w", ended_at=timezone.now(), outcome="failed",
        traceback="mark-traceback",
    )  # fmt: skip
    return job


@pytest.mark.parametrize("permission", ["view_job_arguments", "view_job_tracebacks", ""])
def test_payloads_and_tracebacks_each_need_their_permission(staff: Staff, permission: str) -> None:
    job = carrying()
    client = staff("view_job", "view_attempt", permission)

    with CaptureQueriesContext(connection) as queries:
        text = text_of(client, job)

    for name in ARGUMENTS:
        assert (f"mark-{name}" in text) == (permission == "view_job_arguments")
    assert ("mark-traceback" in text) == (permission == "view_job_tracebacks")
    if not permission:
        statements = "".join(query["sql"] for query in queries)
        for column in (*ARGUMENTS, "traceback"):
            assert f'"{column}"' not in statements


def test_payloads_are_redacted_and_so_is_what_stands_under_a_secrets_name(staff: Staff) -> None:
    job = JobFactory.create(
        args=["https://u:SEKRET1@h/x?api_key=SEKRET2", "password", ["SEKRET3"]],
        kwargs={"Authorization": "Bearer SEKRET4", "password": ["SEKRET5", {"x": "SEKRET6"}],
                "inner": {"api_key": {"y": "SEKRET7"}, "text": '{"token": "SEKRET8"}'}},
        metadata={"headers": {"Cookie": "SEKRET9"}, "plain": "to be seen"},
        checkpoint={"client_secret": 1234567890},
    )  # fmt: skip

    text = text_of(staff("view_job", "view_job_arguments"), job)

    assert "SEKRET" not in text
    assert "1234567890" not in text
    assert "to be seen" in text


def test_payload_too_large_to_redact_is_not_shown(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "_MOST_READ", 100)
    job = JobFactory.create(args=["mark" * 100])

    text = text_of(staff("view_job", "view_job_arguments"), job)

    assert "markmark" not in text
    assert "not shown: more than 100 characters" in text


def test_payload_is_shown_to_a_bound(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "_MOST_SHOWN", 100)
    job = JobFactory.create(args=["mark " * 100])

    assert text_of(staff("view_job", "view_job_arguments"), job).count("mark") < 25


@pytest.mark.parametrize(
    "document", ["[" * 4_000 + "]" * 4_000, f"[{'9' * 5_000}]"], ids=["deep", "long number"]
)
def test_payload_that_python_cannot_read_does_not_break_the_page(
    staff: Staff, document: str
) -> None:
    job = JobFactory.create()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leasejobs_job SET args = %s::jsonb", [document])

    answer = staff("view_job", "view_job_arguments").get(page_of(job))

    assert answer.status_code == 200
    assert "that Python cannot read" in answer.content.decode()


def hide_marks(text: str) -> str:
    """Stand for a project's own redactor."""
    return text.replace("mark", "****")


def fail(text: str) -> str:
    """Stand for one that is broken."""
    raise ValueError(text)


@pytest.mark.parametrize("redactor", ["hide_marks", "fail"])
def test_redactor_of_the_project_has_the_last_word(
    staff: Staff, settings: Any, redactor: str
) -> None:
    settings.LEASEJOBS = {"REDACTOR": f"{__name__}.{redactor}"}
    job = carrying()

    text = text_of(staff("view_job", "view_job_arguments", "view_job_tracebacks"), job)

    assert "mark-" not in text


def test_page_tells_who_holds_the_lease_and_when_it_expired(reader: Client) -> None:
    job = job_in(State.RUNNING)

    assert f"Held by {job.leased_by} until" in text_of(reader, job)

    expire_lease(job)
    text = text_of(reader, job)
    assert f"Its lease of {job.leased_by} expired at" in text
    assert "Held by" not in text


def test_page_names_the_job_that_holds_the_lock_key(reader: Client) -> None:
    holder, waiting = JobFactory.create_batch(2, lock_key="account:7", tenant="acme")
    JobFactory.create(lock_key="account:7", tenant="other", running=True)
    assert "Blocked" not in text_of(reader, waiting)

    claiming.claim_jobs(
        "default", holder="w", duration=timedelta(minutes=1), limit=1, stream=Stream.LOCKED
    )

    text = text_of(reader, waiting)
    assert "Blocked: its lock key account:7 is held by job" in text
    assert f'<a href="{page_of(holder)}">{holder}</a>' in text
    assert "Blocked" not in text_of(reader, holder)


def test_page_says_that_no_worker_knows_the_task(reader: Client) -> None:
    unknown = JobFactory.create(task="gone.tasks.task")
    claiming.put_back("default", Stream.PLAIN, 10, ["gone.tasks.task"], timedelta(seconds=30))

    assert "No worker knows this task: gone.tasks.task." in text_of(reader, unknown)


def test_page_says_that_the_queue_is_paused(reader: Client) -> None:
    job = JobFactory.create(queue="mail")
    operations.pause("mail", actor="olga", reason="maintenance")

    assert "Its queue mail is paused." in text_of(reader, job)


def test_page_links_parent_and_children(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_CHILDREN", 2)
    parent = JobFactory.create()
    children = JobFactory.create_batch(3, parent_id=parent.pk)
    orphan = JobFactory.create(parent_id=2**62)

    text = text_of(reader, parent)
    assert [page_of(child) in text for child in children] == [True, True, False]
    assert "Only the first 2 are shown" in text
    assert page_of(parent) in text_of(reader, children[0])
    assert f"#{2**62}" in text_of(reader, orphan)


def test_children_are_looked_for_in_a_bounded_number_of_rows(
    reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "WINDOW", 2)
    parent = JobFactory.create()
    JobFactory.create_batch(2)
    child = JobFactory.create(parent_id=parent.pk)

    text = text_of(reader, parent)

    assert page_of(child) not in text
    assert "None of the 2 jobs after it" in text


@pytest.mark.parametrize("permission", ["view_operatoraction", ""])
def test_page_shows_what_operators_did_to_who_may_view_that(staff: Staff, permission: str) -> None:
    job = JobFactory.create()
    operations.park([job.pk], actor="olga", reason="mark-reason")

    text = text_of(staff("view_job", permission), job)

    assert ("mark-reason" in text) == bool(permission)
