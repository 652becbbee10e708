"""`Task` and `@task`: how a project states what a job does and under which policy it runs."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, overload

from leasejobs import registry
from leasejobs.arguments import check_identity, check_text, dump_arguments
from leasejobs.compat import InvalidTask, TaskResult, task_backends
from leasejobs.compat import Task as DjangoTask
from leasejobs.enqueue import NewJob
from leasejobs.exceptions import InvalidArguments, NotConfigured
from leasejobs.models import Job, KeyScope
from leasejobs.models.job import JobQuerySet
from leasejobs.policy import LONGEST_DELAY, ON_CRASH, Backoff

DEFAULT_BACKOFF = Backoff()

_VALIDATED_BY_BACKEND = frozenset({"backend", "priority", "queue_name", "run_after", "func"})

# What the registry holds when no alias of TASKS uses LeaseBackend: see `task`.
NO_BACKEND = "leasejobs: no LeaseBackend in TASKS"


@dataclass(frozen=True, kw_only=True)
class Task(DjangoTask):
    """A `django.tasks.Task` with leasejobs' options; made by `@task`, varied by `using`.

    Not slotted: zero-argument super() does not survive a slotted subclass. The options are
    copied onto the row at enqueue, so a job runs under the policy it was enqueued with.
    """

    max_attempts: int = 8
    max_crashes: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    on_crash: str = "retry"
    terminal: tuple[type[BaseException], ...] = ()
    tenant: str = ""
    key: str = ""
    key_scope: str = KeyScope.ALWAYS
    delay: timedelta | None = None

    def __post_init__(self) -> None:
        if self.backend == NO_BACKEND:
            return
        super().__post_init__()
        _validate(self)

    def using(self, **options: Any) -> "Task":
        """Return the task with other options: those of django.tasks, and the fields above.

        `run_after` also takes a timedelta, counted from the enqueue by the database's clock.
        """
        # As in django.tasks, None leaves an option of its own as it is.
        options = {
            name: value
            for name, value in options.items()
            if value is not None or name not in _VALIDATED_BY_BACKEND
        }
        delay = options.get("run_after")
        if delay is not None and not isinstance(delay, datetime | timedelta):
            raise InvalidTask(f"run_after must be a datetime or a timedelta, not {delay!r}.")
        if isinstance(delay, timedelta):
            options |= {"run_after": None, "delay": delay}
        elif delay is not None:
            options["delay"] = None
        names = {field.name for field in fields(self)}
        if unknown := options.keys() - names:
            raise TypeError(f"a task has no option {', '.join(sorted(unknown))}")
        # In place of dataclasses.replace, which validates the function anew for each key.
        varied = object.__new__(type(self))
        for name in names:
            object.__setattr__(varied, name, options.get(name, getattr(self, name)))
        if options.keys() & _VALIDATED_BY_BACKEND:
            varied.__post_init__()
        else:
            _validate(varied)
        return varied

    def prepare(self, *args: Any, **kwargs: Any) -> NewJob:
        """Validate a call and return the job it would enqueue, for `enqueue_many`.

        Raises `InvalidArguments` if the arguments do not fit the function's signature or cannot
        be stored as JSON; nothing has been written then.
        """
        self._refuse_unconfigured()
        try:
            _signature(self.func, self.takes_context).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.module_path}: {error}") from error
        return NewJob(
            task=self.module_path,
            queue=self.queue_name,
            priority=self.priority,
            args=dump_arguments("args", list(args)) if args else "[]",
            kwargs=dump_arguments("kwargs", kwargs) if kwargs else "{}",
            tenant=self.tenant,
            key=self.key,
            key_scope=self.key_scope,
            run_after=self.run_after,
            delay=self.delay,
            max_attempts=self.max_attempts,
            max_crashes=self.max_crashes,
            on_crash=self.on_crash,
            backoff=_dump_backoff(self.backoff),
        )

    def enqueue(self, *args: Any, **kwargs: Any) -> "TaskResult":
        """Enqueue a call; joins the caller's transaction. See `leasejobs.enqueue_many`.

        Returns a TaskResult with two more attributes: `job_id`, and `created`, which is False
        if the key was taken: the result is then that of the job which has it.
        """
        self._refuse_unconfigured()
        return super().enqueue(*args, **kwargs)

    def get_backend(self) -> Any:
        """Return the backend; raise `NotConfigured` where no alias of TASKS is a LeaseBackend."""
        self._refuse_unconfigured()
        return super().get_backend()

    def _refuse_unconfigured(self) -> None:
        if self.backend == NO_BACKEND:
            raise NotConfigured(f"{self.module_path} has no backend. {HOW_TO_CONFIGURE}")

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs of this task, as a queryset with the adjectives `due()`, `running()`, …"""
        queryset: JobQuerySet = Job.objects.filter(task=self.module_path)
        return queryset


