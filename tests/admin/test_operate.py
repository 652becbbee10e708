"""The operator's verbs in the admin: permitted, asked why, compared with what was seen, kept."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from leasejobs.admin import operate
from leasejobs.models import Job, OperatorAction
from leasejobs.states import State
from tests.factories import JobFactory, job_in, whole

pytestmark = pytest.mark.django_db

LIST = reverse("admin:leasejobs_job_changelist")
# verb -> (a state it moves from, the one it moves to)
MOVES = {
    "retry": (State.FAILED, State.PENDING),
    "cancel": (State.PENDING, State.CANCELLED),
    "park": (State.PENDING, State.PARKED),
}
Staff = Callable[..., Client]


def address(verb: str) -> str:
    return reverse("admin:leasejobs_job_operate", args=[verb])


def page_of(job: Job) -> str:
    return reverse("admin:leasejobs_job_change", args=[job.pk])


def confirmed(*jobs: Job, reason: str = "it was wrong", **more: str) -> dict[str, str]:
    rows = ",".join(f"{job.pk}:{job.revision}" for job in jobs)
    return {"rows": rows, "reason": reason, "next": LIST} | more


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


@pytest.mark.parametrize("verb", MOVES)
def test_verb_moves_the_job_and_records_who_and_why(staff: Staff, verb: str) -> None:
    before, after = MOVES[verb]
    job = job_in(before)

    answer = staff("view_job", f"{verb}_job").post(address(verb), confirmed(job))

    assert answer.status_code == 302
    assert answer.headers["Location"] == LIST
    assert "1 job was moved" in said(answer)
    assert whole(job)["state"] == after
    action = OperatorAction.objects.get()
    assert (action.verb, action.target, action.target_pk, action.revision, action.actor,
            action.reason) == (verb, "leasejobs.Job", str(job.pk), job.revision, "olga",
                               "it was wrong")  # fmt: skip
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_id) == ("olga", str(job.pk))
    assert entry.change_message == f"{verb}: it was wrong"


@pytest.mark.parametrize("verb", MOVES)
def test_without_the_permission_of_the_verb_nothing_changes(staff: Staff, verb: str) -> None:
    job = job_in(MOVES[verb][0])
    before = whole(job)
    others = [f"{other}_job" for other in MOVES if other != verb]
    client = staff("view_job", "change_job", "delete_job", *others)

    assert client.get(address(verb), {"rows": f"{job.pk}:0"}).status_code == 403
    assert client.post(address(verb), confirmed(job)).status_code == 403
    action = {"action": f"{verb}_jobs", "_selected_action": job.pk}
    answer = client.post(LIST, action)
    assert b'name="reason"' not in answer.content
    assert f'value="{verb}_jobs"' not in client.get(LIST).content.decode()
    assert f"operate/{verb}/" not in client.get(page_of(job)).content.decode()
    assert whole(job) == before
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("verb", MOVES)
def test_verb_without_the_permission_to_view_jobs_is_refused(staff: Staff, verb: str) -> None:
    job = job_in(MOVES[verb][0])

    assert staff(f"{verb}_job").post(address(verb), confirmed(job)).status_code == 403
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("is_known", [True, False], ids=["no staff", "anonymous"])
def test_who_is_no_staff_is_sent_to_the_login(client: Client, is_known: bool) -> None:
    if is_known:
        client.force_login(User.objects.create_user("customer"))
    job = job_in(State.FAILED)
    before = whole(job)

    answers = [
        client.post(address("retry"), confirmed(job)),
        client.get(LIST),
        client.get(page_of(job)),
        client.get(reverse("admin:leasejobs_job_overview")),
        client.get(reverse("admin:leasejobs_queue_changelist")),
        client.post(reverse("admin:leasejobs_queue_switch", args=["pause"]), {"name": "default"}),
        client.get(reverse("admin:leasejobs_failedjob_changelist")),
        client.get(reverse("admin:leasejobs_parkedjob_changelist")),
    ]

    assert {answer.status_code for answer in answers} == {302}
    assert all("/login/" in answer.headers["Location"] for answer in answers)
    assert whole(job) == before


def test_submit_without_the_token_of_the_form_is_refused(admin_user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    job = job_in(State.FAILED)

    assert client.post(address("retry"), confirmed(job)).status_code == 403
    assert whole(job)["state"] == State.FAILED


def test_asking_changes_nothing(admin_client: Client) -> None:
    job = job_in(State.FAILED)
    before = whole(job)

    answer = admin_client.get(address("retry"), {"rows": f"{job.pk}:0", "reason": "because"})

    assert answer.status_code == 200
    assert str(job) in answer.content.decode()
    assert whole(job) == before


def test_action_of_the_list_asks_first_and_lists_what_will_be_moved(admin_client: Client) -> None:
    failed, waiting, other = job_in(State.FAILED), job_in(State.PENDING), job_in(State.FAILED)

    answer = admin_client.post(
        LIST, {"action": "retry_jobs", "_selected_action": [failed.pk, waiting.pk]}
    )

    text = answer.content.decode()
    assert answer.context["form"]["rows"].value() == f"{waiting.pk}:0,{failed.pk}:0"
    assert f"#{failed.pk}" in text
    assert f"#{other.pk}" not in text
    assert text.count("its state allows no such move") == 1
    assert whole(failed)["state"] == State.FAILED


@pytest.mark.parametrize("reason", ["", "   ", "\x00", "x" * 2_001])
def test_without_a_usable_reason_nothing_is_done(admin_client: Client, reason: str) -> None:
    job = job_in(State.FAILED)
    before = whole(job)

    answer = admin_client.post(address("retry"), confirmed(job, reason=reason))

    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    assert answer.context["form"]["rows"].value() == f"{job.pk}:0"
    assert whole(job) == before


def test_second_submit_of_a_form_is_stale_and_says_so(admin_client: Client) -> None:
    job = job_in(State.FAILED)
    form = confirmed(job)
    admin_client.post(address("retry"), form)
    Job.objects.filter(pk=job.pk).update(state=State.FAILED)  # it fails again
    before = whole(job)

    answer = admin_client.post(address("retry"), form)

    assert "stale" in said(answer)
    assert whole(job) == before
    assert OperatorAction.objects.count() == 1
    assert LogEntry.objects.count() == 1


def test_form_is_kept_with_the_revision_it_was_shown_with(admin_client: Client) -> None:
    job = job_in(State.FAILED)
    Job.objects.filter(pk=job.pk).update(revision=5)

    answer = admin_client.post(address("retry"), confirmed(job, reason=""))

    assert answer.context["form"]["rows"].value() == f"{job.pk}:0"
    assert "has moved since you looked" in answer.content.decode()


def test_verdicts_are_counted(admin_client: Client) -> None:
    failed = [job_in(State.FAILED) for _ in range(2)]
    running, parked = job_in(State.RUNNING), job_in(State.PARKED)
    stale = job_in(State.PENDING)
    gone = job_in(State.PENDING)
    form = confirmed(*failed, running, parked, stale, gone)
    Job.objects.filter(pk=stale.pk).update(revision=9)
    Job.objects.filter(pk=gone.pk).delete()

    answer = admin_client.post(address("cancel"), form)

    text = said(answer)
    assert "2 jobs were left alone: their states allow no such move" in text
    assert "1 running job was asked to stop" in text
    assert "1 job was moved" in text
    assert "1 job was left alone: it has moved since you looked (stale)" in text
    assert "1 job is gone" in text
    assert LogEntry.objects.count() == 2


def test_taken_key_refuses_this_job_only(admin_client: Client) -> None:
    taken = job_in(State.FAILED, key="k", key_scope="live")
    job_in(State.PENDING, key="k", key_scope="live")
    free = job_in(State.FAILED)

    answer = admin_client.post(address("retry"), confirmed(taken, free))

    assert "another job has its key" in said(answer)
    assert whole(taken)["state"] == State.FAILED
    assert whole(free)["state"] == State.PENDING


def test_selecting_across_pages_takes_a_bounded_number(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate, "MOST_SELECTED", 3)
    monkeypatch.setattr(operate, "MOST_LISTED", 2)
    jobs = [job_in(State.FAILED) for _ in range(5)]

    answer = admin_client.post(
        LIST, {"action": "retry_jobs", "_selected_action": [jobs[0].pk], "select_across": "1"}
    )

    assert answer.context["form"]["rows"].value().count(":") == 3
    assert "and 1 more" in answer.content.decode()


@pytest.mark.parametrize(
    "rows", ["", "x", "1", "1:", "1:x", "-1:0", "1:0,,", "9" * 30 + ":0", "1:" + "9" * 30, "\x00",
             ",".join(f"{n}:0" for n in range(2_001))],
)  # fmt: skip
def test_rows_that_are_none_are_not_found(admin_client: Client, rows: str) -> None:
    assert admin_client.get(address("retry"), {"rows": rows[:4_000]}).status_code == 404
    answer = admin_client.post(address("retry"), {"rows": rows, "reason": "because"})
    assert answer.status_code == 404
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("pk", ["abc", "-1", "9" * 30, "\x00", "1.5"])
def test_action_on_what_is_no_job_is_refused(admin_client: Client, pk: str) -> None:
    answer = admin_client.post(LIST, {"action": "retry_jobs", "_selected_action": [pk]})

    assert answer.status_code == 302


def test_unknown_verb_is_not_found(admin_client: Client) -> None:
    assert admin_client.get(address("explode"), {"rows": "1:0"}).status_code == 404


@pytest.mark.parametrize(
    "elsewhere", ["https://example.org/", "//example.org", "javascript:alert(1)"]
)
def test_way_back_leads_nowhere_else(admin_client: Client, elsewhere: str) -> None:
    job = job_in(State.FAILED)

    answer = admin_client.post(address("retry"), confirmed(job, next=elsewhere))
    shown = admin_client.post(address("retry"), confirmed(job, next=elsewhere, reason=""))

    assert answer.headers["Location"] == LIST
    assert f'href="{elsewhere}' not in shown.content.decode()


def test_running_job_is_asked_to_stop_and_not_moved(admin_client: Client) -> None:
    job = job_in(State.RUNNING)

    answer = admin_client.post(address("cancel"), confirmed(job))

    assert "asked to stop" in said(answer)
    row = whole(job)
    assert row["state"] == State.RUNNING
    assert row["cancel_requested_at"] is not None
    assert row["lease_token"] == job.lease_token


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_page_of_a_job_offers_the_verbs_of_its_state(admin_client: Client, state: State) -> None:
    job = job_in(state)

    text = admin_client.get(page_of(job)).content.decode()

    for verb in MOVES:
        link = f"{address(verb)}?rows={job.pk}:{job.revision}"
        assert (link in text) == (state in operate.states_of(verb))


def test_form_of_a_running_job_overwrites_nothing_once_it_ended(admin_client: Client) -> None:
    job = job_in(State.RUNNING)
    admin_client.get(page_of(job))
    Job.objects.filter(pk=job.pk).update(
        state=State.SUCCEEDED, lease_token=None, leased_by="", lease_expires_at=None
    )
    before = whole(job)

    answer = admin_client.post(page_of(job), {"state": "3", "_save": "Save"})

    assert answer.status_code == 403
    assert whole(job) == before


def test_bulk_delete_is_not_offered_and_refused(admin_client: Client) -> None:
    jobs = JobFactory.create_batch(2)

    answer = admin_client.post(
        LIST,
        {"action": "delete_selected", "_selected_action": [job.pk for job in jobs], "post": "yes"},
        follow=True,
    )

    assert "No action selected" in answer.content.decode()
    assert Job.objects.count() == 2
