"""Look-up of a task by the name a row keeps, which is the import path of its function."""

from typing import Any

from django.utils.module_loading import import_string

from leasejobs.compat import Task, is_task
from leasejobs.exceptions import UnknownTask

_tasks: dict[str, Task] = {}


def register(task: Task) -> None:
    """Remember a task under its name; the last definition of a name counts (a reloaded module)."""
    _tasks[task.module_path] = task


def find(name: str) -> Task:
    """Return the task called `name`, importing its module if need be; else raise `UnknownTask`."""
    if name not in _tasks:
        try:
            found: Any = import_string(name)
        except BaseException as error:
            raise UnknownTask(f"no task {name!r}: {type(error).__name__}: {error}") from error
        if not is_task(found):
            raise UnknownTask(f"{name!r} is a {type(found).__name__}, not a task")
        register(found)
    return _tasks[name]


def tasks() -> tuple[Task, ...]:
    """Return every task known to this process so far."""
    return tuple(_tasks.values())
