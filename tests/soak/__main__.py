"""`make soak`: let it all happen at once for a while, then drain and count what does not hold.

Needs the embedded server, which it restarts: set LEASEJOBS_POSTGRES_DIR to keep yours apart.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import time
import uuid
from pathlib import Path

import django
import psutil


def main() -> int:
    """Soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of chaos, before the draining")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=3, help="supervisors of two children each")
    parser.add_argument("--drain", type=float, default=240, help="seconds the draining may take")
    options = parser.parse_args()
    if os.environ.pop("DATABASE_URL", None):
        print("DATABASE_URL is set aside: the soak restarts the embedded server.")
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.soak.settings"
    from example_project import postgres

    with postgres.running():
        name = f"soak_{uuid.uuid4().hex[:8]}"
        os.environ["DATABASE_URL"] = postgres.url("postgres")
        make_database(f'CREATE DATABASE "{name}"')
        os.environ["DATABASE_URL"] = postgres.url(name)
        django.setup()
        with tempfile.TemporaryDirectory(prefix="leasejobs-soak-") as directory:
            try:
                found = soak(options, Path(directory))
            finally:
                end_descendants()
        make_database(f'DROP DATABASE "{name}" WITH (FORCE)')
    print(f"seed {options.seed}: {len(found)} violations")
    for line in found[:100]:
        print(f"  {line}")
    return 1 if found else 0


def make_database(statement: str) -> None:
    """Make or drop the soak's database."""
    import psycopg

    from example_project import postgres

    with psycopg.connect(postgres.url("postgres"), autocommit=True) as administrator:
        administrator.execute(statement)


def end_descendants() -> None:
    """Leave no process behind, frozen ones included, however the soak ended."""
    for process in psutil.Process().children(recursive=True):
        if "runleaseworker" in process.cmdline():
            process.kill()


def soak(options: argparse.Namespace, directory: Path) -> list[str]:
    """Run it; return the violations."""
    from django.core.management import call_command
    from django.db import connection, connections

    from leasejobs import operations
    from leasejobs.models import Attempt, Job
    from leasejobs.states import State
    from tests.soak import actors, invariants, tasks
    from tests.worker.fleet import Fleet

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(tasks.TABLES)
    log_at = actors.server_log().stat().st_size
    fleet = Fleet(dict(os.environ), directory)
    seed = str(options.seed)
    producer = actors.Producer(f"producer {seed}")
    operator = actors.Operator(f"operator {seed}", producer)
    chaos = actors.Chaos(f"chaos {seed}", fleet, options.workers)
    chaos.restore(0.0)
    everybody = (producer, operator, chaos)
    for actor in everybody:
        actor.start()
    time.sleep(options.seconds)
    for actor in everybody:
        actor.stop()
        print(f"{type(actor).__name__}: {dict(sorted(actor.counts.items()))}", flush=True)
    found = [f"an actor failed: {actor.failure!r}" for actor in everybody if actor.failure]

    actors.make_writable(connection.settings_dict["NAME"])
    who = {"actor": "soak", "reason": "to drain"}
    for queue in actors.QUEUES:
        operations.resume(queue, **who)
    chaos.restore(float("inf"))
    unknown = Job.objects.filter(task="tests.soak.tasks.gone").exclude(epoch=0)
    found += [f"a job of an unknown task was claimed: {pk}" for pk in unknown.values_list("pk")]
    rest = list(Job.objects.filter(task="tests.soak.tasks.gone").values_list("pk", flat=True))
    for pk, verdict in operations.cancel(rest, **who).items():
        if verdict is operations.Verdict.MOVED:
            operator.last[pk] = "cancel"
    busy = Job.objects.exclude(task="tests.soak.tasks.tick").filter(
        state__in=[State.SCHEDULED, State.PENDING, State.RUNNING, State.RETRYABLE]
    )
    began = time.monotonic()
    while busy.exists() and time.monotonic() < began + options.drain:
        time.sleep(0.2)
    print(f"Drained in {time.monotonic() - began:.0f} s.", flush=True)
    try:
        fleet.disband()
    except AssertionError as error:
        found.append(f"workers did not end well: {error}")
    connections.close_all()
    ticks = Job.objects.filter(task="tests.soak.tasks.tick", state__lt=State.SUCCEEDED)
    held = ticks.filter(state=State.RUNNING).count()
    if held:
        found.append(f"{held} rows are running after every worker ended in order")
    ticks.delete()
    found += invariants.violations(producer.ids, operator.last)
    time.sleep(2)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, state, left(query, 100) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        found += [f"a session is left: {row}" for row in cursor.fetchall()]
    with actors.server_log().open(errors="replace") as log:
        log.seek(log_at)
        bad = re.findall(r".*(?:deadlock detected|PANIC|violates|internal error).*", log.read())
    # Two claimers chose two rows of one lock: the index lets one have it.
    bad = [line for line in bad if "leasejobs_job_lock_held" not in line]
    found += [f"in the server's log: {line}" for line in bad]
    print(
        f"{Job.objects.count()} jobs, {Attempt.objects.count()} attempts,"
        f" {len(fleet.workers)} supervisors started; "
        + ", ".join(
            f"{State(state).label} {Job.objects.filter(state=state).count()}"
            for state in sorted(Job.objects.values_list("state", flat=True).distinct())
        )
    )
    connections.close_all()
    return found


if __name__ == "__main__":
    sys.exit(main())
