"""One name for each thing of django.tasks, from Django 6 or from the backport on 5.2."""

from typing import TYPE_CHECKING, Any, TypeAlias

import django

if TYPE_CHECKING:
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task as _Task
    from django.tasks.base import TaskContext as _TaskContext
    from django.tasks.base import TaskResult as _TaskResult
    from django.tasks.exceptions import InvalidTask
    from django.tasks.signals import task_enqueued

    Task: TypeAlias = _Task[..., Any]
    TaskContext: TypeAlias = _TaskContext[..., Any]
    TaskResult: TypeAlias = _TaskResult[..., Any]
elif django.VERSION >= (6, 0):
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskResult
    from django.tasks.exceptions import InvalidTask
    from django.tasks.signals import task_enqueued
else:
    from django_tasks import TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskResult
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.signals import task_enqueued


def is_task(value: Any) -> bool:
    """Whether `value` is a task, of ours or of django.tasks."""
    return isinstance(value, Task)  # type: ignore[misc]  # at run time it is the class itself


__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskResult",
    "TaskResultStatus",
    "is_task",
    "task_backends",
    "task_enqueued",
]
