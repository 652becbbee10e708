"""Where the time of one job goes: one child's loop in this process, its parts timed by thread.

Each part counts its own time, without that of the parts inside it. CPU time is the thread's own;
elapsed time also has the waits for the database in it. The stop-watch itself costs about half a
microsecond for each call it times, so the parts add up to more than a job takes without it.
"""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PARTS = ("claim", "hand-out", "body", "outcome", "signals", "metrics", "logs")


class StopWatch:
    """Own time of each part, summed over threads."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.elapsed: dict[str, float] = defaultdict(float)
        self._stack = threading.local()
        self._adding = threading.Lock()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its time added to `part`."""

        @functools.wraps(function)
        def timing(*args: Any, **kwargs: Any) -> Any:
            inside = self._stack.__dict__.setdefault("inside", [])
            inside.append([0.0, 0.0])
            cpu, elapsed = time.thread_time(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                cpu, elapsed = time.thread_time() - cpu, time.perf_counter() - elapsed
                of_others = inside.pop()
                if inside:
                    inside[-1][0] += cpu
                    inside[-1][1] += elapsed
                with self._adding:
                    self.cpu[part] += cpu - of_others[0]
                    self.elapsed[part] += elapsed - of_others[1]

        return timing


@contextmanager
def parts_timed(watch: StopWatch) -> Iterator[None]:
    """Time the parts of a job's way through a child, for the length of the block."""
    from leasejobs import executor, leases, metrics, receivers, signals
    from leasejobs.worker import bench, claimer, loop

    places: list[tuple[Any, str, str]] = [
        (claimer, "claim_jobs", "claim"),
        (loop.Loop, "_tick_jobs", "hand-out"),
        (bench.Bench, "take", "hand-out"),
        (executor, "run", "body"),
        (leases, "complete_many", "outcome"),
        (receivers, "emit", "logs"),
        *((signal, "send_robust", "signals") for signal in
          (signals.attempts_ended, signals.jobs_claimed, signals.bodies_returned)),
        (metrics.BatchHistogram, "observe_many", "metrics"),
        (metrics.Children, "of", "metrics"),
        (metrics.Counter, "inc", "metrics"),
    ]  # fmt: skip
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in places]
    for owner, name, part in places:
        setattr(owner, name, watch.timed(part, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, function in before:
            if function is None:
                delattr(owner, name)
            else:
                setattr(owner, name, function)


def measure(jobs: int, threads: int) -> StopWatch:
    """Drain what is enqueued in this process; return where the time went."""
    from leasejobs.worker.loop import Loop
    from leasejobs.worker.options import Options
    from leasejobs.worker.slots import Slots

    options = Options(
        queues=(), processes=1, threads=threads, lease=30, poll=1, shutdown=5, drain=True
    )
    watch = StopWatch()
    with parts_timed(watch):
        Loop(options, "benchmark:0:0", Slots.create(1024), None, is_alone=True).run()
    return watch


def report(watch: StopWatch, jobs: int) -> None:
    """Print the parts, in microseconds a job."""
    print(f"where the time of one job goes, in us (one child in this process, {jobs:,} jobs):")
    print(f"  {'':<10}{'CPU':>8}{'elapsed':>10}")
    for part in PARTS:
        cpu, elapsed = watch.cpu[part] / jobs * 1e6, watch.elapsed[part] / jobs * 1e6
        waits = "" if part == "hand-out" else f"{elapsed:>10.1f}"  # which waits for work, too
        print(f"  {part:<10}{cpu:>8.1f}{waits}")
