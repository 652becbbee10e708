"""One name for each thing of django.tasks, from Django 6 or from the backport on 5.2."""

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

import django

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task as TaskBase
    from django.tasks.base import TaskContext as _TaskContext
    from django.tasks.base import TaskError
    from django.tasks.base import TaskResult as ResultBase
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started

    Task: TypeAlias = TaskBase[..., Any]
    TaskContext: TypeAlias = _TaskContext[..., Any]
    TaskResult: TypeAlias = ResultBase[..., Any]
else:
    if django.VERSION >= (6, 0):
        from django.tasks import TaskResultStatus, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult
        from django.tasks.exceptions import (
            InvalidTask,
            TaskResultDoesNotExist,
            TaskResultMismatch,
        )
        from django.tasks.signals import task_enqueued, task_finished, task_started
    else:
        from django_tasks import TaskResultStatus, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.signals import task_enqueued, task_finished, task_started

    # What a type checker knows as generic is not everywhere: Django 6 has plain classes, and the
    # backport's result takes one parameter.
    class TaskBase(Task, Generic[P, R]):
        """The base of our task, subscriptable on every version."""

    class ResultBase(TaskResult, Generic[P, R]):
        """The base of our result, subscriptable on every version."""


def is_task(value: Any) -> bool:
    """Whether `value` is a task, of ours or of django.tasks."""
    return isinstance(value, Task)  # type: ignore[misc]  # at run time it is the class itself


__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "P",
    "R",
    "ResultBase",
    "Task",
    "TaskBase",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "is_task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
