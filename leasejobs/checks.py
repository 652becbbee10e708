"""System checks: what would fail in production is told before anything runs."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.db import connections

from leasejobs import conf, registry, schedules
from leasejobs.compat import InvalidTask
from leasejobs.declare import HOW_TO_CONFIGURE, NO_BACKEND, find_handler, lease_alias


@checks.register
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """E001 a value is wrong; W001 a name is unknown."""
    value = getattr(settings, "LEASEJOBS", {})
    found: list[checks.CheckMessage] = [
        checks.Error(problem, id="leasejobs.E001") for problem in conf.problems(value)
    ]
    for name in value if isinstance(value, dict) else ():
        if name not in conf.names():
            near = difflib.get_close_matches(str(name), conf.names(), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(conf.names())}."
            found.append(
                checks.Warning(f"LEASEJOBS has no option {name!r}.", hint=hint, id="leasejobs.W001")
            )
    return found


@checks.register
def check_database(**_: Any) -> list[checks.CheckMessage]:
    """E002 the alias of our tables is not PostgreSQL through psycopg 3."""
    if conf.problems(getattr(settings, "LEASEJOBS", {})):
        return []  # E001 says so
    alias = conf.database()
    if connections[alias].vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if is_psycopg3:
            return []
    return [
        checks.Error(
            f"leasejobs needs PostgreSQL through psycopg 3 on the alias {alias!r}.",
            hint='Use "django.db.backends.postgresql" and `pip install psycopg`, or name another '
            'alias in LEASEJOBS["DATABASE"].',
            id="leasejobs.E002",
        )
    ]


@checks.register
def check_backend(**_: Any) -> list[checks.CheckMessage]:
    """W002 no alias of TASKS is a LeaseBackend; E003 and there are tasks that need one."""
    registry.autodiscover()
    if lease_alias() != NO_BACKEND:
        return []
    orphans = [task.module_path for task in registry.tasks() if task.backend == NO_BACKEND]
    if orphans:
        return [
            checks.Error(f"No backend can run {', '.join(orphans)}.", hint=HOW_TO_CONFIGURE,
                         id="leasejobs.E003")
        ]  # fmt: skip
    return [
        checks.Warning("No alias in TASKS uses LeaseBackend.", hint=HOW_TO_CONFIGURE,
                       id="leasejobs.W002")
    ]  # fmt: skip


@checks.register
def check_time_zones(**_: Any) -> list[checks.CheckMessage]:
    """E005 USE_TZ is off: an instant would not name one moment."""
    if settings.USE_TZ:
        return []
    return [
        checks.Error("leasejobs needs USE_TZ = True.",
                     hint="Due times and leases are instants; naive times are ambiguous.",
                     id="leasejobs.E005")
    ]  # fmt: skip


# Beside its task threads, a child has its loop, its heartbeat, its settler and its listener.
CONNECTIONS_OF_A_CHILD: Final = 4


@checks.register
def check_connections(**_: Any) -> list[checks.CheckMessage]:
    """W003 the connection pool is too small for a worker; W004 a pooler swallows LISTEN."""
    alias = conf.database()
    if conf.problems(getattr(settings, "LEASEJOBS", {})):
        return []
    database = settings.DATABASES[alias]
    found: list[checks.CheckMessage] = []
    size = pool_size(database)
    if size is not None and size <= CONNECTIONS_OF_A_CHILD:
        found.append(
            checks.Warning(
                f"The pool of {alias!r} has {size} connections.",
                hint=f"A worker's child takes {CONNECTIONS_OF_A_CHILD} and one for each thread:"
                ' raise OPTIONS["pool"]["max_size"].',
                id="leasejobs.W003",
            )
        )
    # What Django's documentation asks of those who pool by transactions; 6432 is PgBouncer's port.
    is_pooled = database.get("DISABLE_SERVER_SIDE_CURSORS") or str(database.get("PORT")) == "6432"
    if is_pooled and conf.listen_database() == alias:
        found.append(
            checks.Warning(
                f"{alias!r} seems to lead through a transaction pooler: LISTEN hears nothing.",
                hint='Name an alias of the server itself in LEASEJOBS["LISTEN_DATABASE"];'
                " without one, idle workers start jobs by polling only.",
                id="leasejobs.W004",
            )
        )
    return found


def pool_size(database: Mapping[str, Any]) -> int | None:
    """Return how many connections the pool of an alias gives out at most; None without a pool."""
    pool = database.get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    given = pool if isinstance(pool, dict) else {}
    least = given.get("min_size", 4)  # psycopg_pool's default
    return int(given.get("max_size") or least)


@checks.register
def check_handlers(**_: Any) -> list[checks.CheckMessage]:
    """E004 the `on_dead` of a task names no task that could handle it."""
    registry.autodiscover()
    found: list[checks.CheckMessage] = []
    for task in registry.tasks():
        try:
            find_handler(task)
        except InvalidTask as error:
            found.append(checks.Error(str(error), id="leasejobs.E004"))
    return found


@checks.register
def check_schedules(**_: Any) -> list[checks.CheckMessage]:
    """E011 a schedule is declared whose ticks `fire_due` could not enqueue."""
    if lease_alias() == NO_BACKEND:
        return []  # E003 says so
    registry.autodiscover()
    return [
        checks.Error(f"The schedule {schedule.name!r} cannot be kept: {problem}.",
                     hint="Until it can, no job of it is enqueued.", id="leasejobs.E011")
        for schedule in schedules.declared()
        if (problem := schedule.problem())
    ]  # fmt: skip
