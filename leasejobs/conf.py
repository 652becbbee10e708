"""The `LEASEJOBS` setting: its names, defaults and bounds; read at every use."""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

from django.conf import settings as django_settings

_SECONDS: Final = {
    "LEASE_SECONDS": (1, 86_400),
    "POLL_SECONDS": (0.01, 86_400),
    "SHUTDOWN_SECONDS": (0, 86_400),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option of `LEASEJOBS`, with its default."""

    DATABASE: str = "default"
    LEASE_SECONDS: float = 30
    POLL_SECONDS: float = 1
    SHUTDOWN_SECONDS: float = 25
    MAX_INTERRUPTIONS: int = 20
    REQUIRE_TENANT: bool = False

    @property
    def lease(self) -> timedelta:
        """How long a lease lasts unless it is renewed."""
        return timedelta(seconds=self.LEASE_SECONDS)


def load() -> Settings:
    """Return the settings in force; names this version does not know are left to the check."""
    return _build(getattr(django_settings, "LEASEJOBS", {}))


def names() -> tuple[str, ...]:
    """Return the option names."""
    return tuple(field.name for field in fields(Settings))


def database() -> str:
    """Return the alias on which all tables of ours live."""
    return load().DATABASE


def problems(value: Any) -> list[str]:
    """Say in sentences what is wrong with a `LEASEJOBS` dictionary; empty when nothing is."""
    if not isinstance(value, dict):
        return ["LEASEJOBS must be a dictionary."]
    found = []
    for name, (least, most) in _SECONDS.items():
        number = value.get(name, getattr(Settings(), name))
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not least <= number <= most:
            found.append(
                f"LEASEJOBS[{name!r}] must be from {least} to {most} seconds, not {number!r}."
            )
    alias = value.get("DATABASE", "default")
    if not isinstance(alias, str) or alias not in django_settings.DATABASES:
        found.append(f"LEASEJOBS['DATABASE'] names {alias!r}, which is not in DATABASES.")
    bound = value.get("MAX_INTERRUPTIONS", 20)
    if not isinstance(bound, int) or isinstance(bound, bool) or bound < 0:
        found.append(f"LEASEJOBS['MAX_INTERRUPTIONS'] must be a count, not {bound!r}.")
    if not isinstance(value.get("REQUIRE_TENANT", False), bool):
        found.append("LEASEJOBS['REQUIRE_TENANT'] must be True or False.")
    return found


def _build(value: Any) -> Settings:
    if not isinstance(value, dict):
        return Settings()  # the system check says what is wrong with it
    known = set(names())
    return Settings(**{name: item for name, item in value.items() if name in known})
