"""Make rows old instead of stubbing clocks."""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from leasejobs import conf
from leasejobs.models import Job
from leasejobs.states import WAITING


def expire_lease(row: Any) -> None:
    """Let the lease of any `FencedModel` row have run out a second ago. Raises if it has none."""
    model = type(row)
    leased = model._base_manager.using(conf.database()).filter(pk=row.pk, lease_token__isnull=False)
    if not leased.update(lease_expires_at=Now() - timedelta(seconds=1)):
        raise AssertionError(f"{row!r} is not leased")


def make_due(job: Job) -> None:
    """Let a waiting job have been due for a second. Raises if it waits for nothing."""
    waiting = Job.objects.using(conf.database()).filter(pk=job.pk, state__in=sorted(WAITING))
    if not waiting.update(due_at=Now() - timedelta(seconds=1)):
        raise AssertionError(f"{job!r} is not waiting")
