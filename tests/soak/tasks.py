"""The soak's tasks. What must happen once is written behind the fence, into plain tables."""

import os
import random
import signal
import time
from datetime import timedelta

from django.db import connection

from leasejobs import Backoff, Continue, Discard, JobContext, Retry, Snooze, periodic, task

QUICK = Backoff(base=timedelta(seconds=0.2), cap=timedelta(seconds=1))

# No unique constraint anywhere: what happens twice is to be seen.
TABLES = """
CREATE TABLE soak_effect (job_id bigint, epoch bigint, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE soak_inside (job_id bigint, epoch bigint, tenant text, lock_key text,
    began_at timestamptz DEFAULT clock_timestamp(), ended_at timestamptz);
CREATE TABLE soak_death (handler_id bigint, job_id bigint, reason text);
"""


def write(statement: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def finish(context: JobContext) -> None:
    """Leave the effect and complete, in one commit."""
    with context.fenced():
        write("INSERT INTO soak_effect VALUES (%s, %s)", context.job.pk, context.epoch)
        context.complete(context.epoch)


@task(takes_context=True)
def bury(context: JobContext, job_id: int, reason: str) -> None:
    """Handle a death."""
    with context.fenced():
        write("INSERT INTO soak_death VALUES (%s, %s, %s)", context.job.pk, job_id, reason)
        context.complete()


@task(takes_context=True, backoff=QUICK, on_dead=bury)
def plain(context: JobContext, seconds: float = 0) -> None:
    time.sleep(seconds)
    finish(context)


@task
def returns(value: int) -> int:
    return value


@task(takes_context=True, backoff=QUICK, on_dead=bury, lock_key="{lock}")
def locked(context: JobContext, lock: str, seconds: float) -> None:
    """Tell when this run is inside its lock, by the database's clock."""
    with context.fenced() as job:
        write(
            "INSERT INTO soak_inside VALUES (%s, %s, %s, %s)",
            *(job.pk, context.epoch, job.tenant, job.lock_key),
        )
    time.sleep(seconds)
    if random.random() < 0.1:
        raise RuntimeError("inside the lock")
    with context.fenced():
        write(
            "UPDATE soak_inside SET ended_at = clock_timestamp() WHERE job_id = %s AND epoch = %s",
            *(context.job.pk, context.epoch),
        )
        write("INSERT INTO soak_effect VALUES (%s, %s)", context.job.pk, context.epoch)
        context.complete(context.epoch)


@task(takes_context=True, backoff=QUICK, max_attempts=3, on_dead=bury)
def fails(context: JobContext) -> None:
    draw = random.random()
    if draw < 0.1:
        raise Discard("of_no_use")
    if draw < 0.2:
        raise Retry(timedelta(seconds=0.1))
    if draw < 0.6:
        raise RuntimeError("at random")
    finish(context)


@task(takes_context=True, backoff=QUICK, on_dead=bury)
def crashes(context: JobContext, by_signal: bool) -> None:
    if random.random() < 0.2:
        if by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(random.choice((0, 1, 64, 65)))
    finish(context)


@task(takes_context=True, on_crash="park", on_dead=bury, queue_name="careful")
def careful(context: JobContext) -> None:
    if random.random() < 0.1:
        os.kill(os.getpid(), signal.SIGKILL)
    finish(context)


@task(takes_context=True, backoff=QUICK, timeout=timedelta(seconds=0.3), on_dead=bury)
def dawdles(context: JobContext) -> None:
    """Run over the time now and then; half of the time without listening."""
    if random.random() < 0.2:
        is_deaf = random.random() < 0.3
        until = time.monotonic() + 6
        while time.monotonic() < until and (is_deaf or not context.should_stop):
            time.sleep(0.02)
        raise Retry
    finish(context)


@task(takes_context=True, backoff=QUICK)
def listens(context: JobContext) -> None:
    """Run until told to stop, or for two seconds."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        if context.should_stop:
            raise Retry
        time.sleep(0.02)
    finish(context)


@task(takes_context=True, backoff=QUICK)
def snoozes(context: JobContext) -> Snooze | None:
    if random.random() < 0.5:
        return Snooze(timedelta(seconds=random.random() * 0.5))
    return finish(context)


@task(takes_context=True, backoff=QUICK)
def continues(context: JobContext) -> Continue | None:
    done = (context.job.checkpoint or 0) + 1
    context.progress(done, 4)
    return Continue(done) if done < 4 else finish(context)


@task(takes_context=True, backoff=QUICK)
def chains(context: JobContext, left: int) -> None:
    """Enqueue the next one behind the fence, so that it is there once."""
    with context.fenced():
        write("INSERT INTO soak_effect VALUES (%s, %s)", context.job.pk, context.epoch)
        if left:
            chains.using(key=f"link of {context.job.pk}").enqueue(left - 1)
        context.complete(context.epoch)


@periodic("*/2 * * * * *", catch_up="all")
@task(takes_context=True, backoff=QUICK, queue_name="ticks")
def tick(context: JobContext) -> None:
    finish(context)
