"""Time and identity as parameters: `now: Now`, `new_id: NewId`. Only this module asks the machine."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
NewId = Callable[[str], str]
"""Given a prefix (``evt``), returns ``evt_<ULID>``."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def utc_now() -> datetime:
    """The wall clock, in UTC."""
    return datetime.now(UTC)  # noqa: TID251 - the one place


def new_id(prefix: str) -> str:
    """A fresh ``<prefix>_<ULID>``: 48 bits of milliseconds, 80 of chance, in Crockford's base 32."""
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10))
    return f"{prefix}_" + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])
