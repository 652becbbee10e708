"""`manage.py demo`: watch real workers drain market events while one is killed."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import psutil
from django.core.management.base import BaseCommand, CommandError
from django.db.models import F
from rich.console import Console

from example_project.market import files, simulation, tasks
from example_project.market.demo import display, scene, verdict
from example_project.market.demo.database import own_database
from example_project.market.demo.fleet import MANAGE, PROCESSES, THREADS, Fleet, environment
from example_project.market.events import Event
from example_project.market.management.commands.importevents import (
    USAGE_STATUS,
    add_file_options,
    event_mapping,
)
from leasejobs.models import Job

# How many jobs take long enough to be killed and frozen in, and how long.
SLOW_JOBS = 60
SLOW_SECONDS = 2.0
DRAIN_SECONDS = 10.0  # that the others are to take, all together
MOST_PACE_SECONDS = 0.03
# What a busy machine may add to the lease before an expired row is seen.
SWEEP_SECONDS = 3.0


class Command(BaseCommand):
    """Run the demo."""

    help = (
        "Import market events into a database of the demo's own, drain them with several real"
        " workers, kill one child and freeze another meanwhile, and compare the tables with the"
        " file. Exit status 1 if any line of the verdict fails."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--events", metavar="FILE",
                            help="a file for importevents (default: simulated)")  # fmt: skip
        parser.add_argument("--simulated", type=int, default=3_000, metavar="N",
                            help="how many events to simulate (default: %(default)s)")  # fmt: skip
        parser.add_argument("--seed", type=int, default=1, metavar="S")
        parser.add_argument("--workers", type=int, default=3, metavar="N",
                            help="supervisors (default: %(default)s)")  # fmt: skip
        parser.add_argument("--lease", type=float, default=3.0, metavar="S",
                            help="seconds (default: %(default)s)")  # fmt: skip
        parser.add_argument("--patience", type=float, default=60.0, metavar="S",
                            help="seconds to wait for a fact (default: %(default)s)")  # fmt: skip
        parser.add_argument("--keep", action="store_true", help="do not drop the database")
        add_file_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, and exit with the verdict."""
        if not 2 <= options["workers"] <= 16 or not 1 <= options["lease"] <= 20:
            raise CommandError("--workers must be from 2 to 16 and --lease from 1 to 20")
        if options["events"] == "-":
            raise CommandError("--events must be a file: it is read twice")
        with _interrupted_by_signals(), tempfile.TemporaryDirectory(prefix="leasejobs-") as folder:
            if not options["events"]:
                options["events"] = _simulate(Path(folder), options)
            with own_database(options["keep"]) as url:
                if options["keep"]:
                    self.stdout.write(f"Database: {url}")
                lines = self._run(options, url)
        self.stdout.write("")
        for line in lines:
            mark = self.style.SUCCESS("ok    ") if line.is_ok else self.style.ERROR("FAILED")
            self.stdout.write(f"{mark} {line.text}")
        if not all(line.is_ok for line in lines):
            sys.exit(1)

    def _run(self, options: dict[str, Any], url: str) -> list[verdict.Line]:
        self._import(options, url)
        total = Job.objects.count()
        if not total:
            raise CommandError("There is no event in the file.")
        watches = simulation.create_watchers(options["seed"])
        self.stdout.write(f"{watches:,} watches\n")
        self.stdout.flush()
        pace = _pace(total, options["workers"] * PROCESSES * THREADS)
        fleet = Fleet(options["workers"], options["lease"], environment(url, **pace))
        story = scene.Story()
        lines: list[verdict.Line] = []
        with fleet.running():
            problem = _drain(fleet, story, total, options["patience"])
            statuses = fleet.stop()
            if problem:
                lines.append(verdict.Line(False, problem))
                self.stderr.write(fleet.log())
            is_clean = set(statuses.values()) == {0}
            what = "stopped by themselves" if is_clean else f"did not stop cleanly: {statuses}"
            lines.append(verdict.Line(is_clean, f"{len(statuses)} workers {what}"))
        return _verdict(options, story) + lines

    def _import(self, options: dict[str, Any], url: str) -> None:
        command = [sys.executable, str(MANAGE), "importevents", options["events"]]
        command += [f"--map={text}" for text in options["map"]]
        command += [f"--where={text}" for text in options["where"]]
        for one, other in options["where_differs"]:
            command += ["--where-differs", one, other]
        if options["format"]:
            command += ["--format", options["format"]]
        self.stdout.flush()
        status = subprocess.run(command, env=environment(url)).returncode
        if status not in (0, 1):
            raise CommandError("Nothing could be imported.", returncode=USAGE_STATUS)
        if status == 1:
            self.stdout.write("Refused lines are no events; the demo goes on with the others.")


