"""`manage.py runleaseworker`: parse the options and hand over to `leasejobs.worker`."""

import contextlib
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, ProgrammingError, connections

from leasejobs import conf
from leasejobs.checks import CONNECTIONS_OF_A_CHILD, pool_size
from leasejobs.lanes import lanes
from leasejobs.models import Job
from leasejobs.worker.child import run_alone, run_child
from leasejobs.worker.health import Monitor
from leasejobs.worker.options import Options
from leasejobs.worker.supervisor import Supervisor


class Command(BaseCommand):
    """Start a supervisor and its children."""

    help = (
        "Run jobs until SIGTERM or SIGINT: stop claiming, let running jobs finish for"
        " SHUTDOWN_SECONDS, put back what was not begun, exit 0."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options; defaults come from the LEASEJOBS setting."""
        defaults = conf.load()
        parser.add_argument(
            "--queues",
            type=_names,
            default=(),
            metavar="a,b",
            help="only these queues (default: all)",
        )
        parser.add_argument(
            "--processes", type=_count(0, 64), default=1, metavar="N",
            help="child processes; 0: run in this process, for development, where a job that runs"
            " over its timeout cannot be killed (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--threads", type=_count(1, 64), default=4, metavar="N",
            help="jobs at a time in each child (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--lease", type=_seconds(1), default=float(defaults.LEASE_SECONDS), metavar="S",
            help="seconds a lease lasts unless it is renewed (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--poll", type=_seconds(0.01), default=float(defaults.POLL_SECONDS), metavar="S",
            help="seconds between polls where no notification comes (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument("--drain", action="store_true", help="exit 0 when nothing is due")
        parser.add_argument(
            "--holder", default="", metavar="PREFIX", help="begin the worker's name with this"
        )
        parser.add_argument(
            "--max-jobs", type=_count(1, 1_000_000_000), default=0, metavar="N",
            help="replace a child once it has run so many jobs",
        )  # fmt: skip
        parser.add_argument(
            "--max-rss-mb", type=_count(1, 1_000_000), default=0, metavar="N",
            help="replace a child whose resident memory has grown beyond so many MB",
        )  # fmt: skip
        parser.add_argument(
            "--metrics-port", type=_port, metavar="PORT",
            help="answer /healthz, /readyz and /metrics on this port; 0 takes a free one",
        )  # fmt: skip
        parser.add_argument(
            "--reload", action=BooleanOptionalAction, default=settings.DEBUG,
            help="replace children when code changes (default: DEBUG)",
        )  # fmt: skip
        parser.add_argument("--child", action="store_true", help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        holder = options["holder"]
        if len(holder) > 100 or not holder.isprintable():
            raise CommandError("--holder must be printable and at most 100 characters")
        parsed = Options(
            queues=options["queues"],
            processes=options["processes"],
            threads=options["threads"],
            lease=options["lease"],
            poll=options["poll"],
            shutdown=float(conf.load().SHUTDOWN_SECONDS),
            drain=options["drain"],
            holder=holder,
            max_jobs=options["max_jobs"],
            max_rss_mb=options["max_rss_mb"],
            # Draining ends by itself; without a supervisor nobody would start it again.
            reload=options["reload"] and not options["drain"] and options["processes"] > 0,
        )
        if options["child"]:
            run_child(parsed)
        with _monitor(options["metrics_port"]) as monitor:
            status = self._supervise(parsed, options, monitor)
        if status:
            raise SystemExit(status)

    def _supervise(self, parsed: Options, options: dict[str, Any], monitor: Monitor | None) -> int:
        """Run the worker until it ends; return its exit status."""
        _refuse_small_pool(parsed.threads)
        _refuse_unmigrated()
        if options["verbosity"]:
            self.stdout.write(
                f"Working on {', '.join(parsed.queues) or 'all queues'} with"
                f" {parsed.processes or 'no child'} x {parsed.threads} threads;"
                " Ctrl-C or SIGTERM to stop."
            )
            if monitor is not None:
                self.stdout.write(f"Health and metrics are on port {monitor.port}.")
        if not parsed.processes:
            run_alone(parsed, monitor)
        arguments = _arguments(parsed)
        if options["pythonpath"]:
            arguments.append(f"--pythonpath={options['pythonpath']}")
        return Supervisor(parsed, arguments, monitor).run()


def _monitor(port: int | None) -> contextlib.AbstractContextManager[Monitor | None]:
    """Take the port before anything else is done."""
    if port is None:
        return contextlib.nullcontext()
    try:
        return Monitor(port)
    except OSError as error:
        raise CommandError(f"--metrics-port {port} cannot be had: {error.strerror}") from error


def _refuse_small_pool(threads: int) -> None:
    """Say that threads would wait for one another's connections, before they do."""
    size = pool_size(settings.DATABASES[conf.database()])
    needed = CONNECTIONS_OF_A_CHILD + threads + sum(lane.threads for lane in lanes())
    if size is not None and size < needed:
        raise CommandError(
            f"the pool of {conf.database()!r} has {size} connections and a child needs {needed}:"
            ' raise OPTIONS["pool"]["max_size"] or lower --threads'
        )


def _refuse_unmigrated() -> None:
    """Say that the tables are missing before any child does; a database that is away may come."""
    try:
        Job.objects.using(conf.database()).exists()
    except ProgrammingError as error:
        raise CommandError(f"run `manage.py migrate` first: {error}") from error
    except Error:
        connections.close_all()


def _arguments(options: Options) -> list[str]:
    arguments = [
        f"--threads={options.threads}",
        f"--lease={options.lease}", f"--poll={options.poll}", "--skip-checks",
    ]  # fmt: skip
    if options.queues:
        arguments.append(f"--queues={','.join(options.queues)}")
    if options.max_jobs:
        arguments.append(f"--max-jobs={options.max_jobs}")
    if options.max_rss_mb:
        arguments.append(f"--max-rss-mb={options.max_rss_mb}")
    arguments.append("--reload" if options.reload else "--no-reload")
    return [*arguments, "--drain"] if options.drain else arguments


def _names(text: str) -> tuple[str, ...]:
    # Given but empty is refused: `--queues=$UNSET` must not mean every queue.
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ArgumentTypeError(f"must be names with commas between them, not {text!r}")
    return names


def _count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return parse


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise ArgumentTypeError(f"must be a port, from 0 to 65535, not {text!r}")
    return int(text)


def _seconds(least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= 86_400:
            raise ArgumentTypeError(f"must be from {least} to 86400 seconds, not {text!r}")
        return value

    return parse
