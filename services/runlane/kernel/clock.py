"""Time and identity as parameters: `now: Now`, `new_id: NewId`. Only this module asks the machine."""

from collections.abc import Callable
from datetime import UTC, datetime

from ulid import ULID

Now = Callable[[], datetime]
NewId = Callable[[str], str]
"""Given a prefix (``evt``), returns ``evt_<ULID>``."""


def utc_now() -> datetime:
    """The wall clock, in UTC."""
    return datetime.now(UTC)  # noqa: TID251 - the one place


def new_id(prefix: str) -> str:
    """A fresh ``<prefix>_<ULID>``."""
    return f"{prefix}_{ULID()}"
