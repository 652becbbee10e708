"""What may be stored: arguments as JSON, names and keys as text; anything else is refused here."""

import json
import re
from typing import Any, Final

from leasejobs import conf
from leasejobs.exceptions import InvalidArguments

MAX_KEY_CHARACTERS: Final = 500
MAX_IDENTITY_BYTES: Final = 2_500  # an entry of a btree index holds 2,704
MAX_DEPTH: Final = 200
# A NUL as json.dumps writes it, not the six characters after an escaped backslash.
_ESCAPED_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def dump_arguments(name: str, value: Any) -> str:
    """Return `value` as JSON text that PostgreSQL can store, or raise `InvalidArguments`.

    Tuples become lists and the keys of dictionaries strings, as JSON has it. NaN, infinities,
    NUL and lone surrogates have no place in jsonb and are refused.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"{name} cannot be stored as JSON: {error}") from error
    if len(text) > conf.LEAST_ARGUMENT_BYTES / 4:
        limit, size = conf.load().MAX_ARGUMENT_BYTES, len(text.encode())
        if size > limit:
            raise InvalidArguments(
                f"{name} have {size} bytes as JSON, at most {limit} are allowed"
                " (LEASEJOBS['MAX_ARGUMENT_BYTES']); store the payload and pass its key"
            )
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise InvalidArguments(f"{name} is nested more than {MAX_DEPTH} levels deep")
    if _ESCAPED_NUL.search(text):
        raise InvalidArguments(
            f"{name} cannot be stored: PostgreSQL's jsonb holds no NUL (\\u0000)"
        )
    return text


def check_text(name: str, value: str, limit: int = MAX_KEY_CHARACTERS) -> str:
    """Return `value` if it can be stored in an indexed text column, or raise `InvalidArguments`."""
    if not isinstance(value, str):
        raise InvalidArguments(f"{name} must be a string, not {type(value).__name__}")
    if len(value) > limit:
        raise InvalidArguments(f"{name} has {len(value)} characters, at most {limit} are allowed")
    if re.search("[\x00\ud800-\udfff]", value):
        raise InvalidArguments(f"{name} contains a NUL or a lone surrogate")
    return value


def check_identity(tenant: str, task: str, key: str) -> None:
    """Raise `InvalidArguments` if a job's tenant, task and key do not fit one index entry."""
    size = len(f"{tenant}{task}{key}".encode())
    if key and size > MAX_IDENTITY_BYTES:
        raise InvalidArguments(
            f"tenant, task and key have {size} bytes together, at most {MAX_IDENTITY_BYTES} fit"
        )


def check_lock(tenant: str, lock_key: str) -> None:
    """Raise `InvalidArguments` if a job's tenant and lock key do not fit one index entry.

    The entry is made at the claim: there it would fail, again and again, for all that wait.
    """
    size = len(f"{tenant}{lock_key}".encode())
    if lock_key and size > MAX_IDENTITY_BYTES:
        raise InvalidArguments(
            f"tenant and lock_key have {size} bytes together, at most {MAX_IDENTITY_BYTES} fit"
        )


def _depth(value: Any) -> int:
    """Return how deep a value that json.dumps took is nested; without recursion of its own."""
    deepest, level = 0, [value]
    while level and deepest <= MAX_DEPTH:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list | tuple):
                inner.extend(item)
        deepest, level = deepest + 1, inner
    return deepest
