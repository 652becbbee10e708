"""Models a project might have: a leased row that is no job, and one that refers to a job."""

from django.db import models

from leasejobs.fencing import FencedModel
from leasejobs.models import Job


class Account(FencedModel):
    """A leased row with money on it."""

    balance = models.IntegerField(default=0)
    is_open = models.BooleanField(default=True)

    class Meta(FencedModel.Meta):
        ordering = ("id",)

    def __str__(self) -> str:
        return f"account {self.pk}"


class Receipt(models.Model):
    """What a job's body writes; refers to the job by a real foreign key."""

    job = models.ForeignKey(Job, models.CASCADE, null=True)
    text = models.TextField()

    def __str__(self) -> str:
        return self.text
