"""System checks: what would fail in production is told before anything runs."""

import difflib
from typing import Any

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
