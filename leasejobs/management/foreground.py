"""`leasejobs run`: one job in the foreground, in this thread, under the real fence."""

import os
import secrets
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, IntegrityError, connections, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now
from psycopg.errors import UniqueViolation
from psycopg.pq import TransactionStatus

from leasejobs import conf, executor, fencing, leases
from leasejobs.fencing import Lease
from leasejobs.heartbeat import Heartbeat, Held
from leasejobs.leases import Written
from leasejobs.management import finding
from leasejobs.management.arguments import job_id
from leasejobs.models import Job
from leasejobs.outcomes import Failed, Failure, Outcome, Succeeded
from leasejobs.redaction import say
from leasejobs.sessions import is_content_refused, is_database_away
from leasejobs.states import WAITING, State

_BUSY_SECONDS: Final = 0.05
_AWAY_SECONDS: Final = 0.5


def add(verbs: Any) -> None:
    """Declare it."""
    parser = verbs.add_parser(
        "run", help="run one waiting job here and now, due or not; a debugger works in it"
    )
    parser.add_argument("id", type=job_id, metavar="ID", help="the job's id")
    parser.set_defaults(handler=_run)


def _run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    duration = conf.load().lease
    # Before the claim: of a task that is not known here, nothing is to be charged.
    for name in Job.objects.using(conf.database()).filter(pk=options["id"]).values_list("task"):
        finding.find(*name)
    job, lease = _claim(options["id"], duration)
    held = Held(lease)
    heartbeat = Heartbeat(duration, lambda _: None, _tell_of_cancel)
    heartbeat.keep(held)
    heartbeat.start()
    clean = _clean_aliases()
    try:
        outcome = executor.run(job, held, lambda: False)
        _discard_dirty(clean)
        written = Written.WRITTEN
        if outcome is not None:
            written, outcome = _write(held, outcome)
    finally:
        heartbeat.stop()
        heartbeat.join()
    if written is Written.LOST:
        raise CommandError(f"Job {job.pk}: the lease was lost, its outcome was refused.")
    if outcome is None or isinstance(outcome, Succeeded):
        command.stdout.write(f"Job {job.pk} ({job.task}) succeeded.")
        return
    said = f"Job {job.pk} ({job.task}) {outcome.outcome.value}"
    if isinstance(outcome, Failed):
        command.stderr.write(outcome.failure.traceback)
        said = f"{said}: {outcome.failure.code} {outcome.failure.detail}".rstrip()
    raise CommandError(f"{said}; it is {_state_now(job.pk)} now.")


def _tell_of_cancel(kept: list[Held]) -> None:
    for held in kept:
        held.is_cancelled = bool(leases.cancel_requested([held.lease.pk]))


def _claim(pk: int, duration: timedelta) -> tuple[Job, Lease]:
    """Lease the job, promoting it first if it waits; a CommandError says why it cannot be."""
    alias = conf.database()
    in_time = Q(deadline_at__isnull=True) | Q(deadline_at__gt=Now())
    wanted = Job.objects.using(alias).filter(in_time, pk=pk)
    holder = f"foreground:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    try:
        with transaction.atomic(using=alias):
            waiting = wanted.filter(state__in=sorted(WAITING))
            if waiting.select_for_update(no_key=True, skip_locked=True).values("pk").exists():
                waiting.update(state=State.PENDING, due_at=Now(), revision=F("revision") + 1)
            claimed = fencing.claim(
                wanted.filter(state=State.PENDING),
                holder=holder,
                duration=duration,
                limit=1,
                changes={
                    "state": State.RUNNING,
                    "attempts": F("attempts") + 1,
                    "claimed_at": Now(),
                    "started_at": Coalesce(F("started_at"), Now()),
                },
            )
            if not claimed:
                raise CommandError(_why_not(pk))
    except IntegrityError as error:
        if not isinstance(error.__cause__, UniqueViolation):
            raise
        raise CommandError(f"Job {pk} waits for its lock key: a job with it is running.") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"Job {pk} holds JSON that Python cannot read.") from error
    return claimed[0]


def _why_not(pk: int) -> str:
    row = Job.objects.using(conf.database()).filter(pk=pk).only(
        "state", "leased_by", "lease_expires_at", "deadline_at"
    ).first()  # fmt: skip
    if row is None:
        return f"There is no job {pk}."
    if row.state == State.RUNNING:
        return f"Job {pk} is running, held by {row.leased_by} until {row.lease_expires_at}."
    if row.state in (*WAITING, State.PENDING):
        is_late = row.deadline_at is not None
        late = f" It may not be started after {row.deadline_at}." if is_late else ""
        return f"Job {pk} cannot be claimed now; is its row locked?{late}"
    name = State(row.state).name.lower()
    return f"Job {pk} is {name}; only a waiting job can be run. See `leasejobs retry`."


def _write(held: Held, outcome: Outcome) -> tuple[Written, Outcome]:
    """Write the outcome, again and again until the lease would be lost; return what was written."""
    is_replaced = False
    while True:
        try:
            written = leases.end(held.lease, outcome)
            pause = _BUSY_SECONDS
        except Error as error:
            connections.close_all()
            if is_content_refused(error) and not is_replaced:
                outcome, is_replaced = Failed(Failure("unrecordable_outcome"), terminal=True), True
                continue
            if not is_database_away(error) or held.is_lost:
                raise CommandError(
                    f"the outcome could not be written: {say(error)}; the job is recovered when"
                    " its lease runs out"
                ) from error
            written, pause = Written.BUSY, _AWAY_SECONDS
        if written is not Written.BUSY:
            return written, outcome
        if held.is_lost:
            return Written.LOST, outcome
        time.sleep(pause)


def _clean_aliases() -> set[str]:
    """Return the aliases that are in no transaction: what a task leaves there is its own."""
    return {connection.alias for connection in connections.all() if not connection.in_atomic_block}


def _discard_dirty(aliases: set[str]) -> None:
    """Drop each session of those that the task left inside a transaction."""
    for connection in connections.all(initialized_only=True):
        raw: Any = connection.connection
        if raw is None or connection.alias not in aliases or connection.vendor != "postgresql":
            continue
        status = None if raw.closed else raw.info.transaction_status
        if connection.in_atomic_block or status != TransactionStatus.IDLE:
            raw.close()
            del connections[connection.alias]


def _state_now(pk: int) -> str:
    state = Job.objects.using(conf.database()).values_list("state", flat=True).get(pk=pk)
    return State(state).name.lower()
