"""Jobs in the admin, with their attempts inline."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from leasejobs.admin.paging import CappedPaginator
from leasejobs.models import Attempt, Job

MOST_ATTEMPTS: Final = 50
_LARGEST_ID: Final = 2**63 - 1
# They may hold anything a task was given or said; nobody may read them here.
_PAYLOADS: Final = ("args", "kwargs", "result", "checkpoint", "backoff", "lease_token")


def instant(name: str, label: Any) -> Callable[[Any], str]:
    """Return a column that shows an instant to the millisecond: leases are about seconds."""

    @admin.display(description=label, ordering=name)
    def shown(row: Any) -> str:
        value = getattr(row, name)
        return "-" if value is None else f"{localtime(value):%Y-%m-%d %H:%M:%S.%f}"[:-3]

    return shown


_due_at = instant("due_at", _("due at"))
_created_at = instant("created_at", _("created at"))
_claimed_at = instant("claimed_at", _("claimed at"))
_started_at = instant("started_at", _("started at"))
_ended_at = instant("ended_at", _("ended at"))
_finished_at = instant("finished_at", _("finished at"))
_late_at = instant("late_at", _("late at"))
_lease_expires_at = instant("lease_expires_at", _("lease expires at"))


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
    fields: ClassVar[Any] = (
        "epoch", "number", "outcome", "failure_code", "exception_path", "detail", "worker",
        _claimed_at, _ended_at, "late_outcome", _late_at,
    )  # fmt: skip
    readonly_fields: ClassVar[Any] = fields
    verbose_name_plural = _("latest attempts")


class JobAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs, newest first."""

    list_display = (
        "id", "task", "queue", "state", "attempts", _due_at, _finished_at, "failure_code",
    )  # fmt: skip
    list_filter = ("state",)
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = _("the id of a job")
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # a COUNT(*) for each
    paginator = CappedPaginator
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("task", "queue", "state", "failure_code", "failure_detail")}),
        (
            _("Times"),
            {"fields": (_created_at, _due_at, _started_at, _claimed_at, _finished_at)},
        ),
        (
            _("Budgets"),
            {
                "fields": (
                    "attempts", "max_attempts", "crashes", "max_crashes", "interruptions",
                    "on_crash",
                )
            },
        ),
        (_("Identity"), {"fields": ("tenant", "key", "key_scope", "priority", "revision")}),
        (_("Progress"), {"fields": ("progress_done", "progress_total")}),
        (_("Lease"), {"fields": ("epoch", "leased_by", _lease_expires_at)}),
    )  # fmt: skip
    inlines = (AttemptInline,)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        """All that is shown: of fields that are not editable a form shows nothing else."""
        return tuple(name for _title, options in self.fieldsets for name in options["fields"])

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
