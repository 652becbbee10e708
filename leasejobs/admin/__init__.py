"""The audit room: what the queue holds, to be read, and the operator's verbs beside it."""

from typing import Any, Final

from django.contrib import admin

from leasejobs.admin.dead import FailedJobAdmin, ParkedJobAdmin
from leasejobs.admin.jobs import JobAdmin
from leasejobs.admin.operating import OperatorActionAdmin, ScheduleAdmin, WorkerAdmin
from leasejobs.admin.queues import QueueAdmin
from leasejobs.models import FailedJob, Job, OperatorAction, ParkedJob, Queue, Schedule, Worker

_ADMINS: Final[Any] = (
    (Job, JobAdmin),
    (FailedJob, FailedJobAdmin),
    (ParkedJob, ParkedJobAdmin),
    (Queue, QueueAdmin),
    (Worker, WorkerAdmin),
    (Schedule, ScheduleAdmin),
    (OperatorAction, OperatorActionAdmin),
)


def register(site: admin.AdminSite) -> None:
    """Show our pages on `site`, too; what is registered there already stays as it is."""
    for model, model_admin in _ADMINS:
        if not site.is_registered(model):
            site.register(model, model_admin)


register(admin.site)
