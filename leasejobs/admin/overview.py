"""The overview: what is in each queue now, and what somebody should look at."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from leasejobs import counting
from leasejobs.admin.operating import STALE_SECONDS
from leasejobs.admin.reading import ReadingAdmin
from leasejobs.models import Job
from leasejobs.states import State

LIVE = (State.PENDING, State.RUNNING, State.SCHEDULED, State.RETRYABLE)


def overview(model_admin: ReadingAdmin, request: HttpRequest) -> HttpResponse:
    """Show the numbers of `leasejobs status` with a bar for each; all are capped."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    found = counting.survey()
    stale = [one for one in found["workers"] if one["seen_seconds_ago"] > STALE_SECONDS]
    url = model_admin.url
    context = {
        "title": _("Overview"),
        "opts": Job._meta,
        "list_url": url("job_changelist"),
        "states": [state.label for state in LIVE],
        "queues": rows_of(found["queues"], found["cap"]),
        "cap": found["cap"],
        "totals": [
            (
                _("Terminal failures"),
                capped(found["failed"]),
                url("failedjob_changelist"),
            ),
            (
                _("Needs a decision"),
                capped(found["parked"]),
                url("parkedjob_changelist"),
            ),
            (_("Expired leases"), capped(found["expired_leases"]), ""),
            (_("Workers"), len(found["workers"]), url("worker_changelist")),
            (_("Workers not seen lately"), len(stale), url("worker_changelist")),
        ],
    }
    return model_admin.page(request, "overview", context)


def rows_of(queues: list[dict[str, Any]], cap: int) -> list[dict[str, Any]]:
    """Return the queues with (number, text, bar's end) for each live state."""
    names = [state.name.lower() for state in LIVE]
    longest = max((queue[name] for queue in queues for name in names), default=0) or 1
    return [
        {
            **queue,
            "cells": [(queue[name], capped(queue[name]), longest) for name in names],
        }
        for queue in queues
    ]


def capped(count: int) -> str:
    """Say a number, or that it is at least that."""
    return f"{count}+" if count >= counting.CAP else str(count)
