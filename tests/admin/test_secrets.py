"""No page shows a secret that was planted in arguments, errors, URLs, headers or seeds."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from leasejobs import task
from leasejobs.models import Job
from leasejobs.states import State
from tests.factories import whole
from tests.running import run_next

pytestmark = pytest.mark.django_db

SEED = "SB3KJXOVPQ6MWZ7A2DGHTLYR4NEFUC5I3KJXOVPQ6MWZ7A2DGHTLYR4N"
URL = "https://u:SEKRET1@h/x?api_key=SEKRET2&token=SEKRET3"
HEADERS = {"Authorization": "Bearer SEKRET4SEKRET4", "X-Api-Key": "SEKRET5", "Cookie": "a=SEKRET6"}
DSN = "connection to host=db user=app password=SEKRET7 failed"


@task(max_attempts=1)
def leak(url: str, headers: dict[str, Any]) -> None:
    """Fail with everything it was given, as libraries do."""
    try:
        raise OSError(f"GET {url} with {headers!r}")
    except OSError as error:
        raise RuntimeError(f"{DSN}; signed with {SEED}") from error


def pages_about(job: Job) -> list[str]:
    """Return the address of every page that shows something of the job."""
    names = ("job", "failedjob", "parkedjob", "queue", "operatoraction", "worker", "schedule")
    return [
        reverse("admin:index"),
        reverse("admin:leasejobs_job_change", args=[job.pk]),
        reverse("admin:leasejobs_job_history", args=[job.pk]),
        reverse("admin:leasejobs_job_overview"),
        reverse("admin:leasejobs_job_operate", args=["retry"]) + f"?rows={job.pk}:{job.revision}",
        *(reverse(f"admin:leasejobs_{name}_changelist") for name in names),
    ]


def test_no_page_shows_a_planted_secret(admin_client: Client) -> None:
    leak.enqueue(URL, headers=HEADERS)
    job = run_next().job
    job.refresh_from_db()
    # Rows that another version or another hand wrote without redaction are no excuse.
    raw = f"GET {URL} {HEADERS!r} {SEED} {DSN}"
    job.attempt_set.update(detail=raw, traceback=raw)
    Job.objects.filter(pk=job.pk).update(
        failure_detail=raw, metadata={"headers": HEADERS}, result={"seed": SEED, "url": URL},
        checkpoint=[URL, HEADERS],
    )  # fmt: skip

    texts = {page: admin_client.get(page).content.decode() for page in pages_about(job)}

    assert whole(job)["state"] == State.FAILED
    page = texts[reverse("admin:leasejobs_job_change", args=[job.pk])]
    assert "[redacted]" in page
    assert "tests.admin.test_secrets.leak" in page
    for page, text in texts.items():
        assert "SEKRET" not in text, page
        assert SEED not in text, page
