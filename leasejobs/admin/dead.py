"""The jobs somebody has to look at: those that failed for good, and those that wait for a decision.

Both lists follow the index `job_dead`. Their rows lead to the pages of the jobs.
"""

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _

from leasejobs.admin.filters import QueueFilter, TaskFilter
from leasejobs.admin.jobs import JobAdmin, attempts, failure_detail
from leasejobs.admin.operate import CANCEL, RETRY
from leasejobs.admin.reading import instant
from leasejobs.models import Job
from leasejobs.states import State


class _DeadAdmin(JobAdmin):
    state: ClassVar[State]
    list_display: Any = (
        "id", "task", "queue", "tenant", "failure_code", failure_detail, attempts,
        instant("finished_at", _("finished at")),
    )  # fmt: skip
    list_filter: ClassVar[Any] = (QueueFilter, TaskFilter)
    filter_names: Any = ("queue", "task")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Return the rows in that state, which the planner knows to be in `job_dead`."""
        return super().get_queryset(request).filter(state=self.state)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may view jobs: these are some of them."""
        return request.user.has_perm("leasejobs.view_job")

    def get_urls(self) -> list[Any]:
        """Leave out what only the jobs' own admin has."""
        ours = ("leasejobs_job_overview", "leasejobs_job_operate")
        return [url for url in super().get_urls() if url.name not in ours]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:  # fmt: skip
        """Lead to the page of the job, which stays when it has left this list."""
        return HttpResponseRedirect(self.url("job_change", object_id))


class FailedJobAdmin(_DeadAdmin):
    """Terminal failures."""

    state = State.FAILED
    actions: Any = (RETRY,)


class ParkedJobAdmin(_DeadAdmin):
    """Needs a decision."""

    state = State.PARKED
    actions: Any = (RETRY, CANCEL)
