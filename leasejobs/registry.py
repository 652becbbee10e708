"""Look-up of a task by the name a row keeps: the import path of its function, or an alias of it."""

from typing import Any

from django.utils.module_loading import autodiscover_modules, import_string

from leasejobs import conf
from leasejobs.compat import InvalidTask, Task, is_task
from leasejobs.exceptions import UnknownTask
from leasejobs.redaction import describe

_tasks: dict[str, Task] = {}
_aliases: dict[str, str] = {}  # a former name -> the name that answers for it


def register(task: Task) -> None:
    """Remember a task under its name; the last definition of a name counts (a reloaded module).

    Raises `InvalidTask`, and changes nothing, if an alias is taken: by another task's alias or
    name. Rows with that name could be run by either.
    """
    name = task.module_path
    aliases: tuple[str, ...] = getattr(task, "aliases", ())
    for alias in aliases:
        owner = alias if alias in _tasks else _aliases.get(alias, name)
        if owner != name:
            raise InvalidTask(f"{name} claims the alias {alias!r}, which belongs to {owner}.")
    if _aliases.get(name, name) != name:
        raise InvalidTask(f"{name} is the name of a task and an alias of {_aliases[name]}.")
    for alias in [alias for alias, owner in _aliases.items() if owner == name]:
        del _aliases[alias]
    _tasks[name] = task
    _aliases.update(dict.fromkeys(aliases, name))


def register_new(task: Task) -> None:
    """Remember a task unless its function is known: then this is a variant of it."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        register(task)


def find(name: str) -> Task:
    """Return the task called `name`, now or formerly, importing its module if need be.

    Raises `UnknownTask`, which says why, also where the module breaks at its import. An alias is
    known once the module that declares it is imported: see `autodiscover`.
    """
    name = _aliases.get(name, name)
    if name in _tasks:
        return _tasks[name]
    try:
        found: Any = import_string(name)
        is_found = is_task(found)
    except BaseException as error:
        path, detail, _ = describe(error)
        raise UnknownTask(f"no task {name!r}: {path}: {detail}") from error
    if not is_found:
        raise UnknownTask(f"{name!r} is a {type(found).__name__}, not a task")
    register_new(found)
    task: Task = found
    return task


def tasks() -> tuple[Task, ...]:
    """Return every task known to this process so far."""
    return tuple(_tasks.values())


def known() -> list[str]:
    """Return every name and alias known to this process so far, sorted."""
    return sorted({*_tasks, *_aliases})


def autodiscover() -> None:
    """Import the modules named in `TASK_MODULES` of every installed app; once is enough.

    An app need not have one. What such a module raises while it is imported is raised here, with
    a note that says who imported it.
    """
    for module in conf.load().TASK_MODULES:
        try:
            autodiscover_modules(module)
        except BaseException as error:
            error.add_note(
                f"Raised while leasejobs imported the {module!r} module of each installed app "
                "(LEASEJOBS['TASK_MODULES'])."
            )
            raise
