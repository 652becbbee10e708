"""Filters and search that read a bounded number of rows, whatever the table holds.

A state with an index of its own is looked for in all rows. Everything else is looked for among
the newest `WINDOW` rows of the list, and the page says so.
"""

from typing import Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from leasejobs import conf
from leasejobs.admin.reading import OneOrder
from leasejobs.models import Job
from leasejobs.models.job import DEAD
from leasejobs.states import State

WINDOW: Final = 50_000
_LARGEST_ID: Final = 2**63 - 1
_SAMPLE: Final = 1_000
_INDEXED: Final = DEAD | {State.RUNNING}


def parse_id(text: str) -> int | None:
    """Return the id that `text` is, or None if it is none a row could have."""
    term = text.strip()
    if not (term.isascii() and term.isdecimal()) or len(term) > 19 or int(term) > _LARGEST_ID:
        return None
    return int(term)


def window_start(rows: QuerySet[Any]) -> int:
    """Return the id of which only newer rows of a list are searched; 0 if that is all of them."""
    newest = rows.order_by("-pk").values_list("pk", flat=True)
    return next(iter(newest[WINDOW : WINDOW + 1]), 0)


def found(rows: QuerySet[Any], term: str, start: int) -> QuerySet[Any]:
    """Return the row with this id, and the newest ones whose key or task is exactly `term`."""
    if "\x00" in term:  # PostgreSQL takes it in no text
        return rows.none()
    recent = Q(pk__gt=start) & (Q(key=term) | Q(task=term))
    pk = parse_id(term)
    return rows.filter(recent if pk is None else recent | Q(pk=pk))


class JobList(OneOrder):
    """A list of jobs that knows whether it shows the newest rows only."""

    window: int | None = None

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """Return the rows that match, of the newest ones where no index leads to them."""
        rows = super().get_queryset(request, *args, **kwargs)
        is_filtered = any(getattr(spec, "is_unindexed", False) for spec in self.filter_specs)
        start = 0
        if is_filtered or self.query.strip():
            start = window_start(self.root_queryset)
        self.window = WINDOW if start else None
        return rows.filter(pk__gt=start) if is_filtered and start else rows

    def url_for_result(self, result: Any) -> str:
        """Lead to the page of the job, from the lists of dead jobs as well."""
        model_admin: Any = self.model_admin
        return str(model_admin.url("job_change", result.pk))


class _Filter(admin.SimpleListFilter):
    @property
    def is_unindexed(self) -> bool:
        """Whether no index leads to the rows it leaves."""
        return self.value() is not None

    def has_output(self) -> bool:
        """Yes, or a value nobody offered would not be looked for."""
        return True


class StateFilter(_Filter):
    """By state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:
        """Offer every state."""
        return [(state.name.lower(), state.label) for state in State]

    @property
    def _state(self) -> State | None:
        return State.__members__.get((self.value() or "").upper())

    @property
    def is_unindexed(self) -> bool:
        """Whether no index leads to the rows of that state in the order of the list."""
        return self._state is not None and self._state not in _INDEXED

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows in the state; none for what is no state."""
        if self.value() is None:
            return queryset
        if self._state is None:
            return queryset.none()
        return queryset.filter(state=self._state)


class _RecentValues(_Filter):
    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer what the newest jobs have: no index knows all values there are."""
        cached: Any = request
        if not hasattr(cached, "_leasejobs_recent"):
            newest = Job.objects.using(conf.database()).order_by("-pk")
            cached._leasejobs_recent = list(newest.values("queue", "task")[:_SAMPLE])
        names = {row[self.parameter_name] for row in cached._leasejobs_recent}
        asked = request.GET.get(str(self.parameter_name))
        return [(name, name) for name in sorted(names | ({asked[:200]} if asked else set()))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows with the value."""
        value = self.value()
        if value is None:
            return queryset
        if "\x00" in value:
            return queryset.none()
        return queryset.filter(**{str(self.parameter_name): value})


class QueueFilter(_RecentValues):
    """By queue."""

    title = _("queue")
    parameter_name = "queue"


class TaskFilter(_RecentValues):
    """By task."""

    title = _("task")
    parameter_name = "task"