HOW_TO_CONFIGURE = (
    'Add to your settings: TASKS = {"default": {"BACKEND": "leasejobs.backend.LeaseBackend"}}'
)


@overload
def task(function: Callable[..., Any], /) -> Task: ...
@overload
def task(
    *,
    queue_name: str = ...,
    priority: int = ...,
    backend: str | None = ...,
    takes_context: bool = ...,
    max_attempts: int = ...,
    max_crashes: int = ...,
    backoff: Backoff = ...,
    on_crash: str = ...,
    terminal: tuple[type[BaseException], ...] = ...,
    key_scope: str = ...,
) -> Callable[[Callable[..., Any]], Task]: ...
def task(function: Any = None, /, *, backend: str | None = None, **options: Any) -> Any:
    """Make a module-level function a task: `@task` or `@task(max_attempts=…, …)`.

    `backend` is an alias of TASKS; by default the first whose backend is a `LeaseBackend`. If
    there is none the function is kept unvalidated, a system check says so, and `enqueue` raises.
    """

    if "run_after" in options:
        raise TypeError("run_after is given to .using(run_after=…), not to the decorator")

    def declare(func: Callable[..., Any]) -> Task:
        # Every field explicit: Django 6.0's Task has no defaults.
        fields: dict[str, Any] = {"priority": 0, "queue_name": "default", "takes_context": False}
        fields |= options
        declared = Task(func=func, backend=backend or lease_alias(), run_after=None, **fields)
        registry.register(declared)
        return declared

    return declare if function is None else declare(function)


def lease_alias() -> str:
    """Return the first alias of TASKS whose backend is a LeaseBackend, else `NO_BACKEND`."""
    from leasejobs.backend import LeaseBackend

    for alias in task_backends.settings:
        if isinstance(task_backends[alias], LeaseBackend):
            return str(alias)
    return NO_BACKEND


@lru_cache(maxsize=1024)
def _signature(func: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(func)
    if takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


@lru_cache(maxsize=256)
def _dump_backoff(backoff: Backoff) -> str:
    return dump_arguments("backoff", backoff.to_json())


def _validate(task: Task) -> None:
    for name in ("max_attempts", "max_crashes"):
        value = getattr(task, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
            raise InvalidTask(f"{name} must be a whole number from 1 to 1,000,000, not {value!r}.")
    if task.on_crash not in ON_CRASH:
        raise InvalidTask(f"on_crash must be one of {ON_CRASH}, not {task.on_crash!r}.")
    if not isinstance(task.backoff, Backoff):
        raise InvalidTask(f"backoff must be a Backoff, not {task.backoff!r}.")
    if task.key_scope not in KeyScope.values:
        raise InvalidTask(f"key_scope must be one of {KeyScope.values}, not {task.key_scope!r}.")
    if not isinstance(task.terminal, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in task.terminal
    ):
        raise InvalidTask("terminal must be a tuple of exception classes.")
    if task.delay is not None and not (
        isinstance(task.delay, timedelta) and timedelta(0) <= task.delay <= LONGEST_DELAY * 10
    ):
        raise InvalidTask(f"run_after must not be negative or over ten years: {task.delay!r}.")
    check_text("queue_name", task.queue_name)
    if not task.queue_name or "," in task.queue_name or task.queue_name != task.queue_name.strip():
        # Such a name could not be given to `runleaseworker --queues a,b`.
        raise InvalidTask(f"queue_name must be a name without commas, not {task.queue_name!r}.")
    check_text("tenant", task.tenant)
    check_text("key", task.key)
    check_identity(task.tenant, task.module_path, task.key)
