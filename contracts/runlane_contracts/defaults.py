"""Defaults that are sent all the same: what the contract promises to be there is there."""

from typing import Any

from msgspec import field


def always(value: Any) -> Any:
    """A default that is written out, in types that leave out what is not set. `value` must be immutable."""
    return field(default_factory=lambda: value)
