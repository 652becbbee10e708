"""The `LEASEJOBS` setting: its names, defaults and bounds; read at every use."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

_SECONDS: Final = {
    "LEASE_SECONDS": (1, 86_400),
    "POLL_SECONDS": (0.01, 86_400),
    "SHUTDOWN_SECONDS": (0, 86_400),
}


# Below it no argument is too long: what most jobs have is not measured against the setting.
LEAST_ARGUMENT_BYTES: Final = 10_000
_MOST_ARGUMENT_BYTES: Final = 100_000_000  # PostgreSQL's jsonb holds 255 MB

# For how many days finished rows are kept (None: for ever), and tracebacks on attempts.
RETENTION: Final[Mapping[str, float | None]] = {
    "succeeded": 14,
    "cancelled": 14,
    "failed": None,
    "parked": None,
    "tracebacks": 30,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option of `LEASEJOBS`, with its default."""

    DATABASE: str = "default"
    LISTEN_DATABASE: str = ""
    LEASE_SECONDS: float = 30
    POLL_SECONDS: float = 1
    SHUTDOWN_SECONDS: float = 25
    MAX_INTERRUPTIONS: int = 20
    MAX_ARGUMENT_BYTES: int = 1_000_000
    REQUIRE_TENANT: bool = False
    RETENTION_DAYS: Mapping[str, float | None] = field(default_factory=lambda: RETENTION)
    TASK_MODULES: tuple[str, ...] = ("tasks",)
    REDACTOR: str = ""

    @property
    def retention(self) -> Mapping[str, float | None]:
        """For how many days what is kept, with the defaults for what is not said."""
        return {**RETENTION, **self.RETENTION_DAYS}

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


def listen_database() -> str:
    """Return the alias on which workers LISTEN: a direct one, where `DATABASE` is a pooler's."""
    settings = load()
    return settings.LISTEN_DATABASE or settings.DATABASE


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
    direct = value.get("LISTEN_DATABASE", "")
    if direct and (not isinstance(direct, str) or direct not in django_settings.DATABASES):
        found.append(f"LEASEJOBS['LISTEN_DATABASE'] names {direct!r}, which is not in DATABASES.")
    bound = value.get("MAX_INTERRUPTIONS", 20)
    if not isinstance(bound, int) or isinstance(bound, bool) or bound < 0:
        found.append(f"LEASEJOBS['MAX_INTERRUPTIONS'] must be a count, not {bound!r}.")
    size = value.get("MAX_ARGUMENT_BYTES", LEAST_ARGUMENT_BYTES)
    is_count = isinstance(size, int) and not isinstance(size, bool)
    if not is_count or not LEAST_ARGUMENT_BYTES <= size <= _MOST_ARGUMENT_BYTES:
        found.append(
            f"LEASEJOBS['MAX_ARGUMENT_BYTES'] must be from {LEAST_ARGUMENT_BYTES} to"
            f" {_MOST_ARGUMENT_BYTES}, not {size!r}."
        )
    if not isinstance(value.get("REQUIRE_TENANT", False), bool):
        found.append("LEASEJOBS['REQUIRE_TENANT'] must be True or False.")
    return (
        found + _problems_of_retention(value.get("RETENTION_DAYS", {})) + _problems_of_names(value)
    )


def _problems_of_retention(value: Any) -> list[str]:
    name = "LEASEJOBS['RETENTION_DAYS']"
    if not isinstance(value, Mapping):
        return [f"{name} must be a dictionary, not {value!r}."]
    found = [
        f"{name} has no entry {key!r}; known: {', '.join(RETENTION)}."
        for key in value
        if key not in RETENTION
    ]
    for key, days in value.items():
        is_number = isinstance(days, int | float) and not isinstance(days, bool)
        if days is not None and not (is_number and 0 <= days <= 36_500):
            found.append(f"{name}[{key!r}] must be from 0 to 36500 days or None, not {days!r}.")
    return found


def _problems_of_names(value: Mapping[str, Any]) -> list[str]:
    found = []
    modules = value.get("TASK_MODULES", ())
    if isinstance(modules, str) or not all(isinstance(name, str) and name for name in modules):
        found.append(f"LEASEJOBS['TASK_MODULES'] must be a list of names, not {modules!r}.")
    redactor = value.get("REDACTOR", "")
    try:
        if redactor and not callable(import_string(redactor)):
            found.append(f"LEASEJOBS['REDACTOR'] names {redactor!r}, which cannot be called.")
    except (ImportError, AttributeError, TypeError) as error:
        found.append(f"LEASEJOBS['REDACTOR'] cannot be imported: {error}.")
    return found


def _build(value: Any) -> Settings:
    if not isinstance(value, dict):
        return Settings()  # the system check says what is wrong with it
    known = set(names())
    return Settings(**{name: item for name, item in value.items() if name in known})
