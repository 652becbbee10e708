"""Terminal failures, and what needs a decision: lists of their own that lead to the jobs' pages."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from leasejobs.models import Job
from leasejobs.states import State
from tests.factories import job_in, whole

pytestmark = pytest.mark.django_db

FAILED = reverse("admin:leasejobs_failedjob_changelist")
PARKED = reverse("admin:leasejobs_parkedjob_changelist")
Staff = Callable[..., Client]


def dead(state: State) -> Job:
    return job_in(
        state, queue="mail", tenant="acme", failure_code="card_expired", failure_detail="the 5th",
        finished_at=timezone.now(), attempts=3,
    )  # fmt: skip


@pytest.mark.parametrize(("address", "state"), [(FAILED, State.FAILED), (PARKED, State.PARKED)])
def test_list_shows_the_jobs_in_its_state_and_why(staff: Staff, address: str, state: State) -> None:
    jobs = {each: dead(each) for each in State if each != State.RUNNING}
    client = staff("view_job")

    answer = client.get(address)

    assert [row.pk for row in answer.context["cl"].result_list] == [jobs[state].pk]
    text = answer.content.decode()
    for shown in ("mail", "acme", "card_expired", "the 5th", "3/8"):
        assert shown in text
    assert reverse("admin:leasejobs_job_change", args=[jobs[state].pk]) in text


@pytest.mark.parametrize("address", [FAILED, PARKED])
def test_list_needs_the_permission_to_view_jobs(staff: Staff, address: str) -> None:
    assert staff("view_queue").get(address).status_code == 403


def test_failure_can_be_retried_from_the_list_and_leads_back_to_it(staff: Staff) -> None:
    job = dead(State.FAILED)
    client = staff("view_job", "retry_job")

    asked = client.post(FAILED, {"action": "retry_jobs", "_selected_action": [job.pk]})
    form = asked.context["form"]
    answer = client.post(
        asked.context["action"],
        {"rows": form["rows"].value(), "next": form["next"].value(), "reason": "new card"},
        follow=True,
    )

    assert whole(job)["state"] == State.PENDING
    assert answer.request["PATH_INFO"] == FAILED
    assert "1 job was moved" in answer.content.decode()


def test_each_list_offers_what_its_state_allows(admin_client: Client) -> None:
    dead(State.FAILED)
    dead(State.PARKED)

    def offered(address: str) -> set[str]:
        choices = admin_client.get(address).context["action_form"].fields["action"].choices
        return {name for name, _ in choices if name}

    assert offered(FAILED) == {"retry_jobs"}
    assert offered(PARKED) == {"retry_jobs", "cancel_jobs"}


def test_page_of_a_row_is_that_of_the_job(admin_client: Client) -> None:
    job = dead(State.PARKED)

    for name in ("parkedjob", "failedjob"):
        answer = admin_client.get(reverse(f"admin:leasejobs_{name}_change", args=[job.pk]))
        assert answer.headers["Location"] == reverse("admin:leasejobs_job_change", args=[job.pk])


def test_nothing_is_deleted_or_added(admin_client: Client) -> None:
    job = dead(State.FAILED)

    for name in ("failedjob", "job"):
        for action, args in (("delete", [job.pk]), ("add", [])):
            address = reverse(f"admin:leasejobs_{name}_{action}", args=args)
            assert admin_client.post(address, {"post": "yes"}).status_code == 403
    assert Job.objects.filter(pk=job.pk).exists()
