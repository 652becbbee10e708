"""The pages work on any site, and on two at once."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import clear_url_caches, path, reverse

import leasejobs.admin
from leasejobs.models import Job
from leasejobs.states import State
from tests.factories import job_in, whole

pytestmark = pytest.mark.django_db

backstage = admin.AdminSite(name="backstage")
leasejobs.admin.register(backstage)
urlpatterns = [path("admin/", admin.site.urls), path("backstage/", backstage.urls)]


@pytest.fixture(autouse=True)
def two_sites(settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = __name__
    clear_url_caches()
    yield
    clear_url_caches()


@pytest.mark.parametrize("site", ["admin", "backstage"])
def test_every_link_of_ours_stays_on_its_site(admin_client: Client, site: str) -> None:
    job = job_in(State.FAILED, queue="mail")
    job_in(State.PENDING, queue="mail")
    other = {"admin": "/backstage/", "backstage": "/admin/"}[site]
    names = ("job", "failedjob", "parkedjob", "queue", "operatoraction", "worker", "schedule")
    pages = [
        *(reverse(f"{site}:leasejobs_{name}_changelist") for name in names),
        reverse(f"{site}:leasejobs_job_change", args=[job.pk]),
        reverse(f"{site}:leasejobs_job_overview"),
        reverse(f"{site}:leasejobs_job_operate", args=["retry"]) + f"?rows={job.pk}:0",
        reverse(f"{site}:leasejobs_queue_switch", args=["pause"]),
    ]

    for page in pages:
        answer = admin_client.get(page)
        assert answer.status_code == 200, page
        assert f'"{other}' not in answer.content.decode(), page


@pytest.mark.parametrize("site", ["admin", "backstage"])
def test_verb_leads_back_to_its_site(admin_client: Client, site: str) -> None:
    job = job_in(State.FAILED)

    answer = admin_client.post(
        reverse(f"{site}:leasejobs_job_operate", args=["retry"]),
        {"rows": f"{job.pk}:0", "reason": "because"},
    )

    assert answer.headers["Location"] == f"/{site}/leasejobs/job/"
    assert whole(job)["state"] == State.PENDING


def test_registering_again_keeps_what_is_there() -> None:
    class OwnAdmin(admin.ModelAdmin):
        pass

    site = admin.AdminSite(name="own")
    site.register(Job, OwnAdmin)

    leasejobs.admin.register(site)
    leasejobs.admin.register(site)

    assert isinstance(site._registry[Job], OwnAdmin)


def test_every_list_is_read_from_the_alias_of_our_tables(rf: RequestFactory, settings: Any) -> None:
    settings.LEASEJOBS = {"DATABASE": "other"}
    request = rf.get("/")
    request.user = User(is_superuser=True)

    for model, model_admin in backstage._registry.items():
        rows = [model_admin, *(inline(model, backstage) for inline in model_admin.inlines)]
        assert {shown.get_queryset(request).db for shown in rows} == {"other"}
