"""What is seen of the demo: a live table on a terminal, plain lines anywhere else."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import psutil
from django.db.models import Count
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from example_project.market.demo.fleet import Fleet
from example_project.market.models import Notification
from leasejobs.models import Attempt, Job
from leasejobs.states import TERMINAL, State

LOOK_SECONDS: Final = 0.25
PLAIN_SECONDS: Final = 2.0
TOLD_LINES: Final = 8


@dataclass(slots=True)
class Numbers:
    """One look at the tables."""

    states: Counter[int] = field(default_factory=Counter)
    running: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    notifications: int = 0

    @property
    def terminal(self) -> int:
        """How many jobs have ended for good."""
        return sum(count for state, count in self.states.items() if state in TERMINAL)


def look() -> Numbers:
    """Count jobs by state, and what each holder has in hand and has done."""
    numbers = Numbers()
    states = Job.objects.values("state", "leased_by").annotate(count=Count("*")).order_by()
    for state, holder, count in states.values_list("state", "leased_by", "count"):
        numbers.states[state] += count
        if holder:
            numbers.running[holder] += count
    ended = Attempt.objects.filter(outcome="succeeded").values("worker").order_by()
    numbers.ended.update(dict(ended.annotate(count=Count("*")).values_list("worker", "count")))
    numbers.notifications = Notification.objects.count()
    return numbers


class Display:
    """Shows the drain; `show` may be called as often as one likes."""

    def __init__(self, console: Console, fleet: Fleet, total: int) -> None:
        self._console = console
        self._fleet = fleet
        self._total = total
        self._began = time.monotonic()
        self._told: list[str] = []
        self._names: dict[str, str] = {}
        self._plain_at = 0.0
        self._live: Live | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Draw while the block lasts."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=False) as self._live:
            yield

    def tell(self, message: str) -> None:
        """Note something that happened."""
        line = f"{time.monotonic() - self._began:5.1f} s  {message}"
        self._told.append(line)
        if self._live is None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, numbers: Numbers) -> None:
        """Draw the numbers."""
        if self._live is not None:
            self._live.update(self._picture(numbers))
        elif time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + PLAIN_SECONDS
            self.tell(self._sentence(numbers))

    def _sentence(self, numbers: Numbers) -> str:
        states = ", ".join(
            f"{count:,} {State(state).label}" for state, count in sorted(numbers.states.items())
        )
        return f"{states}; {numbers.notifications:,} notifications"

    def _picture(self, numbers: Numbers) -> Group:
        table = Table(title="Workers", title_justify="left", expand=False)
        for name in ("worker", "child", "state"):
            table.add_column(name)
        for name in ("in hand", "jobs done"):
            table.add_column(name, justify="right")
        living = {child.holder: child for child in self._fleet.children()}
        for holder, child in living.items():
            self._names.setdefault(holder, f"{child.worker}\t{child.process.pid}")
        for holder, name in sorted(self._names.items(), key=lambda item: item[1]):
            state, style = _state(living[holder].process) if holder in living else ("dead", "red")
            worker, pid = name.split("\t")
            counts = (f"{numbers.running[holder]:,}", f"{numbers.ended[holder]:,}")
            table.add_row(worker, pid, state, *counts, style=style)
        bar = ProgressBar(total=max(self._total, 1), completed=numbers.terminal, width=60)
        told = Text("\n".join(self._told[-TOLD_LINES:]))
        below = Table.grid()
        below.add_column(overflow="fold")
        for part in (bar, Text(self._sentence(numbers)), told):
            below.add_row(part)
        return Group(table, below)


def _state(process: psutil.Process) -> tuple[str, str]:
    try:
        if process.status() == psutil.STATUS_STOPPED:
            return "frozen", "cyan"
    except psutil.Error:
        return "dead", "red"
    return "working", ""
