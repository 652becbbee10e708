"""`make bench`: how fast one process drains no-op jobs, beside the raw SQL it is made of.

Works in a database of its own on the server of DATABASE_URL, dropped at the end. Machines differ
and are shared: read the ratio to the raw loop, which runs in the same minute on the same table,
before the figures themselves. Rounds alternate; medians are printed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

from tests.benchmarks import breakdown

JOBS = 20_000
BATCH = 100
# As in production: metrics on, counted in files that a scrape would merge.
OPTIONS = ("--no-reload", "--verbosity=0", "--metrics-port=0")
WORKER = (sys.executable, "manage.py", "runleaseworker", *OPTIONS)
# The bar is 10,000 a second on the machine where the raw prototype did 57,000.
BAR = 10_000 / 57_000


@contextmanager
def scratch_database() -> Iterator[str]:
    """Make a database, point Django at it, drop it at the end; yield its URL."""
    name = f"leasejobs_bench_{uuid.uuid4().hex[:8]}"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    original = settings.DATABASES["default"]["NAME"]
    connections["default"].close()
    settings.DATABASES["default"]["NAME"] = connections["default"].settings_dict["NAME"] = name
    try:
        call_command("migrate", verbosity=0)
        head, _, tail = (os.environ.get("DATABASE_URL") or default_url()).rpartition("/")
        yield f"{head}/{name}" + ("?" + tail.partition("?")[2] if "?" in tail else "")
    finally:
        connections["default"].close()
        connections["default"].settings_dict["NAME"] = original
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def default_url() -> str:
    """Return the URL of the embedded server."""
    from example_project import postgres

    return postgres.url()


def reset() -> None:
    """Empty the tables and bring their statistics up to date."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE leasejobs_job, leasejobs_attempt")
        cursor.execute("CHECKPOINT")


def fill(count: int) -> float:
    """Enqueue `count` no-op jobs in bulk; return the rate."""
    from leasejobs import enqueue_many
    from tests.tasks import noop

    began = time.perf_counter()
    enqueue_many([noop.prepare() for _ in range(count)])
    elapsed = time.perf_counter() - began
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE leasejobs_job")
    return count / elapsed


def drain(url: str, threads: int) -> float:
    """Drain with `runleaseworker`, one process; return the rate from first claim to last finish.

    By the database's clock, so that interpreter start-up is not in it.
    """
    command = [*WORKER, "--drain", f"--threads={threads}"]
    subprocess.run(command, env=os.environ | {"DATABASE_URL": url}, check=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE state = 5), count(*),"
            " extract(epoch FROM max(finished_at) - min(started_at)) FROM leasejobs_job"
        )
        succeeded, total, seconds = cursor.fetchone()
    if succeeded != total:
        raise SystemExit(f"only {succeeded} of {total} jobs succeeded")
    return float(total) / float(seconds)


def drain_raw(count: int) -> float:
    """Drain the same table with bare psycopg: batch claim, batch fenced completion, no Python work.

    What the schema and the server allow on this machine; the yardstick of the ratio.
    """
    connection.ensure_connection()
    raw = connection.connection
    done, began = 0, time.perf_counter()
    while True:
        token = uuid.uuid4()
        rows = raw.execute(
            "UPDATE leasejobs_job SET state = 3, epoch = epoch + 1, attempts = attempts + 1,"
            " lease_token = %s, leased_by = 'raw', claimed_at = statement_timestamp(),"
            " started_at = statement_timestamp(),"
            " lease_expires_at = statement_timestamp() + interval '30 s' WHERE id = ANY(ARRAY("
            "SELECT id FROM leasejobs_job WHERE queue = 'default' AND state = 2 AND crashes = 0"
            " AND lock_key = ''"
            " ORDER BY priority, due_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED))"
            " RETURNING id, task, args, kwargs",
            [token, BATCH],
        ).fetchall()
        if not rows:
            break
        raw.execute(
            "WITH moved AS (UPDATE leasejobs_job SET state = 5, revision = revision + 1,"
            " finished_at = statement_timestamp(), lease_token = NULL, leased_by = '',"
            " lease_expires_at = NULL WHERE id = ANY(%s) AND lease_token = %s AND state = 3"
            " RETURNING id, epoch, attempts, claimed_at)"
            " INSERT INTO leasejobs_attempt"
            " (job_id, epoch, number, worker, claimed_at, ended_at, outcome)"
            " SELECT id, epoch, attempts, 'raw', claimed_at, statement_timestamp(), 'succeeded'"
            " FROM moved",
            [[row[0] for row in rows], token],
        )
        done += len(rows)
    if done != count:
        raise SystemExit(f"the raw loop drained {done} of {count} jobs")
    return done / (time.perf_counter() - began)


