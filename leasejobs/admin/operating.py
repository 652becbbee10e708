"""Workers, schedules, and what operators did: lists to look things up in."""

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from leasejobs.admin.filters import parse_id
from leasejobs.admin.reading import ReadingAdmin, instant, since
from leasejobs.models import Job, Worker

STALE_SECONDS: Final = 60  # a worker reports itself each ten


@admin.display(description=_("is seen lately"), boolean=True)
def _is_seen_lately(row: Any) -> bool:
    return bool((row.read_at - row.seen_at).total_seconds() <= STALE_SECONDS)


@admin.display(description=_("queues"))
def _queues(row: Worker) -> str:
    return ", ".join(map(str, row.queues)) or str(_("all"))


class WorkerAdmin(ReadingAdmin):
    """Workers, as they last reported themselves."""

    list_display = (
        "name", "host", "pid", "version", "processes", "threads", _queues,
        instant("started_at", _("started at")), since("seen_at", _("seen ago")), _is_seen_lately,
    )  # fmt: skip
    ordering = ("name",)
    fields: ClassVar[Any] = (
        "name", "host", "pid", "version", "processes", "threads", _queues,
        instant("started_at", _("started at")), instant("seen_at", _("seen at")), _is_seen_lately,
    )  # fmt: skip
    readonly_fields = fields


class ScheduleAdmin(ReadingAdmin):
    """Periodic tasks, and the newest instant of each that was dealt with."""

    list_display = ("name", instant("last_slot", _("last slot")))
    ordering = ("name",)


class OperatorActionAdmin(ReadingAdmin):
    """What operators did, newest first; nobody edits it."""

    list_display = (
        "id", "verb", "target", "target_pk", "revision", "actor", "reason", instant("at", _("at")),
    )  # fmt: skip
    ordering = ("-id",)
    search_fields = ("target_pk",)
    search_help_text = _("the id of a job")
    fields: ClassVar[Any] = (
        "verb",
        "target",
        "target_pk",
        "revision",
        "actor",
        "reason",
        instant("at", _("at")),
    )
    readonly_fields: ClassVar[Any] = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find what was done to a job; by the index `operator_target`."""
        if not search_term.strip():
            return queryset, False
        pk = parse_id(search_term)
        if pk is None:
            return queryset.none(), False
        return queryset.filter(target=Job._meta.label, target_pk=str(pk)), False
