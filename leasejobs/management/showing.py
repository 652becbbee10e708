"""`leasejobs status` and `leasejobs tasks`: what is there."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from django.core.management.base import BaseCommand

from leasejobs import registry
from leasejobs.counting import CAP, survey
from leasejobs.management import finding
from leasejobs.management.arguments import write_json, write_table

# Of a task, what no operator asks for: the function itself, and what only a single call states.
_NOT_SHOWN: Final = frozenset({"func", "run_after", "delay", "backend", "tenant"})


def add(verbs: Any) -> None:
    """Declare both."""
    status = verbs.add_parser("status", help="count live jobs by queue; show workers")
    status.add_argument("--json", action="store_true", help="write one JSON document")
    status.set_defaults(handler=_status)
    tasks = verbs.add_parser("tasks", help="list the tasks of this code, with their options")
    tasks.add_argument("--json", action="store_true", help="write one JSON document")
    tasks.set_defaults(handler=_tasks)


def _status(command: BaseCommand, options: Mapping[str, Any]) -> None:
    found = survey()
    if options["json"]:
        write_json(command, found)
        return
    head = ("queue", "pending", "running", "scheduled", "retryable", "oldest due", "")
    write_table(command, head, [
        (
            queue["name"],
            *(_capped(queue[state]) for state in head[1:5]),
            _age(queue["oldest_due_seconds"]),
            f"paused since {queue['paused_at']:%Y-%m-%d %H:%M:%S %Z}" if queue["paused_at"] else "",
        )
        for queue in found["queues"]
    ])  # fmt: skip
    command.stdout.write("")
    command.stdout.write(f"expired leases: {_capped(found['expired_leases'])}")
    command.stdout.write(f"failed: {_capped(found['failed'])}, parked: {_capped(found['parked'])}")
    command.stdout.write("")
    if not found["workers"]:
        command.stdout.write("No worker has reported itself: start `manage.py runleaseworker`.")
        return
    write_table(command, ("worker", "version", "processes", "threads", "queues", "seen"), [
        (
            worker["name"], worker["version"], worker["processes"], worker["threads"],
            ",".join(worker["queues"]) or "all", f"{_age(worker['seen_seconds_ago'])} ago",
        )
        for worker in found["workers"]
    ])  # fmt: skip


def _tasks(command: BaseCommand, options: Mapping[str, Any]) -> None:
    finding.discover()
    found = sorted((_described(task) for task in registry.tasks()), key=lambda task: task["name"])
    if options["json"]:
        write_json(command, found)
        return
    for task in found:
        stated = ", ".join(f"{name}={value}" for name, value in task.items() if name != "name")
        command.stdout.write(f"{task['name']}  {stated}")


def _described(task: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": task.module_path}
    for field in dataclasses.fields(task):
        value = getattr(task, field.name)
        if field.name in _NOT_SHOWN or field.name.startswith("_") or value in (None, "", ()):
            continue
        found[field.name] = value if isinstance(value, bool | int | float | str) else _words(value)
    return found


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(item.__name__ if isinstance(item, type) else str(item) for item in value)
    return str(getattr(value, "module_path", value))


def _capped(count: int) -> str:
    return f"{count}+" if count >= CAP else str(count)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