def enqueue_singly(count: int) -> float:
    """Enqueue one by one, each its own commit; return the rate."""
    from tests.tasks import noop

    began = time.perf_counter()
    for _ in range(count):
        noop.enqueue()
    return count / (time.perf_counter() - began)


def idle_latency(url: str, count: int) -> list[float]:
    """Return milliseconds from enqueue to claim on an idle worker, by the database's clock."""
    from leasejobs.models import Job
    from tests.tasks import noop

    worker = subprocess.Popen(
        [*WORKER, "--poll=30"],
        env=os.environ | {"DATABASE_URL": url},
    )
    try:
        for _ in range(count + 5):
            job_id = noop.enqueue().job_id
            while not Job.objects.filter(pk=job_id, state=5).exists():
                time.sleep(0.002)
            time.sleep(0.02)  # let it fall idle again: that is what is measured
    finally:
        worker.terminate()
        worker.wait()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1000 * extract(epoch FROM started_at - created_at) FROM leasejobs_job"
            " ORDER BY id OFFSET 5"  # the first ones find the worker starting
        )
        return sorted(float(row[0]) for row in cursor.fetchall())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--latency-jobs", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    os.environ["DJANGO_DEBUG"] = "0"  # or Django would format and keep each statement
    django.setup()
    figures: dict[str, list[float]] = {"bulk": [], "drain": [], "raw": []}
    with scratch_database() as url:
        for _ in range(options.rounds):
            reset()
            figures["bulk"].append(fill(options.jobs))
            figures["drain"].append(drain(url, options.threads))
            reset()
            figures["bulk"].append(fill(options.jobs))
            figures["raw"].append(drain_raw(options.jobs))
        reset()
        fill(options.jobs)
        watch = breakdown.measure(options.jobs, options.threads)
        reset()
        single = enqueue_singly(2_000)
        reset()
        latencies = idle_latency(url, options.latency_jobs)
    report(figures, single, latencies, options)
    breakdown.report(watch, options.jobs)


def report(
    figures: dict[str, list[float]], single: float, latencies: list[float], options: Any
) -> None:
    """Print the medians."""
    drained, raw = statistics.median(figures["drain"]), statistics.median(figures["raw"])
    print(f"no-op drain, 1 process, {options.threads} thread(s), {options.jobs:,} jobs:")
    print(f"  {drained:>10,.0f} jobs/s   (rounds: {_rounds(figures['drain'])})")
    print(f"raw SQL loop, batch {BATCH}, same table:")
    print(f"  {raw:>10,.0f} jobs/s   (rounds: {_rounds(figures['raw'])})")
    print(f"  the drain does {drained / raw:.2f} of it; the bar is {BAR:.2f}")
    print("enqueue:")
    print(f"  {statistics.median(figures['bulk']):>10,.0f} jobs/s in bulk (enqueue_many)")
    print(f"  {single:>10,.0f} jobs/s one by one, each committed and notified")
    print(f"enqueue to start, idle worker, by notification, {len(latencies)} jobs:")
    quantiles = statistics.quantiles(latencies, n=100, method="inclusive")
    print(f"  p50 {quantiles[49]:.2f} ms   p99 {quantiles[98]:.2f} ms   max {latencies[-1]:.2f} ms")


def _rounds(values: list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


if __name__ == "__main__":
    main()
