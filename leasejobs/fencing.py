"""The fence: a row has one holder for a limited time, and a late holder changes nothing.

`FencedModel` brings four columns. `claim` writes them, `renew` extends them, `fenced` is a
transaction in which the holder may write anything at all, or nothing. Every decision compares a
row with the lease token in the statement that writes it, by the clock of that statement
(`STATEMENT_TIMESTAMP()`, never `now()`, which stands still inside a transaction).

Lock order: the leased row first, domain rows after. Every row lock is `FOR NO KEY UPDATE`, so
that a transaction which merely references the row by a foreign key neither waits nor hides it.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Self, TypeVar

from django.core import checks
from django.db import Error, connections, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from leasejobs import conf
from leasejobs.exceptions import LeaseLost
from leasejobs.guard import no_other_writes
from leasejobs.points import reached
from leasejobs.sessions import bound_transaction, is_inside_test_case, is_session_lost

FENCE_COLUMNS: Final = ("epoch", "lease_token", "leased_by", "lease_expires_at")

# What a row carries while nobody holds it; the epoch stays, it never goes down.
UNLEASED: Final = {"lease_token": None, "leased_by": "", "lease_expires_at": None}

_FREE: Final = Q(lease_token__isnull=True) | Q(lease_expires_at__lte=Now())

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


def local_clock() -> float:
    """Return seconds on a clock that never jumps and, where there is one, counts suspension.

    CLOCK_BOOTTIME on Linux; `time.monotonic` (CLOCK_MONOTONIC) elsewhere, which on macOS does
    not stand still either.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Lease:
    """The receipt of one claim of one row.

    (pk, token) is unique per claim. `deadline` is the instant on `local_clock()` after which the
    holder must assume that it lost the row; it counts from when the request left, so it is never
    later than the database's own expiry.
    """

    model: "type[FencedModel]"
    pk: Any
    epoch: int
    token: uuid.UUID
    holder: str
    expires_at: datetime
    duration: timedelta
    deadline: float

    @property
    def is_presumed_lost(self) -> bool:
        """Whether the local deadline has passed; only the database knows for certain."""
        return local_clock() >= self.deadline


class FencedQuerySet(models.QuerySet["Any"]):
    """Adjectives about leases, for any `FencedModel`."""

    def leased(self) -> Self:
        """Rows somebody holds, or held until it expired."""
        return self.filter(lease_token__isnull=False)

    def unleased_or_expired(self) -> Self:
        """Rows nobody may count on: what `claim` may take."""
        return self.filter(_FREE)

    def expired(self) -> Self:
        """Rows whose lease ran out and that nobody has claimed since."""
        return self.filter(lease_expires_at__lte=Now())

    def held_under(self, lease: Lease) -> Self:
        """The row of `lease` if no newer claim, and no verb, has ended it: at most one row.

        An expired lease that nobody else claimed still matches: for outcomes it counts.
        """
        return self.filter(pk=lease.pk, lease_token=lease.token, **self.model.FENCE_FILTER)


class FencedModel(models.Model):
    """A row that may be worked on by one holder for a limited time.

    A subclass that has a `Meta` of its own inherits this one: `class Meta(FencedModel.Meta)`,
    or it loses the check constraint (`leasejobs.E010` tells). `save()` on an existing row never
    writes the four columns.
    """

    # Set by `fenced()`: the re-armed lease after the block, None once the block has ended it.
    lease: "Lease | None"

    # What else must hold for a lease of this model to count, e.g. {"state": RUNNING}.
    FENCE_FILTER: ClassVar[dict[str, Any]] = {}

    epoch = models.BigIntegerField(default=0, db_default=0, editable=False)
    lease_token = models.UUIDField(null=True, editable=False)
    leased_by = models.TextField(default="", db_default="", blank=True, editable=False)
    lease_expires_at = models.DateTimeField(null=True, editable=False)

    objects: ClassVar[models.Manager[Any]] = FencedQuerySet.as_manager()

    class Meta:
        abstract = True
        constraints = (
            models.CheckConstraint(
                name="%(app_label)s_%(class)s_lease_whole",
                condition=Q(lease_token__isnull=True, leased_by="", lease_expires_at__isnull=True)
                | (Q(lease_token__isnull=False, lease_expires_at__isnull=False) & ~Q(leased_by="")),
            ),
        )

    def _do_update(
        self, base_qs: Any, using: Any, pk_val: Any, values: Any, *rest: Any, **named: Any
    ) -> Any:
        # The one place every save() of an existing row passes, whatever update_fields says.
        unfenced = [item for item in values if item[0].name not in FENCE_COLUMNS]
        return super()._do_update(base_qs, using, pk_val, unfenced, *rest, **named)

    @classmethod
    def check(cls, **kwargs: Any) -> list[checks.CheckMessage]:
        """Tell a subclass whose own `Meta` lost the constraint how to inherit it."""
        found: list[checks.CheckMessage] = list(super().check(**kwargs))
        if all(column.name != "lease_token" for column in cls._meta.local_fields):
            return found  # a proxy or a child table: the constraint is on its parent's
        name = f"{cls._meta.app_label}_{cls._meta.model_name}_lease_whole"
        if all(constraint.name != name for constraint in cls._meta.constraints):
            found.append(
                checks.Error(
                    f"{cls._meta.label} is a FencedModel without its check constraint {name!r}.",
                    hint="Write `class Meta(FencedModel.Meta)`, and add your own constraints to "
                    "`FencedModel.Meta.constraints` rather than replacing them.",
                    obj=cls,
                    id="leasejobs.E010",
                )
            )
        return found


Row = TypeVar("Row", bound=FencedModel)


