"""What a market event is: its identity, its limits, and the key of its job."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from leasejobs.arguments import MAX_KEY_CHARACTERS

# PostgreSQL refuses an indexed text of more than about 2,700 bytes; a character has at most four.
MAX_MARKET_CHARACTERS: Final = 500
MAX_TYPE_CHARACTERS: Final = 200
MAX_REF_CHARACTERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a market; (market, event_type, event_ref) is its identity."""

    market: str
    event_type: str
    event_ref: str
    occurred_at: datetime
    payload: Any
    title: str = ""

    @property
    def key(self) -> str:
        """The key of the event's job; see `key`."""
        return key(self.market, self.event_type, self.event_ref)


def key(market: str, event_type: str, event_ref: str) -> str:
    """Return the key of an identity: different for any two, whatever characters the parts hold.

    A JSON array, because a plain join makes one text of ("a:b", "c") and ("a", "b:c"). Where that
    is longer than a key may be, its SHA-256, which no array can be mistaken for.
    """
    text = json.dumps([market, event_type, event_ref], ensure_ascii=False, separators=(",", ":"))
    if len(text) <= MAX_KEY_CHARACTERS:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
