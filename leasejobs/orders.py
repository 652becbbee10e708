"""What an operator orders: a verb, with who wants it and why; and the record that is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django.db import models

from leasejobs import signals
from leasejobs.arguments import check_text
from leasejobs.exceptions import InvalidArguments
from leasejobs.models import OperatorAction
from leasejobs.sessions import after_commit

_MOST_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Order:
    """A verb, its actor and reason, and the revisions of the rows that the operator saw.

    Raises `InvalidArguments` without an actor or a reason.
    """

    verb: str
    actor: str
    reason: str
    revisions: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("actor", "reason"):
            if not check_text(name, getattr(self, name), _MOST_CHARACTERS).strip():
                raise InvalidArguments(f"{self.verb} needs {name!r}: it is kept with the move")

    def record(
        self, model: type[models.Model], revisions: Mapping[Any, int | None], alias: str
    ) -> None:
        """Write an `OperatorAction` for each row, named with the revision it had before.

        In the caller's transaction, that of the deed; `signals.jobs_operated` tells of it once
        that has committed.
        """
        if not revisions:
            return
        OperatorAction.objects.using(alias).bulk_create(
            OperatorAction(
                verb=self.verb, target=model._meta.label, target_pk=str(pk), revision=revision,
                actor=self.actor, reason=self.reason,
            )
            for pk, revision in revisions.items()
        )  # fmt: skip
        operated = partial(
            signals.jobs_operated.send_robust, sender=model, verb=self.verb, pks=list(revisions),
            actor=self.actor, reason=self.reason, alias=alias,
        )  # fmt: skip
        after_commit(operated, alias)
