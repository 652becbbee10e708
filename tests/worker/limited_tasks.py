"""Tasks that run over their time, hold locks, hoard memory or change their session."""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from leasejobs import JobContext, task
from tests.tasks import QUICK, note


@task(takes_context=True, backoff=QUICK)
def heed(context: JobContext, directory: str, seconds: float) -> str:
    """Run until told to stop, for `seconds` at most; note when it is told."""
    began = time.monotonic()
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    while time.monotonic() - began < seconds:
        if context.should_stop:
            lasted = time.monotonic() - began
            note(directory, f"told {context.job.pk} {context.epoch} {lasted:.2f}")
            return "told"
        time.sleep(0.01)
    return "not told"


@task(takes_context=True, backoff=QUICK)
def overrun_once(context: JobContext, directory: str) -> int:
    """Heed nothing at the first claim."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    if context.epoch == 1:
        time.sleep(120)
    return context.epoch


@task(takes_context=True, on_crash="park")
def overrun_and_park(context: JobContext, directory: str) -> None:
    """Heed nothing; nobody may begin it again."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    time.sleep(120)


@task(takes_context=True, backoff=QUICK)
def exclude(context: JobContext, directory: str, seconds: float) -> int:
    """Fail if somebody else is inside the same directory."""
    held = Path(directory) / "held"
    held.touch(exist_ok=False)
    try:
        note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
        time.sleep(seconds)
        note(directory, f"end {context.job.pk} {context.epoch} {os.getpid()}")
    finally:
        held.unlink()
    return context.epoch


_hoard: list[bytes] = []


@task
def hoard(megabytes: int) -> int:
    """Keep memory for as long as the process lives."""
    _hoard.append(os.urandom(megabytes << 20))
    return os.getpid()


@task(max_attempts=1)
def change_session(how: str) -> str:
    """Leave the session, in autocommit, otherwise than a task should find it."""
    with connection.cursor() as cursor:
        match how:
            case "set":
                cursor.execute("SET search_path TO pg_catalog")
            case "set_config":
                cursor.execute("SELECT set_config('work_mem', '77MB', false)")
            case "advisory":
                cursor.execute("SELECT pg_advisory_lock(4711)")
            case "with_hold":
                cursor.execute("DECLARE left_open CURSOR WITH HOLD FOR SELECT 1")
            case "temporary":
                cursor.execute("CREATE TEMP TABLE left_behind (n int)")
            case "listen":
                cursor.execute("LISTEN left_behind")
            case "prepare":
                cursor.execute("PREPARE left_behind AS SELECT 1")
    return how


@task(max_attempts=1)
def inspect_session() -> dict[str, Any]:
    """Return what an earlier task of this thread may have left in the session."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT current_setting('search_path'), current_setting('work_mem') = '77MB',
                (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711),
                (SELECT count(*) FROM pg_cursors WHERE is_holdable),
                (SELECT count(*) FROM pg_class WHERE relname = 'left_behind'),
                (SELECT count(*) FROM pg_listening_channels()),
                (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind')
            """
        )
        names = ("path", "work_mem", "advisory", "cursors", "tables", "channels", "prepared")
        return dict(zip(names, cursor.fetchone(), strict=True))


@task(max_attempts=1)
def fork_and_query() -> dict[str, Any]:
    """Ask the database in a forked process and here, both at once."""
    from example_project.market.models import Market

    Market.objects.count()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            for _ in range(20):
                Market.objects.count()
            os.write(writer, b"fine")
        os._exit(0)
    os.close(writer)
    for _ in range(20):
        Market.objects.count()
    with os.fdopen(reader, "rb") as answer:
        child = answer.read().decode()
    _, status = os.waitpid(pid, 0)
    return {"child": child, "status": status, "parent": Market.objects.count()}


@task(takes_context=True, max_attempts=1)
async def work_in_a_coroutine(context: JobContext, directory: str) -> dict[str, Any]:
    """Use the ORM, a checkpoint and a fenced block from a coroutine."""
    from example_project.market.models import Market

    def write() -> None:
        with context.fenced():
            Market.objects.create(ref=f"from {context.job.pk}")

    await context.acheckpoint({"step": 1})
    await sync_to_async(write)()
    await context.aprogress(1, 2)
    while not context.should_stop and not (Path(directory) / "finish").exists():
        await asyncio.sleep(0.01)
    return {"markets": await Market.objects.acount(), "told": context.should_stop}
