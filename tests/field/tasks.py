"""Tasks for the field cases."""

import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from django.db import OperationalError, connection

from example_project.market.models import Market
from leasejobs import Discard, JobContext, task
from tests.tasks import QUICK, note

SECRETS = {
    "url": "https://user:SEKRET0pw@example.test/x?api_key=SEKRET1key&token=SEKRET2tok",
    "header": "{'Authorization': 'Bearer SEKRET3bearer'}",
    "seed": "S" + "SEKRET4" + "A" * 48,
    "dsn": 'connection to "postgres://app:SEKRET5pw@db:5432/app" failed',
}


@task(max_attempts=1)
def fail_with_secrets(argument: str) -> None:
    """Raise what HTTP clients and drivers raise, from a frame full of secrets."""
    header = {"Authorization": "Bearer SEKRET6local"}
    logging.getLogger("leasejobs").debug("calling with %d headers", len(header))
    try:
        raise ConnectionError(f"GET {SECRETS['url']} with {SECRETS['header']}")
    except ConnectionError as error:
        raise OperationalError(f"{SECRETS['dsn']}; {SECRETS['seed']}") from error


@task
def hear_of_the_dead(directory: str = "", *, job_id: int = 0, reason: str = "") -> None:
    """Write a row about a job that died."""
    Market.objects.create(ref=f"dead {job_id} {reason} {directory}")


@task(takes_context=True, max_attempts=2, max_crashes=2, backoff=QUICK)
def die_somehow(context: JobContext, how: str) -> None:
    """End for good in one of several ways."""
    match how:
        case "raise":
            raise RuntimeError(how)
        case "discard":
            raise Discard("unwanted")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(60)


@task(takes_context=True, backoff=QUICK)
def stall_once(context: JobContext, directory: str, name: str) -> int:
    """Wait for a file at the first claim, heeding nothing; at later ones return at once."""
    note(directory, f"begin {context.job.pk} {context.epoch} {os.getpid()}")
    while context.epoch == 1 and not (Path(directory) / name).exists():
        time.sleep(0.01)
    note(directory, f"end {context.job.pk} {context.epoch} {os.getpid()}")
    return context.epoch


@task(takes_context=True, backoff=QUICK)
def advance_and_die(context: JobContext, directory: str) -> int:
    """Count to a hundred; die at seventy the first time, and go on from there."""
    start = context.job.checkpoint or 0
    note(directory, f"start {context.job.pk} {context.epoch} {start}")
    for done in range(start + 10, 101, 10):
        with context.fenced():
            context.checkpoint(done)
            context.progress(done, 100)
        if done == 70 and context.epoch == 1:
            context.flush_progress()
            os.kill(os.getpid(), signal.SIGKILL)
    return start


@task(max_attempts=1)
def leave_a_grandchild() -> int:
    """Start a process that outlives the task, by way of one that does not wait for it."""
    started = subprocess.run(
        ["sh", "-c", "sleep 0.3 & echo $!"], capture_output=True, text=True, check=True
    )
    return int(started.stdout)


@task(max_attempts=1)
def sleep_on_the_server(seconds: float) -> None:
    """Keep the thread's session busy."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])
