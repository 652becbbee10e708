"""`manage.py simulatemarket`: a file of events, from a market that is only simulated."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.market import simulation


class Command(BaseCommand):
    """Write simulated events."""

    help = "Write simulated market events as CSV, the same ones for the same seed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--events", type=int, default=5_000, metavar="N")
        parser.add_argument("--seed", type=int, default=1, metavar="S")
        parser.add_argument("--out", required=True, metavar="FILE")
        parser.add_argument("--watch", action="store_true",
                            help="also give every market in the database its watchers")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Write."""
        if options["events"] < 0:
            raise CommandError("--events must not be negative")
        try:
            with open(options["out"], "w", encoding="utf-8", newline="") as file:
                simulation.write(file, simulation.simulate(options["events"], options["seed"]))
        except OSError as error:
            raise CommandError(f"{options['out']}: {error}") from error
        self.stdout.write(f"{options['events']:,} events in {options['out']}")
        if options["watch"]:
            self.stdout.write(f"{simulation.create_watchers(options['seed']):,} watches")
