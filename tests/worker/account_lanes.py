"""Lanes of a test app: open accounts are closed, each once."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from leasejobs.fencing import UNLEASED, FencedModel, Lease, claim, fenced
from leasejobs.heartbeat import Held
from leasejobs.recovery import Cause
from tests.fenced_app.models import Account, Receipt

# What an account's balance asks of the lane at its first claim.
DIE, RAISE, WAIT = -1, -2, -3


class AccountLane:
    """Closes open accounts; writes who was taken back, and why, into receipts."""

    name = "accounts"
    threads = 2

    def housekeep(self) -> None:
        """Nothing: an expired lease is claimed as it is."""

    def claim(
        self, holder: str, duration: timedelta, limit: int
    ) -> Sequence[tuple[FencedModel, Lease]]:
        """Lease open accounts."""
        rows = Account.objects.filter(is_open=True).order_by("id")
        return claim(rows, holder=holder, duration=duration, limit=limit)

    def run(self, row: Any, held: Held, should_stop: Callable[[], bool]) -> None:
        """Close one."""
        if row.epoch == 1 and row.balance == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if row.epoch == 1 and row.balance == RAISE:
            raise RuntimeError("the first time it fails")
        while row.balance == WAIT and not should_stop():
            time.sleep(0.01)

        def close(locked: Any) -> bool:
            type(locked).objects.filter(pk=locked.pk).update(is_open=False, **UNLEASED)
            return True

        with fenced(held.lease, finish=close):
            Receipt.objects.create(text=f"closed {row.pk} {held.lease.holder}")

    def settle(self, holder: str, begun: Mapping[tuple[int, int], Cause]) -> int:
        """Free what a dead child held."""
        held = Account.objects.filter(leased_by=holder)
        for pk, epoch in held.values_list("pk", "epoch"):
            Receipt.objects.create(text=f"settled {pk} {begun.get((pk, epoch), 'unbegun')}")
        held.update(**UNLEASED)
        return held.count()

    def seconds_to_next_due(self) -> float:
        """Nothing comes due by itself."""
        return float("inf")


class BrokenLane(AccountLane):
    """Fails wherever it can, as code that lacks its tables does. Visited before `accounts`."""

    name = "a_broken_one"
    threads = 1

    def claim(
        self, holder: str, duration: timedelta, limit: int
    ) -> Sequence[tuple[FencedModel, Lease]]:
        """Ask for a table that is not there."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM no_such_table")
        raise AssertionError("there is such a table")

    def settle(self, holder: str, begun: Mapping[tuple[int, int], Cause]) -> int:
        """Fail too."""
        raise RuntimeError("settling is broken as well")
