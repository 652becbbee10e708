"""`manage.py importevents`: one job for each market event of a file."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError, ProgrammingError

from example_project.market import files
from example_project.market import mapping as mappings
from example_project.market.imports import BATCH, Duplicate, Summary, import_events
from example_project.market.lines import UnreadableFileError
from example_project.market.mapping import BadMappingError, EventMapping
from example_project.market.records import Refused

USAGE_STATUS = 2
TOLD = 20


class Command(BaseCommand):
    """Import market events."""

    help = (
        "Enqueue one job for each event of a CSV file or of JSON lines. Exit status: 0 when every"
        " event has a job, 1 when lines were refused, 2 when nothing could be read."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Keep the lines of the epilogue."""
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=mappings.__doc__,
            formatter_class=RawDescriptionHelpFormatter,
            **kwargs,
        )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("file", metavar="FILE", help="UTF-8; - for standard input")
        add_file_options(parser)
        parser.add_argument("--batch", type=int, default=BATCH, metavar="N",
                            help="events a transaction (default: %(default)s)")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Import, report, and exit."""
        if not 1 <= options["batch"] <= 5_000:
            raise CommandError("--batch must be from 1 to 5000", returncode=USAGE_STATUS)
        report, summary, source = _Report(self), Summary(), None
        try:
            with files.opened(options["file"], options["format"], event_mapping(options)) as source:
                import_events(source.events, report.tell, summary, options["batch"])
        except (OSError, UnreadableFileError, BadMappingError) as error:
            raise CommandError(f"{options['file']}: {error}", returncode=USAGE_STATUS) from error
        except KeyboardInterrupt:
            raise CommandError(
                f"Interrupted after {summary.events:,} events; run the same import again to"
                " complete it.",
                returncode=130,
            ) from None
        except ProgrammingError as error:
            raise CommandError(
                f"run `manage.py migrate` first: {error}", returncode=USAGE_STATUS
            ) from error
        except (OperationalError, InterfaceError) as error:
            raise CommandError(
                f"The database failed after {summary.events:,} events; run the same import again"
                f" to complete it. {error}"
            ) from error
        finally:
            report.end()
        self.stdout.write(
            f"{source.lines:,} lines: {summary.events:,} events, {summary.enqueued:,} enqueued,"
            f" {summary.duplicates:,} duplicates, {summary.refused:,} refused"
            + (f", {summary.skipped:,} skipped" if summary.skipped else "")
        )
        if summary.refused:
            sys.exit(1)


def add_file_options(parser: ArgumentParser) -> None:
    """Declare how a file of events is to be read; shared with `demo`."""
    parser.add_argument("--format", choices=files.FORMATS, help="default: by the file's name")
    parser.add_argument("--map", action="append", default=[], metavar="FIELD=COLUMN",
                        help="where a field is found; see below")  # fmt: skip
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE",
                        help="only records with this value")  # fmt: skip
    parser.add_argument("--where-differs", action="append", default=[], nargs=2,
                        metavar="COLUMN", help="only records whose two columns differ")  # fmt: skip


def event_mapping(options: dict[str, Any]) -> EventMapping:
    """Return the mapping that the options ask for."""
    return EventMapping(options["map"], options["where"], options["where_differs"])


class _Report:
    """What is told of single lines: the first of each kind, and a count of the rest."""

    def __init__(self, command: BaseCommand) -> None:
        self._command = command
        self._counts: Counter[str] = Counter()

    def tell(self, item: Refused | Duplicate) -> None:
        """Report one line on standard error, unless many of its kind have been reported."""
        kind = "refused" if isinstance(item, Refused) else "duplicate"
        self._counts[kind] += 1
        if self._counts[kind] > TOLD:
            return
        if isinstance(item, Refused):
            what = item.reason
        elif item.first_line is not None:
            what = f"is the event of line {item.first_line}"
        else:
            what = f"is an event that job {item.job_id} already has"
        self._command.stderr.write(f"line {item.line}: {kind}: {what}")

    def end(self) -> None:
        """Say how many were not told one by one."""
        for kind, count in self._counts.items():
            if count > TOLD:
                self._command.stderr.write(f"… and {count - TOLD:,} more {kind}")
