"""`LeaseBackend`: the django.tasks backend whose tasks are jobs in the project's database."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from leasejobs import declare, registry
from leasejobs.compat import (
    BaseTaskBackend,
    TaskResultStatus,
    task_enqueued,
)
from leasejobs.compat import (
    TaskResult as DjangoTaskResult,
)
from leasejobs.enqueue import Enqueued, enqueue_many
from leasejobs.models import Job
from leasejobs.states import State

_STATUS: Final = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.RETRYABLE: TaskResultStatus.READY,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
    State.PARKED: TaskResultStatus.READY,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult(DjangoTaskResult):  # type: ignore[misc]  # the stubs do not say frozen
    """A django.tasks result that names its row.

    `created` is False where `enqueue` found the key taken; the result is then the other job's.
    """

    job_id: int
    created: bool


class LeaseBackend(BaseTaskBackend):
    """Enqueues tasks as rows of `Job`. Without `QUEUES` in its settings it takes any queue."""

    task_class = declare.Task
    supports_defer = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.queues = set(params.get("QUEUES", ()))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:  # type: ignore[override]
        """Enqueue one call in the caller's transaction. See `leasejobs.enqueue_many`."""
        self.validate_task(task)
        (enqueued,) = enqueue_many([task.prepare(*args, **kwargs)])
        result = result_of(task, list(args), dict(kwargs), enqueued)
        task_enqueued.send(type(self), task_result=result)
        return result


def result_of(task: Any, args: list[Any], kwargs: dict[str, Any], enqueued: Enqueued) -> TaskResult:
    """Return the result of a call that was just enqueued, or met the job that has its key."""
    return _result(
        task, enqueued.job_id, enqueued.state, enqueued.created_at, args, kwargs, enqueued.created
    )


def result_of_job(job: Job) -> TaskResult:
    """Return the result of the attempt that is running `job`, for its context."""
    result = _result(
        registry.find(job.task), job.pk, State.RUNNING, job.created_at, job.args, job.kwargs, False
    )
    object.__setattr__(result, "last_attempted_at", job.claimed_at)
    object.__setattr__(result, "worker_ids", [job.leased_by] * job.attempts)
    return result


def _result(
    task: Any,
    pk: int,
    state: State,
    created_at: datetime,
    args: list[Any],
    kwargs: dict[str, Any],
    created: bool,
) -> TaskResult:
    return TaskResult(
        task=task, id=str(pk), status=_STATUS[state], enqueued_at=created_at, started_at=None,
        finished_at=None, last_attempted_at=None, args=args, kwargs=kwargs, backend=task.backend,
        errors=[], worker_ids=[], job_id=pk, created=created,
    )  # fmt: skip
