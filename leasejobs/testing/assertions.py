"""Assert what was enqueued; where nothing fits, tell what came near."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models.functions import Now
from django.utils import timezone

from leasejobs import conf
from leasejobs.arguments import dump_arguments
from leasejobs.compat import Task, is_task
from leasejobs.models import Job
from leasejobs.testing.backends import DummyBackend

_SHOWN: Final = 10
_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedCall:
    """One enqueued call: a row, or what a `DummyBackend` recorded.

    `due_in` counts from now, and is negative where the time has come.
    """

    job_id: int
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    tenant: str
    key: str
    due_in: timedelta

    def __str__(self) -> str:
        said = f"#{self.job_id} args={self.args!r} kwargs={self.kwargs!r} queue={self.queue!r}"
        said += f" tenant={self.tenant!r}" if self.tenant else ""
        said += f" key={self.key!r}" if self.key else ""
        return said + (f" due in {self.due_in}" if self.due_in > timedelta(0) else "")


def assert_enqueued(
    task: Task,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    count: int | None = 1,
    queue: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    within: timedelta | None = None,
) -> list[EnqueuedCall]:
    """Assert that `task` was enqueued `count` times (None: at least once) as described.

    What is None is not compared. `args` and `kwargs` are compared whole, as the JSON they are
    stored as (a tuple is a list), and as they were given: `f.enqueue(1)` has no kwargs. `within`
    asks that the job is due by then, counted from now. Counts rows of any state, finished ones
    too; for a task whose backend is a `DummyBackend`, what that has recorded.

    Returns the calls that fit. The AssertionError otherwise lists the calls of this task that do
    not, nearest first, with what differs.
    """
    __tracebackhide__ = True
    if not is_task(task):
        raise TypeError(f"assert_enqueued takes a task, not {task!r}")
    wanted: dict[str, Any] = {
        "args": None if args is None else json.loads(dump_arguments("args", list(args))),
        "kwargs": None if kwargs is None else json.loads(dump_arguments("kwargs", dict(kwargs))),
        "queue": queue, "tenant": tenant, "key": key, "within": within,
    }  # fmt: skip
    wanted = {name: value for name, value in wanted.items() if value is not None}
    fitting, others = [], []
    calls = _calls(task)
    for call in calls:
        differing = [name for name, value in wanted.items() if not _fits(call, name, value)]
        if differing:
            others.append((differing, call))
        else:
            fitting.append(call)
    if len(fitting) == count or (count is None and fitting):
        return fitting
    expected = "at least one call" if count is None else f"{count} call{'s' * (count != 1)}"
    described = "".join(f" {name}={value!r}" for name, value in wanted.items())
    asked = f"{expected} of {task.module_path}" + (f" with{described}" if described else "")
    lines = [f"expected {asked}, found {len(fitting)}"]
    lines += [f"  fits: {_clipped(call)}" for call in fitting[:_SHOWN]]
    others.sort(key=lambda pair: len(pair[0]))
    lines += [f"  not its {', '.join(names)}: {_clipped(call)}" for names, call in others[:_SHOWN]]
    if (left := max(0, len(fitting) - _SHOWN) + max(0, len(others) - _SHOWN)) > 0:
        lines.append(f"  and {left} more")
    if not calls:
        lines.append("  nothing of this task was enqueued at all" + _elsewhere(task))
    raise AssertionError("\n".join(lines))


def assert_not_enqueued(
    task: Task,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    within: timedelta | None = None,
) -> None:
    """Assert that no call of `task` fits the description; see `assert_enqueued`."""
    __tracebackhide__ = True
    assert_enqueued(
        task, args=args, kwargs=kwargs, count=0, queue=queue, tenant=tenant, key=key, within=within
    )


def _fits(call: EnqueuedCall, name: str, value: Any) -> bool:
    return bool(call.due_in <= value if name == "within" else getattr(call, name) == value)


def _calls(task: Task) -> list[EnqueuedCall]:
    backend = task.get_backend()
    if isinstance(backend, DummyBackend):
        return [
            EnqueuedCall(
                job_id=number, args=json.loads(new.args), kwargs=json.loads(new.kwargs),
                queue=new.queue, tenant=new.tenant, key=new.key,
                due_in=new.delay or (new.run_after or timezone.now()) - timezone.now(),
            )
            for number, new in backend.prepared()
            if new.task == task.module_path
        ]  # fmt: skip
    rows = Job.objects.using(conf.database()).filter(task=task.module_path).order_by("pk")
    return [
        EnqueuedCall(
            job_id=row["pk"], args=row["args"], kwargs=row["kwargs"], queue=row["queue"],
            tenant=row["tenant"], key=row["key"], due_in=row["due_at"] - row["now"],
        )
        for row in rows.values(
            "pk", "args", "kwargs", "queue", "tenant", "key", "due_at", now=Now()
        )
    ]  # fmt: skip


def _elsewhere(task: Task) -> str:
    """Name the tasks that were enqueued instead."""
    backend = task.get_backend()
    if isinstance(backend, DummyBackend):
        names = {new.task for _, new in backend.prepared()}
    else:
        names = set(Job.objects.using(conf.database()).values_list("task", flat=True).distinct())
    return f"; enqueued were {', '.join(sorted(names)[:_SHOWN])}" if names else ""


def _clipped(call: EnqueuedCall) -> str:
    text = str(call)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
