"""The two kinds of dead jobs that somebody has to look at, as models of their own for the admin."""

from django.utils.translation import gettext_lazy as _

from leasejobs.models.job import Job


class FailedJob(Job):
    """A job that failed for good."""

    class Meta:
        proxy = True
        default_permissions = ()  # who may view jobs may view these
        verbose_name = _("terminal failure")
        verbose_name_plural = _("terminal failures")


class ParkedJob(Job):
    """A job that goes on only when an operator has retried or cancelled it."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("job that needs a decision")
        verbose_name_plural = _("needs a decision")
