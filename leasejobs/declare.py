"""`Task` and `@task`: how a project states what a job does and under which policy it runs."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    Protocol,
    Self,
    Unpack,
    cast,
    overload,
)

from leasejobs import conf, current, options, registry, templates
from leasejobs.arguments import check_identity, check_lock, dump_arguments
from leasejobs.compat import InvalidTask, P, R, TaskBase, task_backends
from leasejobs.compat import Task as AnyTask
from leasejobs.enqueue import NewJob
from leasejobs.exceptions import InvalidArguments, NotConfigured, UnknownTask
from leasejobs.models import Job, KeyScope
from leasejobs.models.job import JobQuerySet
from leasejobs.policy import Backoff

if TYPE_CHECKING:
    from leasejobs.results import TaskResult

DEFAULT_BACKOFF: Final = Backoff()

# What the registry holds when no alias of TASKS uses LeaseBackend: see `task`.
NO_BACKEND: Final = "leasejobs: no LeaseBackend in TASKS"

_TEMPLATES: Final = frozenset({"key", "lock_key"})


@dataclass(frozen=True, kw_only=True)
class Task(TaskBase[P, R]):
    """A `django.tasks.Task` with leasejobs' options; made by `@task`, varied by `using`.

    Not slotted: zero-argument super() does not survive a slotted subclass. The options are
    copied onto the row at enqueue, so a job runs under the policy it was enqueued with. All
    options are described in docs/reference/api.md.
    """

    max_attempts: int = 8
    max_crashes: int = 3
    timeout: timedelta | None = None
    backoff: Backoff = DEFAULT_BACKOFF
    on_crash: str = "retry"
    terminal: tuple[type[BaseException], ...] = ()
    on_dead: AnyTask | str | None = None
    aliases: tuple[str, ...] = ()
    key: str = ""
    key_scope: str = KeyScope.ALWAYS
    lock_key: str = ""
    tenant: str = ""
    delay: timedelta | None = None
    expires_after: timedelta | None = None
    expires_at: datetime | None = None
    correlation_id: str = ""
    metadata_json: str = "null"
    # Which of key and lock_key are plain text, because `using` gave them, and no templates.
    literals: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.backend == NO_BACKEND:
            return
        super().__post_init__()
        options.check(self, _names())
        registry.register_new(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: a decorated function cannot be pickled, its name leads to the task.
        values = {name: getattr(self, name) for name in _names() if name != "func"}
        return _unpickle, (type(self), self.module_path, values)

    def using(self, **changes: Unpack[options.UsingOptions]) -> Self:
        """Return the task with other options, for the calls made through what is returned.

        `run_after` is a datetime, or a timedelta counted from the enqueue by the database's
        clock; `expires_after` is counted likewise, `expires_at` is an instant. `key` and
        `lock_key` are plain text here, braces included, and take the place of the task's
        templates. None leaves an option of django.tasks as it is and takes one of ours away.
        Raises `InvalidTask` or `InvalidArguments` for a value that makes no sense.
        """
        given = options.changes_of(changes)
        given["literals"] = self.literals | (_TEMPLATES & given.keys())
        # In place of dataclasses.replace, which validates the function anew for each key.
        varied = object.__new__(type(self))
        for name in _names():
            object.__setattr__(varied, name, given[name] if name in given else getattr(self, name))
        if self.backend == NO_BACKEND:
            return varied
        if given.keys() & options.OF_DJANGO:
            super(Task, varied).__post_init__()
        options.check(varied, given)
        return varied

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Validate a call and return the job it would enqueue, for `enqueue_many`.

        Prepared inside a running job it has that job as its parent, and its correlation id.
        Raises `InvalidArguments` if the arguments do not fit the function's signature, cannot
        be stored as JSON, or give a key no clear text; nothing has been written then.
        """
        self._refuse_unconfigured()
        try:
            bound = templates.signature_of(self.func, self.takes_context).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.module_path}: {error}") from error
        key, lock_key = self.key, self.lock_key
        if (key and "key" not in self.literals) or (lock_key and "lock_key" not in self.literals):
            bound.apply_defaults()
            key = self._filled("key", bound.arguments)
            lock_key = self._filled("lock_key", bound.arguments)
            check_identity(self.tenant, self.module_path, key)
            check_lock(self.tenant, lock_key)
        running = current.running_job.get()
        return NewJob(
            task=self.module_path,
            queue=self.queue_name,
            priority=int(self.priority),
            args=dump_arguments("args", list(args)) if args else "[]",
            kwargs=dump_arguments("kwargs", kwargs) if kwargs else "{}",
            tenant=self.tenant,
            key=key,
            key_scope=self.key_scope,
            lock_key=lock_key,
            run_after=self.run_after,
            delay=self.delay,
            expires_after=self.expires_after,
            expires_at=self.expires_at,
            max_attempts=self.max_attempts,
            max_crashes=self.max_crashes,
            on_crash=self.on_crash,
            backoff=_dump_backoff(self.backoff),
            timeout_seconds=None if self.timeout is None else self.timeout.total_seconds(),
            on_dead=_dump_handler(find_handler(self)),
            correlation_id=self.correlation_id
            or ("" if running is None else running.correlation_of_children),
            parent_id=None if running is None else running.job_id,
            metadata=self.metadata_json,
        )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """Enqueue a call; joins the caller's transaction. See `leasejobs.enqueue_many`.

        Returns a TaskResult that also has `job_id`, and `created`, which is False if the key
        was taken: the result is then that of the job which has it.
        """
        self._refuse_unconfigured()
        return cast("TaskResult[P, R]", super().enqueue(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """Enqueue a call from a coroutine; see `enqueue`.

        As all of Django's database work it happens in the thread of `sync_to_async`, where
        `transaction.atomic()` of the coroutine's own thread does not reach.
        """
        self._refuse_unconfigured()
        return cast("TaskResult[P, R]", await super().aenqueue(*args, **kwargs))

    def get_result(self, result_id: str) -> "TaskResult[P, R]":
        """Return the result of a job of this task by its id.

        Raises `TaskResultDoesNotExist`, or `TaskResultMismatch` for a job of another task.
        """
        return cast("TaskResult[P, R]", super().get_result(result_id))

    async def aget_result(self, result_id: str) -> "TaskResult[P, R]":
        """See `get_result`."""
        return cast("TaskResult[P, R]", await super().aget_result(result_id))

    def get_backend(self) -> Any:
        """Return the backend; raise `NotConfigured` where no alias of TASKS is a LeaseBackend."""
        self._refuse_unconfigured()
        return super().get_backend()

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs of this task, as a queryset with the adjectives `due()`, `running()`, …

        Rows enqueued under one of its `aliases` are among them.
        """
        names = (self.module_path, *self.aliases)
        queryset: JobQuerySet = Job.objects.using(conf.database()).filter(task__in=names)
        return queryset

    def _refuse_unconfigured(self) -> None:
        if self.backend == NO_BACKEND:
            raise NotConfigured(f"{self.module_path} has no backend. {HOW_TO_CONFIGURE}")

    def _filled(self, option: str, arguments: dict[str, Any]) -> str:
        text: str = getattr(self, option)
        return text if option in self.literals else templates.fill(option, text, arguments)


HOW_TO_CONFIGURE: Final = (
    'Add to your settings: TASKS = {"default": {"BACKEND": "leasejobs.backend.LeaseBackend"}}'
)


class _Decorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class _ContextDecorator(Protocol):
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Task[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *, takes_context: Literal[True], **given: Unpack[options.DeclaredOptions]
) -> _ContextDecorator: ...
@overload
def task(
    *, takes_context: Literal[False] = ..., **given: Unpack[options.DeclaredOptions]
) -> _Decorator: ...
def task(function: Any = None, /, *, backend: str | None = None, **given: Any) -> Any:
    """Make a module-level function a task: `@task` or `@task(max_attempts=…, …)`.

    `key` and `lock_key` are templates such as "receipt:{order_id}", filled from the arguments of
    each call. `backend` is an alias of TASKS; by default the first whose backend is a
    `LeaseBackend`. If there is none the function is kept unvalidated, a system check says so, and
    `enqueue` raises. Raises `InvalidTask` for options that make no sense, at import.
    """
    if "run_after" in given:
        raise TypeError("run_after is given to .using(run_after=…), not to the decorator")

    if unknown := given.keys() - _names():
        known = ", ".join(sorted(options.DeclaredOptions.__optional_keys__))
        raise TypeError(f"@task has no option {', '.join(sorted(unknown))}; it has: {known}")

    def declare(func: Callable[..., Any]) -> Task[..., Any]:
        if isinstance(func, TaskBase):
            raise InvalidTask(
                f"{func.module_path} is a task already; @periodic stands above @task."
            )
        # Every field explicit: Django 6.0's Task has no defaults.
        values: dict[str, Any] = {"priority": 0, "queue_name": "default", "takes_context": False}
        values |= given
        declared = Task[..., Any](
            func=func, backend=backend or lease_alias(), run_after=None, **values
        )
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


def find_handler(task: Any) -> Any:
    """Return the task that `on_dead` names, or None; raise `InvalidTask` where it can be none."""
    found = getattr(task, "on_dead", None)
    if isinstance(found, str):
        try:
            found = registry.find(found)
        except UnknownTask as error:
            raise InvalidTask(f"on_dead of {task.module_path}: {error}.") from error
        options.check_handler(found)
    return found


@lru_cache(maxsize=256)
def _dump_handler(task: Task[..., Any] | None) -> str:
    """Return the policy of an `on_dead` task as the row keeps it; without an `on_dead` of its own.

    So any worker of any version can enqueue it, without knowing the task.
    """
    if task is None:
        return "null"
    return dump_arguments("on_dead", {
        "task": task.module_path,
        "queue": task.queue_name,
        "priority": int(task.priority),
        "max_attempts": task.max_attempts,
        "max_crashes": task.max_crashes,
        "on_crash": task.on_crash,
        "backoff": task.backoff.to_json(),
        "timeout_seconds": None if task.timeout is None else task.timeout.total_seconds(),
    })  # fmt: skip


@lru_cache(maxsize=256)
def _dump_backoff(backoff: Backoff) -> str:
    return dump_arguments("backoff", backoff.to_json())


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Task))


def _unpickle(kind: type[Task[..., Any]], name: str, values: dict[str, Any]) -> Task[..., Any]:
    task = object.__new__(kind)
    object.__setattr__(task, "func", registry.find(name).func)
    for field, value in values.items():
        object.__setattr__(task, field, value)
    return task
