"""`manage.py leasejobs …`: look at jobs, queues and workers, and operate them."""

from argparse import SUPPRESS, ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, ProgrammingError

from leasejobs.exceptions import LeaseJobsError
from leasejobs.management import doctor, foreground, operating, producing, showing, sweeping
from leasejobs.redaction import say

_GROUPS: Final = (showing, producing, foreground, operating, sweeping, doctor)
# Django's own, which may be given after the subcommand, too.
_EVERYWHERE: Final = (("--settings", None), ("--pythonpath", None), ("--verbosity", int))
_SWITCHES: Final = ("--traceback", "--no-color", "--force-color", "--skip-checks")


class Command(BaseCommand):
    """One subcommand each for what an operator does."""

    help = "Look at jobs, queues and workers, and operate them. See `leasejobs SUBCOMMAND --help`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the subcommands; each names its handler."""
        verbs = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True)
        for group in _GROUPS:
            group.add(verbs)
        for verb in verbs.choices.values():
            for name, kind in _EVERYWHERE:
                verb.add_argument(name, type=kind or str, default=SUPPRESS, help=SUPPRESS)
            for name in _SWITCHES:
                verb.add_argument(name, action="store_true", default=SUPPRESS, help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand; whatever is wrong is a sentence and exit status 1."""
        try:
            options["handler"](self, options)
        except ProgrammingError as error:
            raise CommandError(f"run `manage.py migrate` first: {say(error)}") from error
        except Error as error:
            raise CommandError(f"the database refused: {say(error)}") from error
        except LeaseJobsError as error:
            raise CommandError(str(error)) from error
