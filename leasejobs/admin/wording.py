"""What the operator's verbs are called on the pages, what they do, and how their verdicts read."""

from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from leasejobs.operations import Verdict

VERBS: Final[Mapping[str, Any]] = {"retry": _("Retry"), "cancel": _("Cancel"), "park": _("Park")}
TITLES: Final[Mapping[str, Any]] = {
    "retry": _("Retry jobs"), "cancel": _("Cancel jobs"), "park": _("Park jobs"),
}  # fmt: skip
EFFECTS: Final[Mapping[str, Any]] = {
    "retry": _("Each gets another start, due now, with fresh budgets."),
    "cancel": _("None will run. One that runs now is asked to stop."),
    "park": _("Each waits until somebody retries or cancels it."),
}

_VERDICTS: Final[Mapping[Verdict, Any]] = {
    Verdict.MOVED: ngettext_lazy(
        "%(verb)s: %(count)d job was moved.", "%(verb)s: %(count)d jobs were moved.", "count"
    ),
    Verdict.REQUESTED: ngettext_lazy(
        "%(verb)s: %(count)d running job was asked to stop.",
        "%(verb)s: %(count)d running jobs were asked to stop.",
        "count",
    ),
    Verdict.REFUSED: ngettext_lazy(
        "%(verb)s: %(count)d job was left alone: its state allows no such move.",
        "%(verb)s: %(count)d jobs were left alone: their states allow no such move.",
        "count",
    ),
    Verdict.STALE: ngettext_lazy(
        "%(verb)s: %(count)d job was left alone: it has moved since you looked (stale).",
        "%(verb)s: %(count)d jobs were left alone: they have moved since you looked (stale).",
        "count",
    ),
    Verdict.KEY_TAKEN: ngettext_lazy(
        "%(verb)s: %(count)d job was left alone: another job has its key by now.",
        "%(verb)s: %(count)d jobs were left alone: other jobs have their keys by now.",
        "count",
    ),
    Verdict.BUSY: ngettext_lazy(
        "%(verb)s: %(count)d job was left alone: its row is locked, try again.",
        "%(verb)s: %(count)d jobs were left alone: their rows are locked, try again.",
        "count",
    ),
    Verdict.MISSING: ngettext_lazy(
        "%(verb)s: %(count)d job is gone.", "%(verb)s: %(count)d jobs are gone.", "count"
    ),
}


def said(verb: str, verdict: Verdict, count: int) -> str:
    """Say what became of `count` jobs."""
    return str(_VERDICTS[verdict] % {"count": count, "verb": VERBS[verb]})
