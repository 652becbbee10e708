"""What a task may be told: the names and types of its options, and what each value must satisfy."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from django.conf import settings
from django.utils import timezone

from leasejobs import templates
from leasejobs.arguments import check_identity, check_lock, check_text, dump_arguments
from leasejobs.compat import InvalidTask, Task
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import KeyScope
from leasejobs.models.job import LONGEST_TIMEOUT
from leasejobs.policy import LONGEST_DELAY, ON_CRASH, Backoff

MAX_METADATA_BYTES: Final = 10_000
MAX_CORRELATION_CHARACTERS: Final = 200
_LATEST_YEAR: Final = 9998
_NO_METADATA: Final = "null"


class _Policy(TypedDict, total=False):
    max_attempts: int
    max_crashes: int
    timeout: timedelta | None
    backoff: Backoff
    on_crash: str
    terminal: tuple[type[BaseException], ...]
    on_dead: Task | str | None
    key: str
    key_scope: str
    lock_key: str
    tenant: str
    expires_after: timedelta | None


class DeclaredOptions(_Policy, total=False):
    """What `@task` takes besides `takes_context`."""

    queue_name: str
    priority: int
    backend: str | None
    aliases: tuple[str, ...]


class UsingOptions(_Policy, total=False):
    """What `Task.using` takes."""

    queue_name: str | None
    priority: int | None
    backend: str | None
    run_after: datetime | timedelta | None
    delay: timedelta | None
    expires_at: datetime | None
    correlation_id: str
    metadata: Mapping[str, Any] | None


# Django's own; its backend validates them. As in django.tasks, None leaves them as they are.
OF_DJANGO: Final = frozenset({"backend", "priority", "queue_name", "run_after"})
_USING: Final = UsingOptions.__optional_keys__


def changes_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate what `using` was given into fields of a task.

    `run_after` as a timedelta becomes `delay`, `metadata` its JSON text. A deadline of one kind
    takes the place of one of the other, and so does a wait.
    """
    if unknown := options.keys() - _USING:
        raise TypeError(f"using() has no option {', '.join(sorted(unknown))}")
    changes = {k: v for k, v in options.items() if v is not None or k not in OF_DJANGO}
    if "run_after" in changes:
        when = changes.pop("run_after")
        if isinstance(when, datetime):
            changes |= {"run_after": when, "delay": None}
        elif isinstance(when, timedelta):
            changes |= {"run_after": None, "delay": when}
        else:
            raise InvalidTask(f"run_after must be a datetime or a timedelta, not {when!r}.")
    elif "delay" in changes:
        changes["run_after"] = None
    if "expires_at" in changes and "expires_after" in changes:
        raise InvalidTask("a job has one deadline: expires_at or expires_after, not both.")
    if "expires_at" in changes:
        changes["expires_after"] = None
    elif "expires_after" in changes:
        changes["expires_at"] = None
    if "metadata" in changes:
        changes["metadata_json"] = _dump_metadata(changes.pop("metadata"))
    return changes


def _dump_metadata(value: Any) -> str:
    if value is None:
        return _NO_METADATA
    if not isinstance(value, Mapping):
        raise InvalidArguments(f"metadata must be a dictionary, not a {type(value).__name__}")
    text = dump_arguments("metadata", dict(value))
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise InvalidArguments(
            f"metadata has {len(text.encode()):,} bytes as JSON, at most {MAX_METADATA_BYTES:,} fit"
        )
    return text


def check(task: Any, names: Iterable[str]) -> None:
    """Raise `InvalidTask` or `InvalidArguments` if one of these fields makes no sense."""
    for name in names:
        if name in _CHECKS:
            _CHECKS[name](task, name, getattr(task, name))


