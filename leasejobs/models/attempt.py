"""`Attempt`: the append-only record of each run of a job, written when the run ends."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from leasejobs.models.job import Job
from leasejobs.states import AttemptOutcome


class Attempt(models.Model):
    """One run, from claim to end; written once, by whoever ended it.

    A holder that comes late, after somebody else ended its run, changes nothing but
    `late_outcome` and `late_at`.
    """

    # No constraint: its trigger would cost a look-up per job on the hot path. No index of its
    # own: the unique one begins with it.
    job = models.ForeignKey(
        Job, models.CASCADE, related_name="attempt_set", db_constraint=False, db_index=False
    )
    epoch = models.BigIntegerField()
    number = models.IntegerField(help_text=_("What the attempt counted as when it was claimed."))
    worker = models.TextField()
    claimed_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    outcome = models.TextField(choices=AttemptOutcome)
    failure_code = models.TextField(default="", db_default="", blank=True)
    exception_path = models.TextField(default="", db_default="", blank=True)
    detail = models.TextField(default="", db_default="", blank=True)
    traceback = models.TextField(default="", db_default="", blank=True)
    late_outcome = models.TextField(
        choices=AttemptOutcome,
        default="",
        db_default="",
        blank=True,
        help_text=_("What the holder reported after it had lost the row; refused."),
    )
    late_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = (
            models.UniqueConstraint(fields=("job", "epoch"), name="leasejobs_attempt_once"),
        )

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id} (epoch {self.epoch})"
