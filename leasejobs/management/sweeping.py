"""`leasejobs recover` and `leasejobs prune`: what workers do by themselves, now."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from leasejobs import operations, recovery
from leasejobs.management.arguments import integer

_PAUSE_SECONDS: Final = 0.02


def add(verbs: Any) -> None:
    """Declare both."""
    recover = verbs.add_parser(
        "recover", help="promote what came due, expire what is too late, take back lost jobs"
    )
    recover.set_defaults(handler=_recover)
    prune = verbs.add_parser("prune", help="delete finished jobs past RETENTION_DAYS")
    prune.add_argument("--batch", type=integer(1, 100_000), default=1000, metavar="N",
                       help="jobs looked at in one transaction (default: %(default)s)")  # fmt: skip
    prune.add_argument("--dry-run", action="store_true", help="only count what would be deleted")
    prune.set_defaults(handler=_prune)


def _recover(command: BaseCommand, options: Mapping[str, Any]) -> None:
    counts = [_until_none(act) for act in (recovery.expire, recovery.promote,
                                           recovery.recover_expired)]  # fmt: skip
    command.stdout.write("expired {}, promoted {}, recovered {}".format(*counts))


def _until_none(sweep: Callable[[], int]) -> int:
    total = 0
    while count := sweep():
        total += count
    return total


def _prune(command: BaseCommand, options: Mapping[str, Any]) -> None:
    jobs = tracebacks = workers = protected = after = 0
    while True:
        done = operations.prune(options["batch"], after=after, dry_run=options["dry_run"])
        if not done.is_turn:
            raise CommandError("Another pruner is at work; this one stops.")
        jobs, tracebacks = jobs + done.jobs, tracebacks + done.tracebacks
        workers, protected = max(workers, done.workers), protected + done.protected
        if done.cursor is None:
            break
        after = done.cursor
        time.sleep(_PAUSE_SECONDS)
    would = "would delete" if options["dry_run"] else "deleted"
    command.stdout.write(
        f"{would} {jobs} jobs, {tracebacks} tracebacks, {workers} workers not seen for a day"
    )
    if protected:
        command.stdout.write(f"kept {protected} jobs that other tables reference")
