"""The admin's pages: readable, bounded, and closed to every write."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from leasejobs.admin import paging
from leasejobs.models import Attempt, Job
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db

LIST = reverse("admin:leasejobs_job_changelist")


def page_of(job: Job) -> str:
    return reverse("admin:leasejobs_job_change", args=[job.pk])


def attempt_of(job: Job, **fields: Any) -> Attempt:
    """Record an attempt of a job."""
    given = {"epoch": 1, "number": 1, "outcome": "succeeded", "ended_at": timezone.now()}
    return Attempt.objects.create(job=job, **(given | fields))


def test_list_shows_jobs_newest_first(reader: Client) -> None:
    old, new = JobFactory.create_batch(2, task="shop.tasks.send_receipt")

    text = reader.get(LIST).content.decode()

    assert text.index(page_of(new)) < text.index(page_of(old))
    assert "shop.tasks.send_receipt" in text


@pytest.mark.field_case("B007")
def test_list_counts_nothing_and_reads_no_payload(reader: Client) -> None:
    JobFactory.create_batch(3, args=["a secret of the caller"])

    with CaptureQueriesContext(connection) as queries:
        text = reader.get(LIST, {"_facets": "True"}).content.decode()

    statements = [query["sql"] for query in queries if "leasejobs_job" in query["sql"]]
    assert statements
    assert all("COUNT(" not in sql.upper() and '"args"' not in sql for sql in statements)
    assert "a secret of the caller" not in text


@pytest.mark.field_case("B007")
def test_list_pages_over_a_bounded_number_of_rows(
    reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_ROWS", 60)
    JobFactory.create_batch(70)

    last = reader.get(LIST, {"p": 2})

    assert last.context["cl"].result_count == 60
    assert len(last.context["cl"].result_list) == 10
    assert reader.get(LIST, {"p": 200_000}).status_code == 302  # Django: back to the list, "e=1"


def test_page_of_a_job_shows_its_attempts(reader: Client) -> None:
    job = JobFactory.create(args=["a secret of the caller"])
    attempt_of(
        job, epoch=1, outcome="lost", failure_code="crashed", late_outcome="succeeded",
        worker="host-a:1:abc", traceback="a secret of the traceback",
    )  # fmt: skip

    text = reader.get(page_of(job)).content.decode()

    assert "host-a:1:abc" in text
    assert "crashed" in text
    assert "a secret" not in text


def test_page_of_a_job_shows_the_job_and_its_instants(reader: Client) -> None:
    job = JobFactory.create(
        queue="a-queue", tenant="a-tenant", key="a-key", failure_detail="a-detail", priority=-7,
        finished_at=datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=UTC), state=6,
    )  # fmt: skip

    text = reader.get(page_of(job)).content.decode()

    for shown in ("a-queue", "a-tenant", "a-key", "a-detail", "2026-05-04 03:02:01.987", "failed"):
        assert shown in text


def test_page_of_a_job_shows_only_the_newest_attempts(reader: Client) -> None:
    job = JobFactory.create()
    for epoch in range(1, 61):
        attempt_of(job, epoch=epoch, worker=f"worker-{epoch:03}")

    text = reader.get(page_of(job)).content.decode()

    assert "worker-060" in text
    assert "worker-011" in text
    assert "worker-010" not in text


@pytest.mark.parametrize("data", [{"state": "5"}, {"action": "delete_selected"}])
def test_even_a_superuser_writes_nothing(admin_client: Client, data: dict[str, Any]) -> None:
    job = JobFactory.create(state=2)
    before = Job.objects.filter(pk=job.pk).values().get()

    answers = [
        admin_client.post(page_of(job), data),
        admin_client.post(reverse("admin:leasejobs_job_add"), data),
        admin_client.post(reverse("admin:leasejobs_job_delete", args=[job.pk]), {"post": "yes"}),
        admin_client.post(LIST, data | {"_selected_action": [job.pk]}),
    ]

    assert [answer.status_code for answer in answers[:3]] == [403, 403, 403]
    assert Job.objects.filter(pk=job.pk).values().get() == before
    assert not Attempt.objects.exists()


def test_without_permission_there_is_no_page(client: Client) -> None:
    client.force_login(User.objects.create_user("nobody", is_staff=True))

    assert client.get(LIST).status_code == 403
