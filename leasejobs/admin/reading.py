"""What every page of ours shares: rows are read, in one order, from the database that has them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import DateTimeField, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.timesince import timesince
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from leasejobs import conf
from leasejobs.admin.paging import CappedPaginator

NONE: Final = "-"


def at(value: datetime | None) -> str:
    """Say an instant to the millisecond: leases are about seconds."""
    return NONE if value is None else f"{localtime(value):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def instant(name: str, label: Any) -> Callable[[Any], str]:
    """Return a column that shows an instant."""

    @admin.display(description=label)
    def shown(row: Any) -> str:
        return at(getattr(row, name))

    return shown


def since(name: str, label: Any) -> Callable[[Any], str]:
    """Return a column that shows how long ago an instant was by the database's clock."""

    @admin.display(description=label)
    def shown(row: Any) -> str:
        value = getattr(row, name)
        return NONE if value is None else timesince(value, row.read_at, depth=1)

    return shown


class ReadOnly:
    """For model admins and inlines: rows may be viewed, and nothing else."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: jobs come from `enqueue`, attempts from their end."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: a stale form would overwrite what the verbs wrote since."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: deleting a running job would orphan its run; `prune` takes what is old."""
        return False


class OneOrder(ChangeList):
    """A list in the order its index has: `?o=` would sort all of the table by any column."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order of the model admin, whatever the address says."""
        return list(self.model_admin.get_ordering(request))


# Django's admin classes are generic in the stubs only.
class ReadingAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    """Lists that count nothing and look up nothing but by the filters they declare.

    Each row carries `read_at`, the database's clock.
    """

    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # a COUNT(*) for each
    paginator = CappedPaginator
    sortable_by = ()
    filter_names: tuple[str, ...] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read from the alias that our tables live on."""
        rows: Any = super().get_queryset(request).using(conf.database())
        timed: QuerySet[Any] = rows.annotate(read_at=Now(output_field=DateTimeField()))
        return timed

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return a list whose order is fixed."""
        return OneOrder

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow our filters only: `?args__contains=` would tell what nobody here may read."""
        return lookup in self.filter_names

    def page(self, request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
        """Return a page of ours, with what every page of the site has."""
        whole = {**self.admin_site.each_context(request), **context}
        return TemplateResponse(request, f"admin/leasejobs/{template}.html", whole)

    def url(self, name: str, *args: Any) -> str:
        """Return the address of a page of ours on the site this admin is registered on."""
        return reverse(f"admin:leasejobs_{name}", args=args, current_app=self.admin_site.name)


age = since("created_at", _("age"))
