"""Filters and search: bounded, open to nothing but what they declare, unmoved by odd input."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from leasejobs.admin import filters
from leasejobs.models import Job
from leasejobs.states import State
from tests.factories import JobFactory, job_in

pytestmark = pytest.mark.django_db

LIST = reverse("admin:leasejobs_job_changelist")
NOTICE = "of this list were searched"


def rows_of(client: Client, **query: str) -> list[Job]:
    """Return the rows of the page of jobs."""
    return list(client.get(LIST, query).context["cl"].result_list)


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_state_filter_leaves_the_rows_in_that_state(reader: Client, state: State) -> None:
    jobs = {each: job_in(each) for each in State}

    assert rows_of(reader, state=state.name.lower()) == [jobs[state]]


def test_queue_and_task_filters_select_and_offer_what_the_newest_jobs_have(reader: Client) -> None:
    mail = JobFactory.create(queue="mail", task="shop.tasks.send")
    JobFactory.create(queue="default", task="shop.tasks.send")
    other = JobFactory.create(queue="mail", task="shop.tasks.count")

    assert rows_of(reader, queue="mail") == [other, mail]
    assert rows_of(reader, queue="mail", task="shop.tasks.send") == [mail]
    assert "?queue=default" in reader.get(LIST).content.decode()


@pytest.mark.parametrize("name", ["state", "queue", "task"])
@pytest.mark.parametrize(
    "value",
    [
        "\x00",
        "x" * 10_000,
        "💥",
        "%",
        "' OR 1=1--",
        '"',
        "9" * 30,
        "-1",
        "\ud800",
        "<script>alert(1)",
    ],
)
def test_filter_by_an_odd_value_is_an_empty_page(reader: Client, name: str, value: str) -> None:
    JobFactory.create()

    answer = reader.get(LIST, {name: value.encode("utf-8", "surrogatepass")})

    assert answer.status_code == 200
    assert list(answer.context["cl"].result_list) == []
    assert b"<script>alert" not in answer.content


@pytest.mark.parametrize(
    "term",
    ["not-an-id", "%", "x" * 10_000, "💥", "9" * 20, "9223372036854775808", "' OR 1=1--", '"', "-1",
     "1.5", "\u0661", "12a", "9" * 6_000],
)  # fmt: skip
def test_search_for_what_no_job_has_finds_nothing(reader: Client, term: str) -> None:
    JobFactory.create()

    answer = reader.get(LIST, {"q": term})

    assert answer.status_code == 200
    assert list(answer.context["cl"].result_list) == []


def test_search_for_a_nul_is_answered(reader: Client) -> None:
    assert reader.get(LIST, {"q": "\x00"}).status_code == 200  # Django's own form refuses it
    assert not filters.found(Job.objects.all(), "\x00", 0)  # and who calls it without the form


def test_search_finds_by_id_and_by_exact_key_and_task(reader: Client) -> None:
    by_id, by_key, by_task = (
        JobFactory.create(), JobFactory.create(key="order:7 %"), JobFactory.create(task="a.b.c"),
    )  # fmt: skip

    assert rows_of(reader, q=f" {by_id.pk} ") == [by_id]
    assert rows_of(reader, q="order:7 %") == [by_key]
    assert rows_of(reader, q="a.b.c") == [by_task]
    assert rows_of(reader, q="a.b") == []
    assert rows_of(reader, q="order:7 _") == []


def test_key_of_digits_is_found_as_well_as_the_id(reader: Client) -> None:
    job = JobFactory.create()
    keyed = JobFactory.create(key=str(job.pk))

    assert rows_of(reader, q=str(job.pk)) == [keyed, job]


def test_what_no_index_leads_to_is_looked_for_among_the_newest_only(
    reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "WINDOW", 3)
    fields: dict[str, Any] = {"queue": "mail", "key": "old", "state": State.SUCCEEDED}
    old = JobFactory.create(**fields, finished_at=timezone.now())
    JobFactory.create_batch(3)

    for query in ({"queue": "mail"}, {"q": "old"}, {"state": "succeeded"}, {"task": old.task}):
        answer = reader.get(LIST, query)
        assert old not in answer.context["cl"].result_list
        assert NOTICE in answer.content.decode()
    assert rows_of(reader, q=str(old.pk)) == [old]
    assert NOTICE not in reader.get(LIST).content.decode()


@pytest.mark.parametrize("state", [State.RUNNING, State.FAILED, State.CANCELLED, State.PARKED])
def test_state_with_an_index_is_looked_for_in_all_rows(
    reader: Client, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    monkeypatch.setattr(filters, "WINDOW", 3)
    old = job_in(state)
    JobFactory.create_batch(5)

    answer = reader.get(LIST, {"state": state.name.lower()})

    assert list(answer.context["cl"].result_list) == [old]
    assert NOTICE not in answer.content.decode()


@pytest.mark.parametrize(
    "lookup",
    ["args__contains", "args__0__startswith", "lease_token__startswith", "failure_detail__regex",
     "state__exact", "attempt_set__traceback__contains", "metadata__x", "id__gt"],
)  # fmt: skip
def test_address_cannot_look_up_what_no_filter_declares(reader: Client, lookup: str) -> None:
    JobFactory.create(args=["secret"])

    assert reader.get(LIST, {lookup: "s"}).status_code == 400


def test_address_cannot_change_the_order(reader: Client) -> None:
    first, second = JobFactory.create_batch(2)

    for order in ("0", "1", "-1", "6", "3.-7", "x", "9" * 30):
        assert rows_of(reader, o=order) == [second, first]


@pytest.mark.parametrize("page", ["0", "-1", "x", "1.5", "9" * 18, "9" * 5_000, "\x00"])
def test_odd_page_numbers_are_answered(reader: Client, page: str) -> None:
    JobFactory.create()

    assert reader.get(LIST, {"p": page}).status_code in (200, 302)


@pytest.mark.parametrize("pk", ["abc", "9" * 30, "-1", "1_0", "%00", "💥", "9" * 5_000])
def test_page_of_no_job_leads_back(reader: Client, pk: str) -> None:
    answer = reader.get(reverse("admin:leasejobs_job_changelist") + f"{pk}/change/")

    assert answer.status_code == 302
