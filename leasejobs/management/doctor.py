"""`leasejobs doctor`: whether an installation works end to end, and what to do if it does not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connections

from leasejobs import conf
from leasejobs.management import probes
from leasejobs.management.arguments import write_json
from leasejobs.redaction import say


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `level` is ok, warning or problem; `advice` says what to do."""

    check: str
    level: str
    says: str
    advice: str = ""


# In this order; what follows a check that is needed and failed is not tried.
_CHECKS: Final[tuple[tuple[str, Callable[[str], probes.Answer], bool], ...]] = (
    ("database", probes.database, True),
    ("versions", probes.versions, True),
    ("migrations", probes.migrations, True),
    ("indexes", probes.indexes, False),
    ("notifications", probes.notifications, False),
    ("notification queue", probes.notification_queue, False),
    ("clocks", probes.clocks, False),
    ("vacuum", probes.vacuum, False),
    ("oldest transaction", probes.oldest_transaction, False),
    ("workers", probes.workers, False),
    ("tasks", probes.tasks, False),
)


def add(verbs: Any) -> None:
    """Declare it."""
    parser = verbs.add_parser(
        "doctor", help="check the installation end to end; exit status 1 on a problem"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    parser.set_defaults(handler=_doctor)


def examine(alias: str) -> Iterator[Finding]:
    """Yield what each check finds on the database `alias`, in order."""
    for name, probe, is_needed in _CHECKS:
        try:
            level, says, advice = probe(alias)
        except Error as error:
            connections[alias].close()
            level, says, advice = "problem", say(error), "See what the server says."
        yield Finding(name, level, says, advice)
        if level == "problem" and is_needed:
            return


def _doctor(command: BaseCommand, options: Mapping[str, Any]) -> None:
    found = []
    for finding in examine(conf.database()):
        found.append(finding)
        if options["json"]:
            continue
        style = {"ok": command.style.SUCCESS, "warning": command.style.WARNING}
        mark = style.get(finding.level, command.style.ERROR)(f"{finding.level:8}")
        command.stdout.write(f"{mark}{finding.check}: {finding.says}")
        if finding.advice:
            command.stdout.write(f"        {finding.advice}")
    if options["json"]:
        write_json(command, [asdict(finding) for finding in found])
    problems = [finding.check for finding in found if finding.level == "problem"]
    if problems:
        raise CommandError(f"There are problems with: {', '.join(problems)}.")
