"""Look-up of a task by the name a row keeps, which is the import path of its function."""

from typing import Any

from django.utils.module_loading import autodiscover_modules, import_string

from leasejobs import conf
from leasejobs.compat import Task, is_task
from leasejobs.exceptions import UnknownTask
from leasejobs.redaction import describe

_tasks: dict[str, Task] = {}


def register(task: Task) -> None:
    """Remember a task under its name; the last definition of a name counts (a reloaded module)."""
    _tasks[task.module_path] = task


def find(name: str) -> Task:
    """Return the task called `name`, importing its module if need be; else raise `UnknownTask`."""
    if name not in _tasks:
        try:
            found: Any = import_string(name)
            is_found = is_task(found)
        except BaseException as error:
            path, detail, _ = describe(error)
            raise UnknownTask(f"no task {name!r}: {path}: {detail}") from error
        if not is_found:
            raise UnknownTask(f"{name!r} is a {type(found).__name__}, not a task")
        register(found)
    return _tasks[name]


def autodiscover() -> None:
    """Import each module named in `LEASEJOBS["TASK_MODULES"]` of every installed app."""
    autodiscover_modules(*conf.load().TASK_MODULES)


def known() -> list[str]:
    """Return every name this process can run a task under."""
    return list(_tasks)


def tasks() -> tuple[Task, ...]:
    """Return every task known to this process so far."""
    return tuple(_tasks.values())
