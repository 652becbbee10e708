"""What a task was given and what it said, for who may see it: redacted, bounded, never executed."""

import json
from typing import Any, Final

from django.db.models import F, TextField
from django.db.models.functions import Cast, Left
from django.utils.translation import gettext as _

from leasejobs import conf
from leasejobs.models import Attempt, Job
from leasejobs.redaction import HIDDEN, redact

MOST_TRACEBACKS: Final = 5
_COLUMNS: Final = ("args", "kwargs", "result", "metadata", "checkpoint")
_MOST_READ: Final = 100_000  # characters: a cut JSON document cannot be searched for its names
_MOST_SHOWN: Final = 20_000
_TRACEBACK: Final = 20_000


def payloads(pk: int) -> list[tuple[str, str]]:
    """Return (column, text) of what a job carries, for people with `view_job_arguments`."""
    texts = {f"{name}_text": Left(Cast(F(name), TextField()), _MOST_READ + 1) for name in _COLUMNS}
    rows = Job.objects.using(conf.database()).filter(pk=pk)
    row = rows.annotate(**texts).values(*texts).first() or {}
    return [(name, _shown(row.get(f"{name}_text"))) for name in _COLUMNS]


def tracebacks(pk: int) -> list[tuple[Any, str]]:
    """Return (attempt, traceback) of the newest that have one, for `view_job_tracebacks`."""
    rows = Attempt.objects.using(conf.database()).filter(job_id=pk).exclude(traceback="")
    newest = rows.only("epoch", "number", "job_id", "traceback").order_by("-epoch")
    return [(row, redact(row.traceback, _TRACEBACK)) for row in newest[:MOST_TRACEBACKS]]


def _shown(text: str | None) -> str:
    if text is None:
        return "-"
    if len(text) > _MOST_READ:
        return _("not shown: more than %(count)d characters") % {"count": _MOST_READ}
    try:
        pretty = json.dumps(_without_secrets(json.loads(text)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _("not shown: it is JSON that Python cannot read")
    return redact(pretty, _MOST_SHOWN)


def _without_secrets(value: Any) -> Any:
    """Hide in a JSON value each text that is a secret, and all that stands under a secret's name.

    The text of the whole document would not do: a list under "password" is many words.
    """
    if isinstance(value, str):
        return redact(value, _MOST_READ)
    if isinstance(value, dict):
        return {
            redact(name, _MOST_READ): HIDDEN if _names_a_secret(name) else _without_secrets(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        names = [None, *value]  # what precedes each item: ["password", "…"]
        return [
            HIDDEN if _names_a_secret(name) else _without_secrets(item)
            for name, item in zip(names, value, strict=False)
        ]
    return value


def _names_a_secret(name: Any) -> bool:
    if not isinstance(name, str) or len(name) > 200:
        return False
    return HIDDEN in redact(json.dumps({name: "x"}, ensure_ascii=False), 500)
