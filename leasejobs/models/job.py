"""`Job`: one task with arguments, its policy as it was at enqueue, and its lease."""

from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from leasejobs.fencing import FencedModel, FencedQuerySet
from leasejobs.policy import ON_CRASH, LenientDecoder
from leasejobs.states import TERMINAL, UNSTARTED, WAITING, State

DECIDING = (
    "id", "epoch", "lease_token", "leased_by", "task", "queue", "priority", "state", "claimed_at",
    "attempts", "max_attempts", "crashes", "max_crashes", "interruptions", "on_crash", "backoff",
    "cancel_requested_at", "on_dead", "tenant", "correlation_id", "revision",
)  # fmt: skip

MOST = 1_000_000_000
LONGEST_TIMEOUT = 31_622_400  # seconds: a leap year

# What an operator may have to look at.
DEAD = frozenset({State.FAILED, State.CANCELLED, State.PARKED})


class KeyScope(models.TextChoices):
    """For how long a key keeps a second job out; each scope is a namespace of its own."""

    ALWAYS = "always", _("while the row is kept")
    LIVE = "live", _("until the job is terminal")
    QUEUED = "queued", _("until the job is first claimed")


# (priority, due_at, id): the most urgent first. One direction for all three, so that a row
# comparison can follow the index; priority is stored negated for that reason.
URGENCY = ("priority", "due_at", "id")


class JobQuerySet(FencedQuerySet):
    """Adjectives for jobs."""

    def claimable(self) -> Self:
        """Pending rows that never crashed a worker, most urgent first; index `job_claim`.

        Rows with a lock key are a stream of their own: see `locked`.
        """
        return self.filter(state=State.PENDING, crashes=0, lock_key="").order_by(*URGENCY)

    def locked(self) -> Self:
        """Pending rows with a lock key that never crashed a worker; index `job_locked`."""
        rows = self.filter(state=State.PENDING, crashes=0).exclude(lock_key="")
        return rows.order_by(*URGENCY)

    def suspect(self) -> Self:
        """Pending rows whose last run took its worker along; index `job_suspect`."""
        return self.filter(state=State.PENDING, crashes__gt=0).order_by(*URGENCY)

    def due(self) -> Self:
        """Rows a worker may start now, or will once it promoted them."""
        waiting = Q(state__in=sorted(WAITING), due_at__lte=Now())
        return self.filter(Q(state=State.PENDING) | waiting)

    def waiting_and_due(self) -> Self:
        """Rows whose time has come but that are not promoted yet; index `job_due`."""
        return self.filter(state__in=sorted(WAITING), due_at__lte=Now()).order_by("due_at", "id")

    def past_deadline(self) -> Self:
        """Rows that may not be started any more; index `job_deadline`."""
        rows = self.filter(state__in=sorted(UNSTARTED), deadline_at__lte=Now())
        return rows.order_by("deadline_at", "id")

    def running(self) -> Self:
        """Rows with a holder, alive or not; index `job_leased`."""
        return self.filter(state=State.RUNNING)

    def deciding(self) -> Self:
        """Only the columns a verb decides by: the rest may be big, or not even readable."""
        return self.only(*DECIDING)

    def terminal(self) -> Self:
        """Rows nothing will move again by itself."""
        return self.filter(state__in=sorted(TERMINAL))

    def dead(self) -> Self:
        """Rows that failed, were cancelled or wait for a decision; index `job_dead`."""
        return self.filter(state__in=sorted(DEAD))


