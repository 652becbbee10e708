"""The single checks of `leasejobs doctor`. Each reads, and returns (level, words, advice)."""

import secrets
import time
from datetime import timedelta
from typing import Any, Final

import django
import psycopg
from django.core.management.base import CommandError
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.models.functions import Now

import leasejobs
from leasejobs import registry
from leasejobs.exceptions import UnknownTask
from leasejobs.management import finding
from leasejobs.models import Attempt, Job, Worker
from leasejobs.models.job import JobQuerySet
from leasejobs.states import WAITING

Answer = tuple[str, str, str]

_OLDEST_SERVER: Final = 140_000
_ROUND_TRIP_SECONDS: Final = 2.0
_CLOCK_SECONDS: Final = 2.0
_MOST_DEAD: Final = 100_000
_LONG_TRANSACTION: Final = 3_600.0
_SEEN: Final = timedelta(minutes=1)
_SAMPLE: Final = 10_000


def database(alias: str) -> Answer:
    """Whether it can be reached and written."""
    ((read_only, name),) = _ask(
        alias, "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool,"
        " current_database()",
    )  # fmt: skip
    if read_only:
        return "problem", f"{name} is read-only", "Point the alias at the primary."
    return "ok", f"{name} on the alias {alias!r}", ""


def versions(alias: str) -> Answer:
    """Whether the server is one that is supported."""
    [(number, version)] = _ask(
        alias,
        "SELECT current_setting('server_version_num')::int, current_setting('server_version')",
    )
    says = (
        f"PostgreSQL {version}, psycopg {psycopg.__version__}, Django {django.__version__},"
        f" leasejobs {leasejobs.__version__}"
    )
    if number < _OLDEST_SERVER:
        return "problem", says, "PostgreSQL 14 or newer is needed."
    return "ok", says, ""


def migrations(alias: str) -> Answer:
    """Whether the tables are those of this code."""
    loader = MigrationLoader(connections[alias])
    ours = sorted(node for node in loader.graph.nodes if node[0] == Job._meta.app_label)
    missing = [name for app, name in ours if (app, name) not in loader.applied_migrations]
    if missing:
        return "problem", f"not applied: {', '.join(missing)}", "Run `manage.py migrate leasejobs`."
    return "ok", "all applied", ""


def indexes(alias: str) -> Answer:
    """Whether an index was left invalid by a build that was cut off."""
    found = _ask(
        alias,
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = ANY(%s::regclass[])"
        " AND NOT (indisvalid AND indisready) ORDER BY 1",
        [_tables()],
    )
    if found:
        names = ", ".join(name for (name,) in found)
        advice = f"For each: REINDEX INDEX CONCURRENTLY {found[0][0]};"
        return "problem", f"invalid: {names}", advice
    return "ok", "all valid", ""


def notifications(alias: str) -> Answer:
    """Whether LISTEN on a session of this alias hears a NOTIFY, which PgBouncer may prevent."""
    channel = f"leasejobs_doctor_{secrets.token_hex(4)}"
    listening = connections.create_connection(alias)
    try:
        listening.ensure_connection()
        raw: Any = listening.connection
        raw.execute(f"LISTEN {channel}")
        began = time.monotonic()
        _ask(alias, "SELECT pg_notify(%s, '')", [channel])
        for _ in raw.notifies(timeout=_ROUND_TRIP_SECONDS, stop_after=1):
            took = (time.monotonic() - began) * 1000
            return "ok", f"LISTEN heard NOTIFY after {took:.1f} ms", ""
    finally:
        listening.close()
    advice = (
        "Jobs start at the next poll. Is PgBouncer between, pooling transactions? Let workers"
        " connect to PostgreSQL itself, or pool sessions."
    )
    return "warning", "LISTEN hears no NOTIFY", advice


def notification_queue(alias: str) -> Answer:
    """How full the server's notification queue is; when it is full, NOTIFY fails."""
    [(usage,)] = _ask(alias, "SELECT pg_notification_queue_usage()")
    says = f"{usage:.0%} used"
    if usage < 0.1:
        return "ok", says, ""
    advice = "A session that did LISTEN sits in a transaction: find and end it."
    return ("problem" if usage >= 0.5 else "warning"), says, advice