def _check_budget(task: Any, name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise InvalidTask(f"{name} must be a whole number from 1 to 1,000,000, not {value!r}.")


def _check_on_crash(task: Any, name: str, value: Any) -> None:
    if value not in ON_CRASH:
        raise InvalidTask(f"on_crash must be one of {ON_CRASH}, not {value!r}.")


def _check_backoff(task: Any, name: str, value: Any) -> None:
    if not isinstance(value, Backoff):
        raise InvalidTask(f"backoff must be a Backoff, not {value!r}.")


def _check_key_scope(task: Any, name: str, value: Any) -> None:
    if value not in KeyScope.values:
        raise InvalidTask(f"key_scope must be one of {KeyScope.values}, not {value!r}.")


def _check_terminal(task: Any, name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in value
    ):
        raise InvalidTask("terminal must be a tuple of exception classes.")


def _check_timeout(task: Any, name: str, value: Any) -> None:
    longest = timedelta(seconds=LONGEST_TIMEOUT)
    if value is not None and not (isinstance(value, timedelta) and timedelta(0) < value <= longest):
        raise InvalidTask(f"timeout must be a timedelta over 0 and up to a year, not {value!r}.")


def _check_delay(task: Any, name: str, value: Any) -> None:
    if value is not None and not (
        isinstance(value, timedelta) and timedelta(0) <= value <= LONGEST_DELAY * 10
    ):
        raise InvalidTask(f"run_after must not be negative or over ten years: {value!r}.")


def _check_expires_after(task: Any, name: str, value: Any) -> None:
    if value is not None and not (
        isinstance(value, timedelta) and timedelta(0) < value <= LONGEST_DELAY * 10
    ):
        raise InvalidTask(
            f"expires_after must be a timedelta over 0 and up to ten years, not {value!r}."
        )


def _check_instant(task: Any, name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, datetime):
        raise InvalidTask(f"{name} must be a datetime, not {value!r}.")
    if settings.USE_TZ and timezone.is_naive(value):
        raise InvalidTask(f"{name} must be an aware datetime.")
    if value.year > _LATEST_YEAR:
        raise InvalidTask(f"{name} must not be later than the year {_LATEST_YEAR}: {value!r}.")


def _check_queue_name(task: Any, name: str, value: Any) -> None:
    check_text("queue_name", value)
    if not value or "," in value or value != value.strip():
        # Such a name could not be given to `runleaseworker --queues a,b`.
        raise InvalidTask(f"queue_name must be a name without commas, not {value!r}.")


def _check_tenant(task: Any, name: str, value: Any) -> None:
    check_text("tenant", value)
    if "key" in task.literals:
        check_identity(value, task.module_path, task.key)
    if "lock_key" in task.literals:
        check_lock(value, task.lock_key)


def _check_key(task: Any, name: str, value: Any) -> None:
    check_text(name, value)
    if name not in task.literals:
        signature = templates.signature_of(task.func, task.takes_context)
        templates.check_template(name, value, signature)
    elif name == "key":
        check_identity(task.tenant, task.module_path, value)
    else:
        check_lock(task.tenant, value)


def _check_aliases(task: Any, name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(alias, str) for alias in value):
        raise InvalidTask("aliases must be a tuple of the task's former import paths.")
    for alias in value:
        if not all(part.isidentifier() for part in alias.split(".")) or "." not in alias:
            raise InvalidTask(f"aliases holds {alias!r}, which is no import path of a task.")


def _check_correlation_id(task: Any, name: str, value: Any) -> None:
    check_text("correlation_id", value, MAX_CORRELATION_CHARACTERS)


def _check_on_dead(task: Any, name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        check_handler(value)


def check_handler(task: Any) -> None:
    """Raise `InvalidTask` unless a task can be the `on_dead` of another."""
    if not hasattr(task, "max_crashes"):
        raise InvalidTask(f"on_dead must be a task of leasejobs or its import path, not {task!r}.")
    try:
        templates.signature_of(task.func, task.takes_context).bind(job_id=1, reason="")
    except TypeError as error:
        raise InvalidTask(
            f"on_dead={task.module_path} must take job_id and reason as keywords: {error}."
        ) from error


_CHECKS: Final[Mapping[str, Callable[[Any, str, Any], None]]] = {
    "max_attempts": _check_budget,
    "max_crashes": _check_budget,
    "on_crash": _check_on_crash,
    "backoff": _check_backoff,
    "key_scope": _check_key_scope,
    "terminal": _check_terminal,
    "timeout": _check_timeout,
    "delay": _check_delay,
    "run_after": _check_instant,
    "expires_after": _check_expires_after,
    "expires_at": _check_instant,
    "queue_name": _check_queue_name,
    "tenant": _check_tenant,
    "key": _check_key,
    "lock_key": _check_key,
    "aliases": _check_aliases,
    "correlation_id": _check_correlation_id,
    "on_dead": _check_on_dead,
}
