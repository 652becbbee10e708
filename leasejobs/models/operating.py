"""What operators see and do beside jobs: paused queues, workers, schedules, and their actions."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Queue(models.Model):
    """A queue somebody paused once; queues without a row are simply not paused."""

    name = models.TextField(primary_key=True)
    paused_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return self.name


class Worker(models.Model):
    """A supervisor as it last reported itself, for people to see.

    Nothing is decided by these rows: whether a job's holder lives is told by the job's own lease.
    """

    name = models.TextField(primary_key=True)
    host = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    processes = models.IntegerField()
    threads = models.IntegerField()
    queues = models.JSONField(help_text=_("Empty: all."))
    started_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return self.name


class Schedule(models.Model):
    """How far a periodic task has got; advanced by the transaction that enqueues the tick."""

    name = models.TextField(primary_key=True)
    last_slot = models.DateTimeField(help_text=_("The newest instant that was dealt with."))

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")

    def __str__(self) -> str:
        return self.name


class OperatorAction(models.Model):
    """Who did what to which row, and why; append-only, written with the action itself."""

    verb = models.TextField()
    target = models.TextField(help_text=_("The model's label."))
    target_pk = models.TextField()
    revision = models.IntegerField(null=True, help_text=_("The one the operator had seen."))
    actor = models.TextField()
    reason = models.TextField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        indexes = (models.Index(fields=("target", "target_pk", "id"), name="operator_target"),)

    def __str__(self) -> str:
        return f"{self.verb} {self.target} {self.target_pk}"
