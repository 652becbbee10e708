"""What a type checker must accept and refuse of a project; checked by `test_typing`, never run.

A line with an `ignore` must be an error: mypy warns of an `ignore` that is not needed.
"""

from collections.abc import Awaitable
from datetime import timedelta
from typing import assert_type

import leasejobs
from leasejobs import JobContext, NewJob, Snooze, Task, TaskResult, enqueue_many, task


@task
def bare(order_id: int, note: str = "") -> str:
    return f"{order_id} {note}"


@task(max_attempts=3, timeout=timedelta(minutes=5), key="receipt:{order_id}", on_dead="a.b")
def with_options(order_id: int) -> int | Snooze:
    return Snooze(timedelta(1)) if order_id else 5


@task(takes_context=True, lock_key="payment:{payment_id}")
def with_context(context: JobContext, payment_id: int) -> None:
    context.progress(payment_id)


@task(takes_context=False)
def without_context(value: list[int]) -> dict[str, int]:
    return {"sum": sum(value)}


@task
async def coroutine(value: int) -> str:
    return str(value)


@task(takes_context=True, on_dead=bare)
async def coroutine_with_context(context: JobContext, value: int) -> bytes:
    return bytes(value)


# What a task is, and what its result holds.

assert_type(bare.enqueue(1).return_value, str)
assert_type(bare.enqueue(order_id=1, note="x").return_value, str)
assert_type(with_options.enqueue(1).return_value, int | Snooze)
assert_type(with_context.enqueue(1).return_value, None)
assert_type(without_context.enqueue([1]).return_value, dict[str, int])
assert_type(coroutine.enqueue(1).return_value, str)
assert_type(coroutine_with_context.enqueue(1).return_value, bytes)
assert_type(bare.enqueue(1).created, bool)
assert_type(bare.enqueue(1).job_id, int)
assert_type(bare.get_result("5").wait(timeout=5).return_value, str)
assert_type(bare.call(1), str)
assert_type(bare.prepare(1), NewJob)
assert_type(bare.using(key="k", run_after=timedelta(1)).enqueue(1).return_value, str)
assert_type(bare.jobs.due().count(), int)
enqueue_many([bare.prepare(1), with_context.prepare(2)])


async def awaited() -> None:
    assert_type((await bare.aenqueue(1)).return_value, str)
    assert_type((await coroutine.aget_result("1")).return_value, str)
    assert_type((await (await bare.aenqueue(1)).await_(5)).return_value, str)


def passed_on(task: Task[[int], str]) -> TaskResult[[int], str]:
    return task.enqueue(1)


# What is refused: arguments.

bare.enqueue("1")  # type: ignore[arg-type]
bare.enqueue(1, 2)  # type: ignore[arg-type]
bare.enqueue()  # type: ignore[call-arg]
bare.enqueue(1, other=2)  # type: ignore[call-arg]
bare.prepare("1")  # type: ignore[arg-type]
bare.using(priority=5).enqueue("1")  # type: ignore[arg-type]
with_context.enqueue("1")  # type: ignore[arg-type]
with_context.enqueue(None, 1)  # type: ignore[call-arg,arg-type]
without_context.enqueue(["a"])  # type: ignore[list-item]
coroutine.enqueue("1")  # type: ignore[arg-type]
coroutine_with_context.enqueue("1")  # type: ignore[arg-type]
passed_on(with_context)  # type: ignore[arg-type]


async def awaited_with_a_wrong_argument() -> Awaitable[None] | None:
    await bare.aenqueue("1")  # type: ignore[arg-type]
    return None


# What is refused: options.

bare.using(max_attempts="3")  # type: ignore[arg-type]
bare.using(nonsense=3)  # type: ignore[call-arg]
bare.using(expires_after=5)  # type: ignore[arg-type]
task(max_attempts="3")  # type: ignore[call-overload]
task(nonsense=3)  # type: ignore[call-overload]
task(run_after=timedelta(1))  # type: ignore[call-overload]
_ = leasejobs.nonsense  # type: ignore[attr-defined]
_ = bare.enqueue(1).job_id.nonsense  # type: ignore[attr-defined]
