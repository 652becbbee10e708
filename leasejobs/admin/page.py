"""What the page of a job says beside its columns: its standing, its family, what it carries."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext as _

from leasejobs import conf
from leasejobs.admin import filters
from leasejobs.admin.operate import OperatedAdmin, states_of, written
from leasejobs.admin.payloads import payloads, tracebacks
from leasejobs.admin.reading import at
from leasejobs.admin.wording import VERBS
from leasejobs.models import Job, OperatorAction, Queue
from leasejobs.states import UNSTARTED, State

MOST_CHILDREN: Final = 20
MOST_ACTIONS: Final = 20
_UNKNOWN: Final = "unknown_task"


def about(model_admin: OperatedAdmin, request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return the context of the page: what the user has no permission for is not even read."""
    may = request.user.has_perm
    jobs = Job.objects.using(conf.database())
    # A job's children come after it; no index leads to them.
    following = jobs.filter(pk__gt=job.pk, pk__lte=job.pk + filters.WINDOW, parent_id=job.pk)
    children = list(following.order_by("pk").only("pk", "task", "state")[: MOST_CHILDREN + 1])
    parent = None
    if job.parent_id is not None:
        parent = jobs.only("pk", "task", "state").filter(pk=job.parent_id).first()
    return {
        "verbs": list(_verbs(model_admin, request, job)),
        "standing": list(_standing(model_admin, job)),
        "parent": parent and _link(model_admin, parent),
        "gone_parent": job.parent_id if parent is None else None,
        "children": [_link(model_admin, child) for child in children[:MOST_CHILDREN]],
        "has_more_children": len(children) > MOST_CHILDREN,
        "most_children": MOST_CHILDREN,
        "window": filters.WINDOW,
        "payloads": payloads(job.pk) if may("leasejobs.view_job_arguments") else None,
        "tracebacks": tracebacks(job.pk) if may("leasejobs.view_job_tracebacks") else None,
        "operator_actions": (
            _actions(job.pk) if may("leasejobs.view_operatoraction") else None
        ),
    }  # fmt: skip


def _verbs(model_admin: OperatedAdmin, request: HttpRequest, job: Job) -> Iterator[dict[str, Any]]:
    rows = written({job.pk: job.revision})
    for verb, label in VERBS.items():
        if job.state in states_of(verb) and model_admin.may(request, verb):
            address = model_admin.url("job_operate", verb)
            yield {"label": label, "url": f"{address}?rows={rows}"}


def _standing(model_admin: OperatedAdmin, job: Job) -> Iterator[dict[str, Any]]:
    """Say what the job waits for, in sentences, each with the job it is about."""
    given: Mapping[str, Any] = {
        "holder": job.leased_by, "at": at(job.lease_expires_at), "task": job.task,
        "queue": job.queue, "lock_key": job.lock_key,
    }  # fmt: skip
    if job.state == State.RUNNING and job.lease_expires_at:
        is_alive = job.lease_expires_at > job.read_at  # type: ignore[attr-defined]
        text = _("Held by %(holder)s until %(at)s.") if is_alive else _(
            "Its lease of %(holder)s expired at %(at)s: any worker will take it back."
        )  # fmt: skip
        yield {"text": text % given}
    if job.state == State.RUNNING and job.cancel_requested_at:
        yield {"text": _("It was asked to stop.")}
    if job.state not in UNSTARTED:
        return
    if job.failure_code == _UNKNOWN:
        yield {"text": _("No worker knows this task: %(task)s.") % given}
    queue = Queue.objects.using(conf.database()).filter(name=job.queue)
    if queue.filter(paused_at__isnull=False).exists():
        yield {"text": _("Its queue %(queue)s is paused.") % given}
    if job.lock_key:
        rows = Job.objects.using(conf.database()).running()
        holder = rows.filter(tenant=job.tenant, lock_key=job.lock_key).exclude(lock_key="")
        for other in holder.only("pk", "task", "state")[:1]:
            text = _("Blocked: its lock key %(lock_key)s is held by job") % given
            yield {"text": text, "job": _link(model_admin, other)}


def _link(model_admin: OperatedAdmin, job: Job) -> dict[str, Any]:
    return {
        "url": model_admin.url("job_change", job.pk), "name": str(job),
        "state": job.get_state_display(),
    }  # fmt: skip


def _actions(pk: int) -> list[OperatorAction]:
    rows = OperatorAction.objects.using(conf.database())
    found = rows.filter(target=Job._meta.label, target_pk=str(pk)).order_by("-pk")
    return list(found[:MOST_ACTIONS])