def _simulate(folder: Path, options: dict[str, Any]) -> str:
    path = folder / "events.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        simulation.write(file, simulation.simulate(options["simulated"], options["seed"]))
    return str(path)


def _pace(total: int, threads: int) -> dict[str, str]:
    """Return how long jobs take: slow enough to see, and some to be struck in, whatever `total`."""
    every = max(1, total // SLOW_JOBS)
    with_slow = Job.objects.annotate(rest=F("pk") % every).filter(rest=0).count()
    return {
        tasks.SLOW_EVERY_VARIABLE: str(every if with_slow >= SLOW_JOBS // 4 else 1),
        tasks.SLOW_VARIABLE: str(SLOW_SECONDS),
        tasks.PACE_VARIABLE: str(min(MOST_PACE_SECONDS, DRAIN_SECONDS * threads / total)),
    }


def _drain(fleet: Fleet, story: scene.Story, total: int, patience: float) -> str:
    """Wait until every job has ended, playing the scene meanwhile; return what went wrong."""
    numbers = display.look()
    screen = display.Display(Console(file=sys.stdout), fleet, total)
    stage = scene.Stage(fleet, screen.tell, lambda: numbers.terminal, total, patience)
    play = scene.play(stage, story)
    is_playing = True
    seen, stalled_at = (-1, 0), time.monotonic() + patience
    look_at = 0.0
    with screen.open(), contextlib.closing(play):
        while is_playing or numbers.terminal < total:
            if dead := fleet.dead_supervisors():
                return f"the worker {dead[0]} ended though nobody asked it to"
            if is_playing:
                try:
                    is_playing = next(play, play) is None
                except (scene.SceneFailedError, psutil.Error) as error:
                    return f"the scene failed: {error}"
            now = time.monotonic()
            if now >= look_at:
                numbers = display.look()
                # Of a huge table, looking must not be the work.
                look_at = now + max(display.LOOK_SECONDS, 5 * (time.monotonic() - now))
                screen.show(numbers)
            if (state := (numbers.terminal, numbers.notifications)) != seen:
                seen, stalled_at = state, now + patience
            elif now > stalled_at and not is_playing:
                return f"no job ended for {patience:g} s"
            time.sleep(0.02)
        screen.show(numbers)
    return ""


def _verdict(options: dict[str, Any], story: scene.Story) -> list[verdict.Line]:
    mapping = event_mapping(options)
    with files.opened(options["events"], options["format"], mapping) as source:
        verdict.remember(item for _, item in source.events if isinstance(item, Event))
    lines = [verdict.jobs_line(), *verdict.notifications_lines(), verdict.stale_line()]
    lease = timedelta(seconds=options["lease"])
    if (killed := story.killed) is None:
        lines.append(verdict.Line(False, "no child was killed inside a job"))
    else:
        lines.append(verdict.killed_line(killed.holder, killed.at, lease / 2))
    if (frozen := story.frozen) is None:
        lines.append(verdict.Line(False, "no child was frozen inside a job"))
    else:
        limit = lease + timedelta(seconds=SWEEP_SECONDS)
        lines.append(verdict.frozen_line(frozen.job_id, frozen.epoch, frozen.at, limit))
    return lines


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Turn the first signal to end into SystemExit; what follows it is the cleaning up."""

    def interrupt(number: int, frame: object) -> NoReturn:
        for other in handlers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    handlers: dict[int, Callable[..., Any] | int | None] = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    for number in handlers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
