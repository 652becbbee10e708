"""Queues and the overview: what waits, and pause and resume with a reason."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from leasejobs import claiming, counting
from leasejobs.models import OperatorAction, Queue, Schedule, Worker
from leasejobs.states import State
from leasejobs.testing import expire_lease
from tests.factories import JobFactory, job_in

pytestmark = pytest.mark.django_db

QUEUES = reverse("admin:leasejobs_queue_changelist")
OVERVIEW = reverse("admin:leasejobs_job_overview")
PAUSE = reverse("admin:leasejobs_queue_switch", args=["pause"])
RESUME = reverse("admin:leasejobs_queue_switch", args=["resume"])
Staff = Callable[..., Client]


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def claimed(queue: str) -> int:
    return len(claiming.claim_jobs(queue, holder="w", duration=timedelta(minutes=1), limit=10))


def test_queue_without_a_row_is_paused_and_resumed(staff: Staff) -> None:
    JobFactory.create(queue="mail")
    client = staff("view_queue", "pause_queue")

    paused = client.post(PAUSE, {"name": "mail", "reason": "maintenance"})

    assert "Queue mail is paused." in said(paused)
    assert claimed("mail") == 0
    text = client.get(QUEUES).content.decode()
    assert "paused since" in text
    assert f"{RESUME}?name=mail" in text

    resumed = client.post(RESUME, {"name": "mail", "reason": "done"})

    assert "Queue mail is resumed." in said(resumed)
    assert claimed("mail") == 1
    actions = OperatorAction.objects.order_by("pk").values_list("verb", "actor", "reason")
    assert list(actions) == [("pause", "olga", "maintenance"), ("resume", "olga", "done")]
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "pause: maintenance", "resume: done",
    ]  # fmt: skip


@pytest.mark.parametrize("address", [PAUSE, RESUME])
def test_second_submit_says_so_and_records_nothing(admin_client: Client, address: str) -> None:
    for _ in range(2 if address == PAUSE else 1):
        answer = admin_client.post(address, {"name": "mail", "reason": "maintenance"})

    assert "stale" in said(answer)
    assert OperatorAction.objects.count() == LogEntry.objects.count() == (address == PAUSE)


@pytest.mark.parametrize("permissions", [("view_queue", "change_queue"), ("pause_queue",)])
def test_without_both_permissions_nothing_is_paused(
    staff: Staff, permissions: tuple[str, ...]
) -> None:
    client = staff(*permissions)

    assert client.get(PAUSE).status_code == 403
    assert client.post(PAUSE, {"name": "mail", "reason": "because"}).status_code == 403
    assert not Queue.objects.exists()
    assert PAUSE not in client.get(QUEUES).content.decode()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "because"), ("   ", "because"), ("\x00", "because"), ("x" * 10_000, "because"),
     ("mail", ""), ("mail", "\x00"), ("mail", "x" * 2_001)],
)  # fmt: skip
def test_odd_name_or_reason_pauses_nothing(admin_client: Client, name: str, reason: str) -> None:
    answer = admin_client.post(PAUSE, {"name": name, "reason": reason})

    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    assert not Queue.objects.filter(paused_at__isnull=False).exists()


@pytest.mark.parametrize("name", ["💥", "%s", "a b", '"><script>alert(1)</script>', "a/b?c=d&e"])
def test_odd_queue_names_can_be_paused_and_are_escaped(admin_client: Client, name: str) -> None:
    admin_client.post(PAUSE, {"name": name, "reason": "because"})

    text = admin_client.get(QUEUES).content.decode()

    assert Queue.objects.get().name == name
    assert "<script>alert" not in text
    shown = admin_client.get(RESUME, {"name": name})
    assert shown.context["form"]["name"].value() == name


def test_asking_pauses_nothing(admin_client: Client) -> None:
    assert admin_client.get(PAUSE, {"name": "mail", "reason": "because"}).status_code == 200
    assert not Queue.objects.exists()
    assert admin_client.get(PAUSE.replace("pause", "explode")).status_code == 404


@pytest.mark.parametrize("address", [QUEUES, OVERVIEW])
def test_live_jobs_are_counted_by_queue_up_to_a_cap(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(counting, "CAP", 3)
    JobFactory.create_batch(5, queue="mail")
    job_in(State.RUNNING, queue="mail")
    job_in(State.SCHEDULED, queue="slow")
    job_in(State.SUCCEEDED, queue="over")

    rows = {row["name"]: row for row in admin_client.get(address).context["queues"]}

    assert set(rows) == {"mail", "slow"}
    assert [text for _, text, _ in rows["mail"]["cells"]] == ["3+", "1", "0", "0"]
    assert [text for _, text, _ in rows["slow"]["cells"]] == ["0", "0", "1", "0"]


def test_overview_tells_what_to_look_at(staff: Staff) -> None:
    job_in(State.FAILED)
    job_in(State.PARKED)
    job_in(State.PARKED)
    expire_lease(job_in(State.RUNNING))
    seen = {"host": "h", "pid": 1, "version": "1", "processes": 1, "threads": 1, "queues": []}
    Worker.objects.create(name="alive", **seen)
    Worker.objects.create(name="gone", seen_at=timezone.now() - timedelta(hours=1), **seen)

    totals = staff("view_job").get(OVERVIEW).context["totals"]

    assert [str(number) for _, number, _ in totals] == ["1", "2", "1", "2", "1"]


@pytest.mark.parametrize(
    ("address", "permission"), [(OVERVIEW, "view_queue"), (QUEUES, "view_job")]
)
def test_page_needs_its_permission(staff: Staff, address: str, permission: str) -> None:
    assert staff(permission).get(address).status_code == 403


def test_workers_schedules_and_actions_are_listed_and_nothing_of_them_is_written(
    admin_client: Client,
) -> None:
    seen = {"host": "h", "pid": 1, "version": "1", "processes": 1, "threads": 1, "queues": ["a"]}
    Worker.objects.create(name="alive", **seen)
    Worker.objects.create(name="gone", seen_at=timezone.now() - timedelta(hours=1), **seen)
    Schedule.objects.create(name="nightly", last_slot=timezone.now())
    action = OperatorAction.objects.create(
        verb="retry", target="leasejobs.Job", target_pk="7", actor="olga", reason="because"
    )

    def page(name: str, *args: Any) -> str:
        return reverse(f"admin:leasejobs_{name}", args=args)

    text = admin_client.get(page("worker_changelist")).content.decode()
    assert text.count("icon-yes") == 1
    assert text.count("icon-no") == 1
    assert "nightly" in admin_client.get(page("schedule_changelist")).content.decode()
    actions = page("operatoraction_changelist")
    for query, count in (("", 1), ("7", 1), ("8", 0), ("x", 0), ("9" * 30, 0), ("💥", 0)):
        found = admin_client.get(actions, {"q": query}).context["cl"].result_list
        assert len(found) == count
    for name, pk in (
        ("worker", "gone"), ("schedule", "nightly"), ("operatoraction", action.pk),
    ):  # fmt: skip
        assert admin_client.get(page(f"{name}_change", pk)).status_code == 200
        for verb in ("change", "delete"):
            assert admin_client.post(page(f"{name}_{verb}", pk), {"post": "yes"}).status_code == 403
        assert admin_client.post(page(f"{name}_add"), {}).status_code == 403
    assert OperatorAction.objects.count() == 1
