"""`leasejobs retry`, `cancel`, `park`, `pause`, `resume`: the operator's verbs."""

import getpass
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from leasejobs import conf, operations
from leasejobs.management.arguments import job_id
from leasejobs.models import Job
from leasejobs.models.job import JobQuerySet
from leasejobs.operations import Verdict
from leasejobs.states import TRANSITIONS, State

_SLICE: Final = 5_000
_DONE: Final = frozenset({Verdict.MOVED, Verdict.REQUESTED})
_VERBS: Final[Mapping[str, tuple[Callable[..., dict[int, Verdict]], str]]] = {
    "retry": (operations.retry, "give failed, cancelled or parked jobs another start, due now"),
    "cancel": (operations.cancel, "cancel waiting and parked jobs, ask running ones to end"),
    "park": (operations.park, "put waiting jobs aside until they are retried or cancelled"),
}
_COLUMNS: Final = ("queue", "task", "failure_code", "tenant")


def add(verbs: Any) -> None:
    """Declare the five."""
    for name, (_, about) in _VERBS.items():
        parser = verbs.add_parser(name, help=about)
        parser.add_argument("ids", nargs="*", type=job_id, metavar="ID", help="jobs by their ids")
        parser.add_argument("--queue", help="jobs of this queue")
        parser.add_argument("--task", help="jobs of this task")
        parser.add_argument("--state", choices=sorted(state.name.lower() for state in _from(name)),
                            help="jobs in this state")  # fmt: skip
        parser.add_argument("--failure-code", metavar="CODE", help="jobs with this failure code")
        parser.add_argument("--tenant", help="jobs of this tenant")
        parser.add_argument("--yes", action="store_true", help="do not ask before a filter's jobs")
        parser.add_argument("--dry-run", action="store_true", help="only count the jobs")
        _add_who(parser)
        parser.set_defaults(handler=partial(_move, name))
    for name, act, about in (
        ("pause", operations.pause, "let no worker claim from a queue; what runs goes on"),
        ("resume", operations.resume, "let workers claim from a queue again"),
    ):
        parser = verbs.add_parser(name, help=about)
        parser.add_argument("queue", metavar="QUEUE", help="the queue's name")
        _add_who(parser)
        parser.set_defaults(handler=partial(_switch, name, act))


def _add_who(parser: ArgumentParser) -> None:
    parser.add_argument("--actor", help="who does it (default: the name of the system's user)")
    parser.add_argument("--reason", required=True, help="why; it is kept with the move")


def _move(verb: str, command: BaseCommand, options: Mapping[str, Any]) -> None:
    who = {"actor": _actor(options), "reason": options["reason"]}
    jobs = _selected(verb, options)
    if options["dry_run"]:
        command.stdout.write(f"Would {verb} {jobs.count()} jobs.")
        return
    act, _ = _VERBS[verb]
    verdicts: Counter[Verdict] = Counter()
    if options["ids"]:
        found = act(options["ids"], **who)
        verdicts.update(found.values())
        for pk, verdict in sorted(found.items()):
            if verdict not in _DONE:
                command.stderr.write(f"Job {pk}: {verdict.value}{_about(pk, verdict)}")
    else:
        if not options["yes"]:
            _ask(verb, jobs.count())
        for revisions in _slices(jobs):
            # Only what still is what the filter saw.
            verdicts.update(act(revisions, revisions=revisions, **who).values())
    said = ", ".join(f"{count} {verdict.value}" for verdict, count in sorted(
        verdicts.items(), key=lambda item: item[0].value
    ))  # fmt: skip
    command.stdout.write(f"{verb}: {said or 'no job matches'}")
    left = sum(count for verdict, count in verdicts.items() if verdict not in _DONE)
    if left:
        raise CommandError(f"{left} of {verdicts.total()} jobs were not moved.")


def _switch(
    verb: str, act: Callable[..., bool], command: BaseCommand, options: Mapping[str, Any]
) -> None:
    queue = options["queue"]
    is_changed = act(queue, actor=_actor(options), reason=options["reason"])
    done, already = ("paused", "paused already") if verb == "pause" else ("resumed", "not paused")
    command.stdout.write(f"Queue {queue} is {done if is_changed else already}.")


def _from(verb: str) -> frozenset[State]:
    """Return the states a verb finds its jobs in."""
    return TRANSITIONS[verb][0] | ({State.RUNNING} if verb == "cancel" else frozenset())


def _selected(verb: str, options: Mapping[str, Any]) -> JobQuerySet:
    filters = {name: options[name] for name in _COLUMNS if options[name] is not None}
    has_filter = bool(filters or options["state"])
    if bool(options["ids"]) == has_filter:
        raise CommandError("Name jobs either by their ids or by filters (--queue, --task, …).")
    jobs: JobQuerySet = Job.objects.using(conf.database())
    jobs = jobs.filter(state__in=sorted(_from(verb)))
    if options["ids"]:
        return jobs.filter(pk__in=options["ids"])
    if options["state"]:
        jobs = jobs.filter(state=State[options["state"].upper()])
    return jobs.filter(**filters)


def _slices(jobs: JobQuerySet) -> Iterator[dict[int, int]]:
    """Yield {id: revision} of the jobs in slices, each read when its turn comes."""
    last = 0
    while rows := dict(
        jobs.filter(pk__gt=last).order_by("pk").values_list("pk", "revision")[:_SLICE]
    ):
        yield rows
        last = max(rows)


def _ask(verb: str, count: int) -> None:
    if not sys.stdin.isatty():
        raise CommandError(f"{count} jobs match; add --yes to {verb} them, or --dry-run to count.")
    if input(f"{verb} {count} jobs? [y/N] ").strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was done.")


def _actor(options: Mapping[str, Any]) -> str:
    if options["actor"] is not None:
        return str(options["actor"])
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError) as error:
        raise CommandError("the system knows no name of this user: give --actor") from error


def _about(pk: int, verdict: Verdict) -> str:
    if verdict is not Verdict.REFUSED:
        return ""
    rows = Job.objects.using(conf.database()).filter(pk=pk)
    states = [State(state).name.lower() for state in rows.values_list("state", flat=True)]
    return f", it is {states[0]}" if states else ""