def claim(
    queryset: models.QuerySet[Row],
    *,
    holder: str,
    duration: timedelta,
    limit: int,
    changes: dict[str, Any] | None = None,
) -> list[tuple[Row, Lease]]:
    """Lease up to `limit` rows of `queryset`, in its order, and return each with its receipt.

    The queryset says what is claimable and in which order; that the rows are unleased or expired
    is added here. Rows another transaction has locked are skipped. All rows of one call share a
    token, so a batch is written with one `pk = ANY(…) AND lease_token = …`. `changes` are further
    column assignments of the same update. Joins the caller's transaction, or commits by itself.
    """
    if limit < 0:
        raise ValueError(f"limit must not be negative, not {limit}")
    if limit == 0:
        return []
    if not holder:
        raise ValueError("a claim needs a holder's name")
    model, alias = queryset.model, conf.database()
    token, left_at = uuid.uuid4(), local_clock()
    rows = queryset.using(alias).filter(_FREE)
    with transaction.atomic(using=alias):
        locked = rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
        pks = list(locked.values_list("pk", flat=True)[:limit])
        taken = _base(model, alias).filter(_FREE, pk__in=pks)
        taken.update(
            epoch=F("epoch") + 1,
            lease_token=token,
            leased_by=holder,
            lease_expires_at=Now() + duration,
            **(changes or {}),
        )
        by_pk = {row.pk: row for row in _base(model, alias).filter(pk__in=pks, lease_token=token)}
    found = [by_pk[pk] for pk in pks if pk in by_pk]
    return [(row, _receipt(row, duration, left_at)) for row in found]


def _receipt(row: FencedModel, duration: timedelta, left_at: float) -> Lease:
    """Return the lease that a freshly claimed `row` carries; the request left at `left_at`."""
    if row.lease_token is None or row.lease_expires_at is None:
        raise ValueError(f"{row!r} is not leased")
    return Lease(
        model=type(row),
        pk=row.pk,
        epoch=row.epoch,
        token=row.lease_token,
        holder=row.leased_by,
        expires_at=row.lease_expires_at,
        duration=duration,
        deadline=left_at + duration.total_seconds(),
    )


@contextlib.contextmanager
def fenced(
    lease: Lease,
    *,
    finish: Callable[[Any], bool] | None = None,
    was_finished: Callable[[], bool] | None = None,
) -> Iterator[Any]:
    """Run a transaction behind the fence; all of its writes commit, or `LeaseLost` and none do.

    Yields the row, locked `FOR NO KEY UPDATE` and matched by pk, token and the model's own
    filter. The last statements are `finish(row)`, which may end the lease and then returns True,
    and otherwise the re-arming of the lease, even of one that expired meanwhile: the row was
    locked, so nobody else began. After the block, `row.lease` is the re-armed receipt, or None
    when `finish` ended it.

    Nested use, or use inside `atomic()`, raises RuntimeError. Statements are bounded by the
    lease's duration, and so is idling between them: a frozen or vanished holder is cut off by the
    server and cannot keep the row locked. Writes on any other alias raise `UnfencedWrite`; COPY
    and raw driver cursors are not seen by that guard. A connection that dies inside ends as
    `LeaseLost`, unless a new connection finds what was written last: the re-armed expiry, or by
    `was_finished()` the outcome (the reply to COMMIT was lost, not the COMMIT). Where even that
    leaves a doubt, it is `LeaseLost`: the work is run again rather than believed done.
    """
    alias = conf.database()
    connection = connections[alias]
    raw: Any = None
    finished = False
    rearmed: Lease | None = None
    try:
        with no_other_writes(alias), transaction.atomic(using=alias, durable=True):
            raw = connection.connection
            if not is_inside_test_case(connection):
                bound_transaction(connection, lease.duration)
            row = (
                _base(lease.model, alias)
                .filter(pk=lease.pk, lease_token=lease.token, **lease.model.FENCE_FILTER)
                .select_for_update(no_key=True)
                .first()
            )
            if row is None:
                raise LeaseLost(
                    f"{lease.model._meta.label} {lease.pk} is not held under epoch {lease.epoch}"
                )
            reached("fenced_locked")
            yield row
            reached("fenced_body")
            row.lease = None
            finished = finish is not None and finish(row)
            if not finished:
                left_at = local_clock()
                row.lease = rearmed = _rearm(lease, alias, left_at)
            reached("fenced_written")
    except Error as error:
        # Without a raw connection nothing began: the lease may be as good as before.
        if raw is None or not is_session_lost(raw, error):
            raise
        connection.close()
        is_written = False
        with contextlib.suppress(Error):  # the database may still be away: a doubt, then
            if finished:
                is_written = was_finished is not None and was_finished()
            else:
                is_written = rearmed is not None and _is_armed_as(rearmed, alias)
        if is_written:
            return
        raise LeaseLost(
            f"the connection died inside fenced() for {lease.model._meta.label} {lease.pk}"
        ) from error
    reached("fenced_committed")


def _base(model: type[Row], alias: str) -> models.QuerySet[Row]:
    return model._base_manager.using(alias)


def _rearm(lease: Lease, alias: str, left_at: float) -> Lease:
    held = _base(lease.model, alias).filter(pk=lease.pk, lease_token=lease.token)
    if not held.update(lease_expires_at=Now() + lease.duration):
        raise LeaseLost(f"{lease.model._meta.label} {lease.pk} left its lease inside fenced()")
    rearmed = held.get()
    return _receipt(rearmed, lease.duration, left_at)


def _is_armed_as(rearmed: Lease, alias: str) -> bool:
    # Equal to the microsecond: a later expiry may be the heartbeat's, and proves nothing.
    held = _base(rearmed.model, alias).filter(pk=rearmed.pk, lease_token=rearmed.token)
    return held.filter(lease_expires_at=rearmed.expires_at).exists()
