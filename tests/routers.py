"""Which tables the suite's second database has."""

from typing import Any


class OnlyAccounts:
    """Keeps everything but `Account` out of the database `other`."""

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **_: Any
    ) -> bool | None:
        """Say no to other models on `other`, nothing elsewhere."""
        return (app_label, model_name) == ("fenced_app", "account") if db == "other" else None
