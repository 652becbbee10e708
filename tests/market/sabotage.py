"""An app that takes one guard out of leasejobs, for tests that the demo's verdict notices."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from django.apps import AppConfig

VARIABLE = "MARKET_SABOTAGE"


class SabotageConfig(AppConfig):
    """Removes the guard that the environment names, in every process of the project."""

    name = "tests.market.sabotage"
    label = "market_sabotage"
    path = os.path.dirname(__file__)

    def ready(self) -> None:
        SABOTAGES[os.environ[VARIABLE]]()


def accept_stale_writes() -> None:
    """Let the body of `fenced()` commit without a look at the token.

    The outcome is still compared, as in queues that check the lease when they acknowledge.
    """
    from django.db import transaction

    from leasejobs import context
    from leasejobs.models import Job

    @contextlib.contextmanager
    def unfenced(
        lease: Any, *, finish: Callable[[Any], bool], was_finished: Callable[[], bool]
    ) -> Iterator[Any]:
        with transaction.atomic(durable=True):
            row = Job.objects.get(pk=lease.pk)
            yield row
            row.lease = None
            if held := Job.objects.held_under(lease).select_for_update(no_key=True).first():
                finish(held)

    context.fenced = unfenced


def forget_late_outcomes() -> None:
    """Refuse late outcomes, and record nothing of them."""
    from leasejobs import leases

    leases.record_late = lambda lease, outcome: None


def wait_for_expiry() -> None:
    """Leave the jobs of a dead child to their leases."""
    from leasejobs.worker import supervisor

    supervisor.settle_dead = lambda *args, **named: 0


def complete_without_telling() -> None:
    """Let one job in three succeed with the notifications forgotten."""
    from example_project.market.models import Notification

    create = Notification.objects.bulk_create
    Notification.objects.bulk_create = lambda rows, **options: (
        rows if rows[0].event_ref.endswith("3") else create(rows, **options)
    )


SABOTAGES = {
    function.__name__: function
    for function in (
        accept_stale_writes,
        forget_late_outcomes,
        wait_for_expiry,
        complete_without_telling,
    )
}
