"""The operator's verbs on jobs: chosen on a list or a page, confirmed with a reason, then done.

What is carried from page to page is each row's id and the revision that the operator saw: a second
submit, or one that comes after somebody else moved the row, changes nothing and says so.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from leasejobs import conf, operations
from leasejobs.admin.filters import parse_id
from leasejobs.admin.reading import ReadingAdmin
from leasejobs.admin.wording import EFFECTS, TITLES, VERBS, said
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import Job
from leasejobs.operations import Verdict
from leasejobs.states import TRANSITIONS, State

MOST_SELECTED: Final = 2_000
MOST_LISTED: Final = 100
MOST_CHARACTERS: Final = 2_000
_DONE: Final = frozenset({Verdict.MOVED, Verdict.REQUESTED})


def states_of(verb: str) -> frozenset[State]:
    """Return the states a verb finds its jobs in."""
    return TRANSITIONS[verb][0] | ({State.RUNNING} if verb == "cancel" else frozenset())


class ReasonForm(forms.Form):
    """Why it is done, and where to go then."""

    next = forms.CharField(required=False, widget=forms.HiddenInput)
    reason = forms.CharField(
        label=gettext_lazy("Reason"), max_length=MOST_CHARACTERS,
        widget=forms.Textarea({"rows": 3, "cols": 60}),
        help_text=gettext_lazy("It is kept with your name and the move."),
    )  # fmt: skip


class _JobsForm(ReasonForm):
    rows = forms.CharField(widget=forms.HiddenInput)

    def clean_rows(self) -> dict[int, int]:
        """Return {id: revision}."""
        return parse_rows(self.cleaned_data["rows"])


def parse_rows(text: str) -> dict[int, int]:
    """Return {id: revision} of a text like "12:3,14:0"."""
    pairs = [pair.partition(":") for pair in text.split(",")]
    rows = {parse_id(pk): parse_id(revision) for pk, _, revision in pairs}
    if len(pairs) > MOST_SELECTED or None in rows or None in rows.values():
        raise forms.ValidationError(_("These are no jobs with their revisions."))
    return rows  # type: ignore[return-value]


def written(rows: Mapping[int, int]) -> str:
    """Return the text that `parse_rows` reads."""
    return ",".join(f"{pk}:{revision}" for pk, revision in rows.items())


def _action(verb: str, label: Any) -> Callable[..., HttpResponse]:
    @admin.action(permissions=[verb], description=label)
    def act(
        model_admin: "OperatedAdmin", request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse:
        rows = dict(queryset.values_list("pk", "revision")[:MOST_SELECTED])
        return model_admin.ask(request, verb, rows)

    act.__name__ = f"{verb}_jobs"
    return act


RETRY: Final = _action("retry", gettext_lazy("Retry selected jobs"))
CANCEL: Final = _action("cancel", gettext_lazy("Cancel selected jobs"))
PARK: Final = _action("park", gettext_lazy("Park selected jobs"))


class OperatedAdmin(ReadingAdmin):
    """A list of jobs whose actions ask for a reason first."""

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Return whether the user may view jobs and has the permission of the verb."""
        may_view: bool = self.has_view_permission(request)
        return may_view and request.user.has_perm(f"leasejobs.{verb}_job")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """For Django, which looks for this name before it offers the action."""
        return self.may(request, "retry")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """See `has_retry_permission`."""
        return self.may(request, "cancel")

    def has_park_permission(self, request: HttpRequest) -> bool:
        """See `has_retry_permission`."""
        return self.may(request, "park")

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Refuse what is no id before it reaches the database."""
        selected = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
        if any(parse_id(pk) is None for pk in selected):
            self.message_user(request, _("These are no jobs."), messages.WARNING)
            return None
        return super().response_action(request, queryset, *args, **kwargs)

    def ask(
        self, request: HttpRequest, verb: str, rows: Mapping[int, int],
        form: ReasonForm | None = None, back: str | None = None,
    ) -> HttpResponse:  # fmt: skip
        """Return the page that lists what would be moved and asks why."""
        jobs = Job.objects.using(conf.database()).filter(pk__in=list(rows))
        listed = jobs.only("pk", "task", "queue", "state", "revision").order_by("-pk")
        states = states_of(verb)
        back = back or request.get_full_path()
        context = {
            "title": TITLES[verb],
            "opts": Job._meta,
            "verb": verb,
            "effect": EFFECTS[verb],
            "count": len(rows),
            "more": max(0, len(rows) - MOST_LISTED),
            "jobs": [
                {
                    "job": job,
                    "url": self.url("job_change", job.pk),
                    "is_stale": job.revision != rows[job.pk],
                    "is_refused": job.state not in states,
                }
                for job in listed[:MOST_LISTED]
            ],
            "form": form or _JobsForm(initial={"rows": written(rows), "next": back}),
            "action": self.url("job_operate", verb),
            "list_url": self.url("job_changelist"),
            "back": self.way_back(request, (form["next"].value() or "") if form else back),
        }
        return self.page(request, "operate", context)

    def operate_view(self, request: HttpRequest, verb: str) -> HttpResponse:
        """Ask (GET) and do (POST); one form, so that an error keeps what was typed."""
        if verb not in VERBS:
            raise Http404
        if not self.may(request, verb):
            raise PermissionDenied
        if request.method != "POST":
            try:
                rows = parse_rows(request.GET.get("rows", ""))
            except forms.ValidationError as error:
                raise Http404 from error
            page = self.url("job_change", next(iter(rows)))
            return self.ask(request, verb, rows, back=page)
        form = _JobsForm(request.POST)
        is_valid = form.is_valid()
        if "rows" not in form.cleaned_data:
            raise Http404
        if is_valid:
            try:
                self._do(request, verb, form.cleaned_data["rows"], form.cleaned_data["reason"])
            except InvalidArguments as error:
                form.add_error("reason", str(error))
            else:
                return HttpResponseRedirect(self.way_back(request, form.cleaned_data["next"]))
        return self.ask(request, verb, form.cleaned_data["rows"], form)

    def way_back(self, request: HttpRequest, address: str) -> str:
        """Return the address if it is one of this site, else that of the list."""
        is_ours = url_has_allowed_host_and_scheme(
            address, {request.get_host()}, require_https=request.is_secure()
        )
        return address if is_ours else self.url("job_changelist")

    def _do(self, request: HttpRequest, verb: str, rows: Mapping[int, int], reason: str) -> None:
        actor = request.user.get_username()
        act = getattr(operations, verb)
        verdicts: dict[int, Verdict] = act(rows, actor=actor, reason=reason, revisions=rows)
        done = [pk for pk, verdict in verdicts.items() if verdict in _DONE]
        moved = Job.objects.using(conf.database()).filter(pk__in=done).only("pk", "task")
        log(request, moved, f"{verb}: {reason}")
        for verdict, count in Counter(verdicts.values()).items():
            level = messages.SUCCESS if verdict in _DONE else messages.WARNING
            self.message_user(request, said(verb, verdict, count), level)


def log(request: HttpRequest, rows: Any, message: str) -> None:
    """Write Django's own log of the admin, beside the `OperatorAction` of the move."""
    user: Any = request.user
    if rows:
        LogEntry.objects.log_actions(user.pk, rows, CHANGE, message)
