"""Queues: what waits in each, and pause and resume."""

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy

from leasejobs import conf, counting, operations
from leasejobs.admin.operate import ReasonForm, log
from leasejobs.admin.overview import LIVE, rows_of
from leasejobs.admin.reading import ReadingAdmin
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import Queue

_TITLES: Final[Any] = {
    "pause": gettext_lazy("Pause a queue"), "resume": gettext_lazy("Resume a queue"),
}  # fmt: skip
_EFFECTS: Final[Any] = {
    "pause": gettext_lazy("No worker claims from it any more. What runs goes on."),
    "resume": gettext_lazy("Workers claim from it again."),
}
# (verb, whether it changed anything) -> what is said
_SAID: Final[Any] = {
    ("pause", True): gettext_lazy("Queue %(name)s is paused."),
    ("pause", False): gettext_lazy("Queue %(name)s was paused already (stale)."),
    ("resume", True): gettext_lazy("Queue %(name)s is resumed."),
    ("resume", False): gettext_lazy("Queue %(name)s was not paused (stale)."),
}


class _QueueForm(ReasonForm):
    name = forms.CharField(label=gettext_lazy("Queue"), max_length=200, strip=False)
    field_order = ("name", "reason", "next")


class QueueAdmin(ReadingAdmin):
    """Queues that have a live job or were paused once."""

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may view queues, and pause and resume them."""
        may_view: bool = self.has_view_permission(request)
        return may_view and request.user.has_perm("leasejobs.pause_queue")

    def get_urls(self) -> list[Any]:
        """Add the pages of the two verbs."""
        view = self.admin_site.admin_view(self.switch_view)
        return [
            path("switch/<str:verb>/", view, name="leasejobs_queue_switch"), *super().get_urls(),
        ]  # fmt: skip

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the queues, those without a row included."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = counting.survey()
        queues = rows_of(found["queues"], found["cap"])
        for queue in queues:
            verb = "resume" if queue["paused_at"] else "pause"
            query = urlencode({"name": queue["name"]})
            queue["verb"] = verb
            queue["switch_url"] = f"{self.url('queue_switch', verb)}?{query}"
        context = {
            "title": gettext_lazy("Queues"),
            "opts": Queue._meta,
            "states": [state.label for state in LIVE],
            "queues": queues,
            "cap": found["cap"],
            "may_switch": self.has_pause_permission(request),
            "pause_url": self.url("queue_switch", "pause"),
            **(extra_context or {}),
        }
        return self.page(request, "queues", context)

    def switch_view(self, request: HttpRequest, verb: str) -> HttpResponse:
        """Ask which queue and why (GET), and do it (POST)."""
        if verb not in _TITLES:
            raise Http404
        if not self.has_pause_permission(request):
            raise PermissionDenied
        form = _QueueForm(request.POST or None, initial={"name": request.GET.get("name", "")[:200]})
        if request.method == "POST" and form.is_valid():
            try:
                self._switch(request, verb, form.cleaned_data)
            except InvalidArguments as error:
                form.add_error("name", str(error))
            else:
                return HttpResponseRedirect(self.url("queue_changelist"))
        context = {
            "title": _TITLES[verb],
            "opts": Queue._meta,
            "effect": _EFFECTS[verb],
            "form": form,
            "action": self.url("queue_switch", verb),
            "list_url": self.url("queue_changelist"),
            "back": self.url("queue_changelist"),
        }
        return self.page(request, "operate", context)

    def _switch(self, request: HttpRequest, verb: str, given: dict[str, str]) -> None:
        name, reason = given["name"], given["reason"]
        switch = getattr(operations, verb)
        is_changed = switch(name, actor=request.user.get_username(), reason=reason)
        if is_changed:
            rows = Queue.objects.using(conf.database()).filter(name=name)
            log(request, rows, f"{verb}: {reason}")
        level = messages.SUCCESS if is_changed else messages.WARNING
        self.message_user(request, _SAID[verb, is_changed] % {"name": name}, level)
