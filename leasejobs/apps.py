"""Wiring at start: the app's label, its checks and its receivers."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LeaseJobsConfig(AppConfig):
    """The core app."""

    name = "leasejobs"
    label = "leasejobs"
    verbose_name = _("Jobs")
    # Stated, or a migration made on Django 6 would drift on 5.2, whose default differs.
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register system checks and connect receivers."""
        # Connected on import.
        from leasejobs import (  # noqa: F401
            checks,
            metrics,
            receivers,
            registry,
            task_signals,
            wakeup,
        )

        known = registry.known
        metrics.TASKS.knows = lambda name: name in known()
