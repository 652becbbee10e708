"""`LeaseBackend`: the django.tasks backend whose tasks are jobs in the project's database."""

from typing import Any

from leasejobs import declare, results
from leasejobs.compat import BaseTaskBackend, InvalidTask, task_enqueued
from leasejobs.compat import TaskResult as AnyResult
from leasejobs.enqueue import enqueue_many


class LeaseBackend(BaseTaskBackend):
    """Enqueues tasks as rows of `Job`. Without `QUEUES` in its settings it takes any queue.

    Coroutine functions run to their end in a thread of the worker, with an event loop of their
    own. Aliases of this class share one table: a result is found through each of them.
    """

    task_class = declare.Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.queues = set(params.get("QUEUES", ()))

    def validate_task(self, task: Any) -> None:
        """Raise `InvalidTask` unless this backend can run the task."""
        if not isinstance(task, declare.Task):
            raise InvalidTask(
                f"{task.module_path} was declared for another backend; declare it with "
                f"@leasejobs.task, or @task(backend={self.alias!r})."
            )
        super().validate_task(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue one call in the caller's transaction. See `leasejobs.enqueue_many`."""
        self.validate_task(task)
        (enqueued,) = enqueue_many([task.prepare(*args, **kwargs)])
        result = results.result_of(task, list(args), dict(kwargs), enqueued)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return the result of the job with this id, whatever its task.

        Raises `TaskResultDoesNotExist` for an id that no row has, malformed ones included.
        """
        return results.load(result_id, self.alias)