class Job(FencedModel):
    """One row of work. Moved only by the verbs of `leases`, `enqueue` and `recovery`."""

    FENCE_FILTER: ClassVar[dict[str, Any]] = {"state": State.RUNNING}

    task = models.TextField(editable=False)
    queue = models.TextField(editable=False)
    priority = models.SmallIntegerField(editable=False, help_text=_("Negated: smaller is first."))
    tenant = models.TextField(default="", db_default="", blank=True, editable=False)
    args = models.JSONField(default=list, editable=False)
    kwargs = models.JSONField(default=dict, editable=False)
    key = models.TextField(default="", db_default="", blank=True, editable=False)
    key_scope = models.TextField(
        choices=KeyScope, default=KeyScope.ALWAYS, db_default=KeyScope.ALWAYS, editable=False
    )

    lock_key = models.TextField(
        default="", db_default="", blank=True, editable=False,
        help_text=_("At most one job of a tenant with this key runs at a time."),
    )  # fmt: skip

    state = models.SmallIntegerField(choices=State, editable=False)
    due_at = models.DateTimeField(editable=False)
    deadline_at = models.DateTimeField(
        null=True, editable=False, help_text=_("Not started after it: cancelled as expired.")
    )
    created_at = models.DateTimeField(editable=False)
    claimed_at = models.DateTimeField(null=True, editable=False)
    started_at = models.DateTimeField(
        null=True, editable=False, help_text=_("The first claim; never cleared.")
    )
    finished_at = models.DateTimeField(null=True, editable=False)
    revision = models.IntegerField(
        default=0, db_default=0, editable=False, help_text=_("Up by one at every move but claim.")
    )

    # The policy, as the task stated it at enqueue, and what has been spent of it.
    attempts = models.IntegerField(default=0, db_default=0, editable=False)
    max_attempts = models.IntegerField(editable=False)
    crashes = models.IntegerField(default=0, db_default=0, editable=False)
    max_crashes = models.IntegerField(editable=False)
    interruptions = models.IntegerField(default=0, db_default=0, editable=False)
    on_crash = models.TextField(
        choices=[(name, name) for name in ON_CRASH], default="retry", editable=False
    )
    backoff = models.JSONField(default=dict, decoder=LenientDecoder, editable=False)
    timeout_seconds = models.FloatField(null=True, editable=False)
    on_dead = models.JSONField(
        null=True, decoder=LenientDecoder, editable=False,
        help_text=_("The task to enqueue if this job fails or is parked, with its own policy."),
    )  # fmt: skip
    cancel_requested_at = models.DateTimeField(null=True, editable=False)

    correlation_id = models.TextField(default="", db_default="", blank=True, editable=False)
    parent_id = models.BigIntegerField(
        null=True, editable=False, help_text=_("The job that enqueued this one.")
    )
    metadata = models.JSONField(null=True, decoder=LenientDecoder, editable=False)

    checkpoint = models.JSONField(null=True, editable=False)
    progress_done = models.BigIntegerField(null=True, editable=False)
    progress_total = models.BigIntegerField(null=True, editable=False)
    result = models.JSONField(null=True, editable=False)
    failure_code = models.TextField(default="", db_default="", blank=True, editable=False)
    failure_detail = models.TextField(default="", db_default="", blank=True, editable=False)

    objects: ClassVar[models.Manager[Any]] = JobQuerySet.as_manager()

    class Meta(FencedModel.Meta):
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = (
            ("cancel_job", _("Can cancel jobs")),
            ("retry_job", _("Can retry jobs")),
            ("park_job", _("Can park jobs")),
            ("pause_queue", _("Can pause and resume queues")),
            ("view_job_arguments", _("Can view arguments, results and checkpoints of jobs")),
            ("view_job_tracebacks", _("Can view tracebacks of jobs")),
        )
        constraints = (  # type: ignore[assignment]
            *FencedModel.Meta.constraints,
            models.CheckConstraint(
                name="leasejobs_job_state_known", condition=Q(state__in=State.values)
            ),
            models.CheckConstraint(
                name="leasejobs_job_leased_while_running",
                condition=Q(state=State.RUNNING, lease_token__isnull=False)
                | (~Q(state=State.RUNNING) & Q(lease_token__isnull=True)),
            ),
            # What a verb adds to, or psycopg reads, must not overflow: one such row at the head
            # would fail the statement for all behind it.
            models.CheckConstraint(
                name="leasejobs_job_budgets_sane",
                condition=Q(attempts__range=(0, MOST), crashes__range=(0, MOST))
                & Q(interruptions__range=(0, MOST), revision__range=(0, MOST))
                & Q(max_attempts__range=(1, MOST), max_crashes__range=(1, MOST)),
            ),
            models.CheckConstraint(
                name="leasejobs_job_due_at_finite",
                condition=Q(
                    due_at__range=(datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
                ),
            ),
            models.CheckConstraint(
                name="leasejobs_job_timeout_sane",
                condition=Q(timeout_seconds__isnull=True)
                | Q(timeout_seconds__gt=0, timeout_seconds__lte=LONGEST_TIMEOUT),
            ),
            # The backstop of `claiming.claim_locked`, and the index it looks for holders in.
            models.UniqueConstraint(
                fields=("tenant", "lock_key"),
                name="leasejobs_job_lock_held",
                condition=Q(state=State.RUNNING) & ~Q(lock_key=""),
            ),
            models.UniqueConstraint(
                fields=("tenant", "task", "key"),
                name="leasejobs_job_key_always",
                condition=Q(key_scope=KeyScope.ALWAYS) & ~Q(key=""),
            ),
            models.UniqueConstraint(
                fields=("tenant", "task", "key"),
                name="leasejobs_job_key_live",
                condition=Q(key_scope=KeyScope.LIVE) & ~Q(key="") & ~Q(state__in=sorted(TERMINAL)),
            ),
            models.UniqueConstraint(
                fields=("tenant", "task", "key"),
                name="leasejobs_job_key_queued",
                condition=Q(key_scope=KeyScope.QUEUED, epoch=0)
                & ~Q(key="")
                & ~Q(state__in=sorted(TERMINAL)),
            ),
        )
        indexes = (
            models.Index(
                fields=("queue", *URGENCY),
                name="job_claim",
                condition=Q(state=State.PENDING, crashes=0, lock_key=""),
            ),
            models.Index(
                fields=("queue", *URGENCY),
                name="job_locked",
                condition=Q(state=State.PENDING, crashes=0) & ~Q(lock_key=""),
            ),
            models.Index(
                fields=("queue", *URGENCY),
                name="job_suspect",
                condition=Q(state=State.PENDING, crashes__gt=0),
            ),
            models.Index(
                fields=("due_at", "id"), name="job_due", condition=Q(state__in=sorted(WAITING))
            ),
            models.Index(
                fields=("deadline_at", "id"),
                name="job_deadline",
                condition=Q(state__in=sorted(UNSTARTED), deadline_at__isnull=False),
            ),
            models.Index(fields=("id",), name="job_dead", condition=Q(state__in=sorted(DEAD))),
            # Not on lease_expires_at: a renewal that changes no indexed column stays HOT.
            models.Index(fields=("id",), name="job_leased", condition=Q(state=State.RUNNING)),
        )

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"
