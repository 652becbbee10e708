"""Making foreign text safe to keep: bounded, storable by PostgreSQL, free of secrets and locals."""

import re
import traceback
from typing import Any, Final

from django.utils.module_loading import import_string

from leasejobs import conf

DETAIL_CHARACTERS: Final = 2_000
TRACEBACK_CHARACTERS: Final = 20_000
HIDDEN: Final = "[redacted]"

# What PostgreSQL's text and jsonb cannot hold: U+0000 and lone surrogates.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

# A value as it follows a name: quoted to its quote, else to the next separator.
# Of a list or a dictionary all that is in it, to its first closing bracket.
_VALUE: Final = (
    r"""(?:\[[^\]]*\]?|\{[^}]*\}?|b?(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s'"&,;})\]]+))"""
)
# Each pattern takes linear time: no unbounded repeat before what a match must contain, or a long
# word would be scanned anew from each of its letters, with the interpreter's lock held.
_SECRETS: Final = (
    # user:password@ in a URL or DSN, to the last @ of the word: a password may hold / and @
    (
        re.compile(
            r"\b(?P<head>[a-z][a-z0-9+.-]{0,30}://)"
            r"(?:[^\s'\"/?#@:]{0,200}:[^\s'\"]{1,500}|[^/\s@'\"]{1,500})@",
            re.I,
        ),
        rf"\g<head>{HIDDEN}@",
    ),
    # Authorization headers, in any quoting
    (
        re.compile(
            r"(?P<head>authorization['\"]?\s{0,9}[:=]\s{0,9}(?:b?['\"])?)[^'\"\r\n,}]+", re.I
        ),
        rf"\g<head>{HIDDEN}",
    ),
    (
        re.compile(r"\b(?P<head>bearer|basic|token)\s{1,9}[A-Za-z0-9._~+/=-]{6,}", re.I),
        rf"\g<head> {HIDDEN}",
    ),
    # name=value and "name": "value" where the name says what it is
    (
        re.compile(
            r"(?P<head>(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|"
            r"private[_-]?key|signature|credential|seed|cookie|session[_-]?id)[\w.-]{0,40}"
            rf"['\"]?\s{{0,9}}(?:=>|=|:|(?<=['\"]),)\s{{0,9}}){_VALUE}",
            re.I,
        ),
        rf"\g<head>{HIDDEN}",
    ),
    # Stellar secret seeds, JSON web tokens (also cut ones), PEM blocks
    (re.compile(r"\bS[A-Z2-7]{55}\b"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){0,2}"), HIDDEN),
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.S
        ),
        HIDDEN,
    ),
)
# A text is cut before it is searched; of a word that the cut went through, so much is dropped.
_LONGEST_SHAPE: Final = 100


def storable(text: str) -> str:
    """Replace what PostgreSQL cannot store by U+FFFD, so that writing it never fails."""
    return _UNSTORABLE.sub("\ufffd", text)


def storable_json(value: Any) -> Any:
    """Return a JSON value with every string in it made storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [storable_json(item) for item in value]
    if isinstance(value, dict):
        return {storable(key): storable_json(item) for key, item in value.items()}
    return value


def redact(text: str, limit: int) -> str:
    """Return `text` cut to `limit` characters, storable, with known shapes of secrets hidden.

    The text is cut before the patterns run, so a huge message costs no more than a long one.
    """
    clipped = storable(text[: limit * 2])
    if len(text) > len(clipped):
        kept, tail = clipped[:-_LONGEST_SHAPE], clipped[-_LONGEST_SHAPE:]
        clipped = kept + tail[: len(tail) - len(re.split(r"\s", tail)[-1])]
    for pattern, replacement in _SECRETS:
        clipped = pattern.sub(replacement, clipped)
    clipped = _redact_further(clipped)
    return clipped if len(clipped) <= limit else clipped[: limit - 1] + "…"


def _redact_further(text: str) -> str:
    """Let the project's own `REDACTOR` hide what it knows to be secret."""
    path = conf.load().REDACTOR
    if not path:
        return text
    try:
        return storable(str(import_string(path)(text)))
    except Exception:  # noqa: BLE001 - somebody's code; what it was to hide is better not shown
        return HIDDEN


def say(error: Exception) -> str:
    """Return the class and the message of an error in one safe line, for an event."""
    return redact(f"{type(error).__name__}: {' '.join(_message(error).split())}", 300)


def describe(error: BaseException) -> tuple[str, str, str]:
    """Return (class path, message, traceback) of any exception, however hostile, as safe text.

    The traceback carries file, line and source of each frame, never its locals.
    """
    try:
        kind = type(error)
        path = redact(f"{kind.__module__}.{kind.__qualname__}", 200)
        message = redact(_message(error), DETAIL_CHARACTERS)
        return path, message, redact(_traceback(error), TRACEBACK_CHARACTERS)
    except BaseException:  # noqa: BLE001 - a hostile class is the task's code, too
        return "", "<an exception that cannot be described>", ""


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 - so is a hostile __str__
        return f"<{type(error).__name__} whose text raised {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    # From the frames alone: the message is added by _message, since formatting the exception
    # itself would call its __str__, and its chain may be endless.
    parts = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < 8:
        seen.add(id(current))
        frames = traceback.StackSummary.extract(
            traceback.walk_tb(current.__traceback__), limit=-40, capture_locals=False
        )
        text = redact(_message(current), DETAIL_CHARACTERS)
        head = "Traceback (most recent call last):\n"
        parts.append(f"{head}{''.join(frames.format())}{type(current).__name__}: {text}\n")
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return "\nraised from\n\n".join(parts)
