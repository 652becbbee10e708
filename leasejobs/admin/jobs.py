"""Jobs: the list, and the page of one with all that is known about it."""

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _

from leasejobs import conf
from leasejobs.admin.filters import (
    JobList,
    QueueFilter,
    StateFilter,
    TaskFilter,
    found,
    window_start,
)
from leasejobs.admin.operate import CANCEL, PARK, RETRY, OperatedAdmin
from leasejobs.admin.overview import overview
from leasejobs.admin.page import about
from leasejobs.admin.reading import NONE, ReadOnly, age, instant
from leasejobs.models import Attempt, Job
from leasejobs.redaction import DETAIL_CHARACTERS, redact

MOST_ATTEMPTS: Final = 50
# They may hold anything a task was given or said; `payloads` shows what of it may be seen.
_PAYLOADS: Final = (
    "args", "kwargs", "result", "checkpoint", "metadata", "backoff", "on_dead", "lease_token",
)  # fmt: skip


@admin.display(description=_("attempts"))
def attempts(row: Any) -> str:
    """Show what is spent of the budget."""
    return f"{row.attempts}/{row.max_attempts}"


@admin.display(description=_("failure detail"))
def failure_detail(row: Any) -> str:
    """Show what the job failed with; it was redacted when it was written, too."""
    return redact(row.failure_detail, DETAIL_CHARACTERS) or NONE


@admin.display(description=_("detail"))
def _attempt_detail(row: Any) -> str:
    return redact(row.detail, DETAIL_CHARACTERS) or NONE


# Django's admin classes are generic in the stubs only.
class _LatestAttempts(BaseInlineFormSet):  # type: ignore[type-arg]
    _newest: QuerySet[Any] | None = None

    def get_queryset(self) -> QuerySet[Any]:
        """Return the newest attempts; a job in slices may have had thousands."""
        if self._newest is None:  # or each look at a form would ask anew
            self._newest = super().get_queryset()[:MOST_ATTEMPTS]
        return self._newest


class AttemptInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]
    """The newest attempts of a job."""

    model = Attempt
    formset = _LatestAttempts
    ordering = ("-epoch",)
    fields: ClassVar[Any] = (
        "epoch", "number", "outcome", "failure_code", "exception_path", _attempt_detail, "worker",
        instant("claimed_at", _("claimed at")), instant("ended_at", _("ended at")),
        "late_outcome", instant("late_at", _("late at")),
    )  # fmt: skip
    readonly_fields: ClassVar[Any] = fields
    verbose_name_plural = _("latest attempts")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        """Leave the tracebacks in the table."""
        return super().get_queryset(request).using(conf.database()).defer("traceback")


class JobAdmin(OperatedAdmin):
    """Jobs, newest first."""

    list_display: Any = (
        "id", "task", "queue", "state", attempts, age, instant("due_at", _("due at")),
        instant("finished_at", _("finished at")), "failure_code",
    )  # fmt: skip
    list_filter: ClassVar[Any] = (StateFilter, QueueFilter, TaskFilter)
    filter_names: Any = ("state", "queue", "task")
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = _("the id of a job, or exactly its key or task")
    actions: Any = (RETRY, CANCEL, PARK)
    change_list_template = "admin/leasejobs/job_list.html"
    change_form_template = "admin/leasejobs/job_page.html"
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("task", "queue", "state", "failure_code", failure_detail)}),
        (
            _("Times"),
            {
                "fields": (
                    instant("created_at", _("created at")), instant("due_at", _("due at")),
                    instant("deadline_at", _("deadline at")),
                    instant("started_at", _("started at")),
                    instant("claimed_at", _("claimed at")),
                    instant("finished_at", _("finished at")),
                    instant("cancel_requested_at", _("cancel requested at")),
                )
            },
        ),
        (
            _("Budgets"),
            {
                "fields": (
                    "attempts", "max_attempts", "crashes", "max_crashes", "interruptions",
                    "on_crash", "timeout_seconds",
                )
            },
        ),
        (
            _("Identity"),
            {
                "fields": (
                    "tenant", "key", "key_scope", "lock_key", "priority", "correlation_id",
                    "revision",
                )
            },
        ),
        (_("Progress"), {"fields": ("progress_done", "progress_total")}),
        (
            _("Lease"),
            {"fields": ("epoch", "leased_by", instant("lease_expires_at", _("expires at")))},
        ),
    )  # fmt: skip
    inlines = (AttemptInline,)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        """All that is shown: of fields that are not editable a form shows nothing else."""
        return tuple(name for _title, options in self.fieldsets for name in options["fields"])

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Leave the wide columns in the table."""
        return super().get_queryset(request).defer(*_PAYLOADS)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return a list that reads a bounded number of rows."""
        return JobList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find a job by its id; by key and task only among the newest."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return found(queryset, term, window_start(self.get_queryset(request))), False

    def get_urls(self) -> list[Any]:
        """Add the overview and the pages of the verbs."""
        view = self.admin_site.admin_view
        return [
            path("overview/", view(self.overview_view), name="leasejobs_job_overview"),
            path("operate/<str:verb>/", view(self.operate_view), name="leasejobs_job_operate"),
            *super().get_urls(),
        ]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Show what is in the queues, for people who may view jobs."""
        return overview(self, request)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Add the way to the overview."""
        links = {"overview_url": self.url("job_overview")}
        return super().changelist_view(request, links | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what is known about the job beside its columns."""
        job = context.get("original")
        if job is not None:
            context |= about(self, request, job)
        return super().render_change_form(request, context, *args, **kwargs)
