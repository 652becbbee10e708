"""Renewal: extend leases that are alive, and tell which of the others are lost.

Fenced like every write: a released or re-claimed row is never armed again.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from leasejobs import conf
from leasejobs.fencing import FencedModel, Lease, local_clock


def renew(leases: Iterable[Lease]) -> tuple[list[Lease], list[Lease], list[Lease]]:
    """Extend leases by their own duration; return them as (renewed, locked, lost).

    *Renewed* ones come back as new receipts. *Locked* rows are in somebody's transaction, as a
    rule in their own holder's `fenced()`, which re-arms them itself; they are neither extended
    nor lost. *Lost* rows were released, ended or claimed again, or had already expired: an
    expired lease is never brought back to life here, since another worker may be about to claim
    it. Pairs (pk, token) stay pairs: one statement per token, never a cross product.
    """
    batches: dict[tuple[type[FencedModel], uuid.UUID], list[Lease]] = defaultdict(list)
    for lease in leases:
        batches[lease.model, lease.token].append(lease)
    renewed: list[Lease] = []
    locked: list[Lease] = []
    lost: list[Lease] = []
    for (model, token), batch in batches.items():
        left_at = local_clock()
        expiries = _extend(model, token, [lease.pk for lease in batch], batch[0].duration)
        missing = [lease for lease in batch if lease.pk not in expiries]
        alive = _still_alive(model, token, missing) if missing else set()
        for lease in batch:
            if lease.pk in expiries:
                deadline = left_at + lease.duration.total_seconds()
                renewed.append(replace(lease, expires_at=expiries[lease.pk], deadline=deadline))
            else:
                (locked if lease.pk in alive else lost).append(lease)
    return renewed, locked, lost


def _extend(
    model: type[FencedModel], token: uuid.UUID, pks: Sequence[Any], duration: timedelta
) -> dict[Any, datetime]:
    """Renew what is still unexpired, unlocked and under `token`; return {pk: new expiry}.

    The lock comes first and skips: an UPDATE alone would wait behind the holder's own fenced().
    """
    alias = conf.database()
    with transaction.atomic(using=alias):
        held = model._base_manager.using(alias).filter(
            pk__in=pks, lease_token=token, lease_expires_at__gt=Now(), **model.FENCE_FILTER
        )
        locked = held.order_by("pk").select_for_update(skip_locked=True, no_key=True)
        ready = list(locked.values_list("pk", flat=True))
        if not ready:
            return {}
        extended = model._base_manager.using(alias).filter(pk__in=ready, lease_token=token)
        extended.update(lease_expires_at=Now() + duration)
        return dict(extended.values_list("pk", "lease_expires_at"))


def _still_alive(model: type[FencedModel], token: uuid.UUID, leases: list[Lease]) -> set[Any]:
    """Return the pks whose lease an unlocked read still finds under `token` and unexpired.

    An expired row that is locked is locked by its own holder's fenced() (which re-arms it), or
    by a recovery about to end it. It counts as alive here; the next renewal tells.
    """
    pks = [lease.pk for lease in leases]
    alias = conf.database()
    held = model._base_manager.using(alias).filter(
        pk__in=pks, lease_token=token, **model.FENCE_FILTER
    )
    unexpired = set(held.filter(lease_expires_at__gt=Now()).values_list("pk", flat=True))
    rest = [pk for pk in pks if pk not in unexpired]
    if not rest:
        return unexpired
    with transaction.atomic(using=alias):
        free = held.filter(pk__in=rest).select_for_update(skip_locked=True, no_key=True)
        unlocked = set(free.values_list("pk", flat=True))
    return unexpired | (set(held.filter(pk__in=rest).values_list("pk", flat=True)) - unlocked)
