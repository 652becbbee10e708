"""Jobs in the admin, with their attempts inline."""

from typing import Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from leasejobs.admin.paging import CappedPaginator
from leasejobs.models import Attempt, Job

MOST_ATTEMPTS: Final = 50
_LARGEST_ID: Final = 2**63 - 1
# They may hold anything a task was given or said; nobody may read them here.
_PAYLOADS: Final = ("args", "kwargs", "result", "checkpoint", "backoff", "lease_token")


class ReadOnly:
    """For model admins and inlines: rows may be viewed, and nothing else."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: jobs come from `enqueue`, attempts from their end."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: a stale form would overwrite what the verbs wrote since."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: deleting a running job would orphan its run."""
        return False


# Django's admin classes are generic in the stubs only.
class _LatestAttempts(BaseInlineFormSet):  # type: ignore[type-arg]
    def get_queryset(self) -> QuerySet[Any]:
        """Return the newest attempts; a job in slices may have had thousands."""
        return super().get_queryset()[:MOST_ATTEMPTS]


class AttemptInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]
    """The newest attempts of a job."""

    model = Attempt
    formset = _LatestAttempts
    ordering = ("-epoch",)
    fields = (
        "epoch",
        "number",
        "outcome",
        "failure_code",
        "exception_path",
        "detail",
        "worker",
        "claimed_at",
        "ended_at",
        "late_outcome",
        "late_at",
    )
    verbose_name_plural = _("latest attempts")


class JobAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs, newest first."""

    list_display = (
        "id",
        "task",
        "queue",
        "state",
        "attempts",
        "crashes",
        "due_at",
        "finished_at",
        "failure_code",
        "leased_by",
    )
    list_filter = ("state",)
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = _("the id of a job")
    list_per_page = 50
    show_full_result_count = False
    paginator = CappedPaginator
    exclude = _PAYLOADS
    inlines = (AttemptInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Leave the wide columns in the table."""
        return super().get_queryset(request).defer(*_PAYLOADS)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find a job by its id; anything that is no id finds nothing."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if not (term.isascii() and term.isdecimal()) or len(term) > 19 or int(term) > _LARGEST_ID:
            return queryset.none(), False
        return queryset.filter(pk=int(term)), False
