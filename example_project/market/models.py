"""Markets, who watches them, and what each watcher was told.

An event has no row of its own: it is the job that tells its market's watchers, under a key made
of the event's identity (`events.key`).
"""

from django.db import models
from django.db.models.functions import Now


class Market(models.Model):
    """A question people trade on, named by whatever identifier its exchange gives it."""

    ref = models.TextField(unique=True)
    title = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.title or self.ref


class Watcher(models.Model):
    """Somebody who wants to be told."""

    name = models.TextField(unique=True)

    def __str__(self) -> str:
        return self.name


class Watch(models.Model):
    """A watcher's interest in one market."""

    watcher = models.ForeignKey(Watcher, models.CASCADE)
    market = models.ForeignKey(Market, models.CASCADE)

    class Meta:
        verbose_name_plural = "watches"
        constraints = (
            models.UniqueConstraint(fields=("market", "watcher"), name="market_watch_once"),
        )

    def __str__(self) -> str:
        return f"{self.watcher_id} watches {self.market_id}"


class Notification(models.Model):
    """What one watcher was told of one event, shown inside the application.

    On purpose without a unique constraint: nothing but the job's fence keeps a second one out,
    so the demo can count what a missing fence would let in.
    """

    watcher = models.ForeignKey(Watcher, models.CASCADE)
    market = models.ForeignKey(Market, models.CASCADE)
    event_type = models.TextField()
    event_ref = models.TextField()
    occurred_at = models.DateTimeField()
    text = models.TextField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.text
