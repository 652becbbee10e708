"""`leasejobs enqueue`: put one job into the table by hand."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leasejobs.backend import LeaseBackend
from leasejobs.compat import InvalidTask
from leasejobs.declare import Task
from leasejobs.management import finding
from leasejobs.management.arguments import integer, json_of


def add(verbs: Any) -> None:
    """Declare it."""
    parser = verbs.add_parser("enqueue", help="enqueue one job; print its id and if it is created")
    parser.add_argument("task", metavar="TASK", help="the task's import path")
    # Not named `args`: Django takes that name for itself.
    for name, place, kind, word in (
        ("--args", "arguments", list, "list"),
        ("--kwargs", "keywords", dict, "object"),
    ):
        parser.add_argument(name, dest=place, type=json_of(kind, word), default=kind(),
                            metavar="JSON", help=f"{place} of the call, a JSON {word}")  # fmt: skip
    parser.add_argument("--queue", help="in place of the task's queue")
    parser.add_argument("--priority", type=integer(-100, 100), metavar="N",
                        help="in place of the task's priority, -100 to 100")  # fmt: skip
    parser.add_argument("--tenant", help="the tenant the job belongs to")
    parser.add_argument("--key", help="a key that keeps a second job out")
    parser.add_argument("--run-after", type=integer(0, 315_360_000), metavar="SECONDS",
                        help="not before so many seconds from now")  # fmt: skip
    parser.set_defaults(handler=_enqueue)


def _enqueue(command: BaseCommand, options: Mapping[str, Any]) -> None:
    task = finding.find(options["task"])
    if not isinstance(task, Task):
        raise CommandError(f"{options['task']} is not a task of leasejobs: its backend is another")
    given: dict[str, Any] = {
        "queue_name": options["queue"],
        "priority": options["priority"],
        "tenant": options["tenant"],
        "key": options["key"],
    }
    if options["run_after"] is not None:
        given["run_after"] = timedelta(seconds=options["run_after"])
    try:
        varied = task.using(**{name: value for name, value in given.items() if value is not None})
        if not isinstance(varied.get_backend(), LeaseBackend):
            raise CommandError(f"the backend {task.backend!r} of this task is not a LeaseBackend")
        result: Any = varied.enqueue(*options["arguments"], **options["keywords"])
    except (InvalidTask, TypeError) as error:
        raise CommandError(str(error)) from error
    said = "created" if result.created else "not created: the key is taken by this job"
    command.stdout.write(f"{result.job_id} {said}")
