"""Named points where a crash test may stop the process; a no-op unless a hook is installed.

The names are listed in `NAMES`, in the order an attempt passes them. `leasejobs.testing.points`
installs a hook in a worker child from its environment; nothing else does.
"""

from collections.abc import Callable
from typing import Final

NAMES: Final = (
    "claimed",  # rows are leased in the database, the child's slots know nothing yet
    "slotted",  # the slots say claimed, no body has begun
    "begun",  # the slot says begun, the body is about to be called
    "fenced_locked",  # inside fenced(): the row is locked, the body of the block not entered
    "fenced_body",  # the block's body is done, its outcome and re-arm are not written
    "fenced_written",  # the last statement is written, COMMIT not sent
    "fenced_committed",  # the block's transaction is committed
    "returned",  # the body returned, the outcome is in memory only
    "settling",  # the settler is about to write outcomes
    "moving",  # the row is locked to be moved, by its holder or a recovery; nothing is written
    "settled",  # outcomes are committed, the slots still say returned
)

_hook: Callable[[str], None] | None = None


def reached(name: str) -> None:
    """Tell the installed hook, if any, that this process is at the point `name`."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Install `hook` (None removes it). For crash tests only."""
    global _hook
    _hook = hook