def clocks(alias: str) -> Answer:
    """How far this machine's clock is from the database's, by which everything is decided."""
    before = time.time()
    [(there,)] = _ask(alias, "SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8")
    here = (before + time.time()) / 2
    apart = here - there
    says = f"{abs(apart):.3f} s apart"
    if abs(apart) <= _CLOCK_SECONDS:
        return "ok", says, ""
    which = "ahead of" if apart > 0 else "behind"
    advice = f"This machine is {which} the database: a `run_after` computed here is off. Use NTP."
    return "warning", says, advice


def vacuum(alias: str) -> Answer:
    """Whether dead rows are cleared away."""
    [(is_on,)] = _ask(
        alias,
        "SELECT current_setting('autovacuum')::bool AND current_setting('track_counts')::bool"
        " AND NOT EXISTS (SELECT 1 FROM pg_class WHERE oid = ANY(%s::regclass[]) AND"
        " 'autovacuum_enabled=false' = ANY(reloptions))",
        [_tables()],
    )
    if not is_on:
        return "problem", "autovacuum is off", "Turn it on: claims slow down with dead rows."
    [(live, dead, last)] = _ask(
        alias,
        "SELECT n_live_tup, n_dead_tup, last_autovacuum FROM pg_stat_user_tables"
        " WHERE relid = %s::regclass",
        [Job._meta.db_table],
    )
    says = f"{dead} dead rows beside {live} live ones, last vacuumed {last or 'never'}"
    if dead > _MOST_DEAD and dead > live:
        return "warning", says, "See the oldest transaction; else let autovacuum run more often."
    return "ok", says, ""


def oldest_transaction(alias: str) -> Answer:
    """Whether a transaction has been open for so long that nothing can be vacuumed."""
    found = _ask(
        alias,
        "SELECT EXTRACT(EPOCH FROM clock_timestamp() - xact_start)::float8, pid, application_name"
        " FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        " AND datname = current_database() ORDER BY xact_start LIMIT 1",
    )
    if not found:
        return "ok", "none is open", ""
    age, pid, application = found[0]
    says = f"open for {age:.0f} s, session {pid} {application}".rstrip()
    if age < _LONG_TRANSACTION:
        return "ok", says, ""
    return "warning", says, f"Dead rows stay until it ends: SELECT pg_terminate_backend({pid});"


def workers(alias: str) -> Answer:
    """Whether a worker has reported itself lately."""
    seen = Worker.objects.using(alias).filter(seen_at__gte=Now() - _SEEN)
    names = list(seen.order_by("name").values_list("name", flat=True)[:20])
    if names:
        return "ok", f"seen within a minute: {', '.join(names)}", ""
    return "warning", "none seen within a minute", "Start `manage.py runleaseworker`."


def tasks(alias: str) -> Answer:
    """Whether the code here knows the tasks of the jobs that wait or run."""
    try:
        finding.discover()
    except CommandError as error:
        return "problem", str(error), "A worker that starts from this code fails in the same way."
    jobs: JobQuerySet = Job.objects.using(alias)
    names: set[str] = set()
    waiting = jobs.filter(state__in=sorted(WAITING)).order_by("due_at", "pk")
    for rows in (waiting, jobs.claimable(), jobs.locked(), jobs.suspect(), jobs.running()):
        names.update(rows.values_list("task", flat=True)[:_SAMPLE])
    unknown = []
    for name in sorted(names):
        try:
            registry.find(name)
        except UnknownTask:
            unknown.append(name)
    if unknown:
        advice = (
            "Deploy the code that has them, give a renamed task its old name as an alias, or"
            " `leasejobs cancel --task …`."
        )
        return "problem", f"no code here knows {', '.join(unknown)}", advice
    return "ok", f"{len(names)} in use, all known", ""


def _ask(alias: str, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def _tables() -> list[str]:
    return [Job._meta.db_table, Attempt._meta.db_table]
