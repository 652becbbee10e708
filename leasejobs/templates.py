"""Key templates such as "receipt:{order_id}": checked when declared, filled at each enqueue."""

import inspect
import string
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from leasejobs.arguments import check_text
from leasejobs.compat import InvalidTask
from leasejobs.exceptions import InvalidArguments

# Whose text names one value. None, containers and other objects would share keys they should not.
_PLAIN: Final = (str, int, float, Decimal, UUID, date, time)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_template(option: str, template: str, signature: inspect.Signature) -> None:
    """Raise `InvalidTask` unless every `{name}` of a template is a parameter that has one value."""
    for _, name, _ in _parts(option, template):
        if not name:
            continue
        parameter = signature.parameters.get(name)
        if parameter is None:
            known = ", ".join(n for n, p in signature.parameters.items() if p.kind in _NAMED)
            raise InvalidTask(
                f"{option}={template!r} names {name!r}, which is no parameter of the task; "
                f"it has: {known or 'none'}."
            )
        if parameter.kind not in _NAMED:
            raise InvalidTask(
                f"{option}={template!r} names {name!r}, which cannot be passed by name as one "
                "value."
            )


def fill(option: str, template: str, arguments: Mapping[str, Any]) -> str:
    """Return a template's text for one call; `arguments` holds every parameter, defaults too.

    Raises `InvalidArguments` for None, containers and other objects: their text is ambiguous, or
    differs from process to process. So it does for a text that is empty or cannot be stored.
    """
    text = []
    for literal, name, spec in _parts(option, template):
        text.append(literal)
        if name:
            value = arguments[name]
            text.append(_text(option, template, name, value, spec))
    filled = check_text(option, "".join(text))
    if template and not filled:
        raise InvalidArguments(f"{option}={template!r} is empty for this call")
    return filled


def signature_of(func: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    """Return the signature that callers of a task see: without its context."""
    return _signature(func, takes_context)


@lru_cache(maxsize=1024)
def _signature(func: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(func)
    if takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def _text(option: str, template: str, name: str, value: Any, spec: str) -> str:
    if isinstance(value, Enum):
        value = value.value  # what its argument is stored as; format() of one differs by version
    if not isinstance(value, _PLAIN):
        raise InvalidArguments(
            f"{option}={template!r} cannot be made of {name}, which is "
            f"{'None' if value is None else f'a {type(value).__name__}'} in this call"
        )
    try:
        return format(value, spec)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"{option}={template!r} does not fit {name}: {error}") from error


@lru_cache(maxsize=1024)
def _parts(option: str, template: str) -> tuple[tuple[str, str, str], ...]:
    """Split a template into (text, parameter or "", format specification)."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InvalidTask(f"{option}={template!r} is no template: {error}.") from error
    parts = []
    for literal, name, spec, conversion in parsed:
        if name is not None and not name.isidentifier():
            raise InvalidTask(
                f"{option}={template!r} has the field {{{name}}}; a field is the name of a "
                "parameter, without indexes or attributes. Write {{ and }} for braces."
            )
        if conversion or "{" in (spec or ""):
            raise InvalidTask(f"{option}={template!r}: conversions and nested fields are not used.")
        parts.append((literal, name or "", spec or ""))
    return tuple(parts)
