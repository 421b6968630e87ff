"""Which fact types a reader asked for: exact types, or whole families as ``family.*`` or ``family``. Pure."""

import re
from dataclasses import dataclass

from runlane_contracts import events
from runlane_contracts.cursor import filter_hash

MAX_TYPES = 64
_NAME = r"[a-z][a-z0-9_]{0,62}"
_TYPE = re.compile(rf"{_NAME}\.(?:{_NAME}|\*)")
_KNOWN_FAMILIES = frozenset(type_.partition(".")[0] for type_ in events.PAYLOADS)


class TypeFilterInvalid(ValueError):
    """Not a comma separated list of ``family.verb``, ``family.*`` or ``family``."""


@dataclass(frozen=True, slots=True)
class TypeFilter:
    """A set of fact types. `hash` binds a cursor to it; empty when everything passes."""

    types: tuple[str, ...]
    hash: str
    _exact: frozenset[str]
    _families: frozenset[str]

    def matches(self, type_: str) -> bool:
        """Whether facts of this type pass."""
        return not self.types or type_ in self._exact or type_.partition(".")[0] in self._families


def type_filter(text: str | None) -> TypeFilter:
    """The filter in a ``types=`` parameter; None or empty lets everything pass.

    Raises:
        TypeFilterInvalid: it cannot be read.
    """
    names = tuple(sorted({_full(part.strip()) for part in text.split(",") if part.strip()})) if text else ()
    if len(names) > MAX_TYPES:
        raise TypeFilterInvalid(f"types: at most {MAX_TYPES}")
    for name in names:
        if _TYPE.fullmatch(name) is None:
            raise TypeFilterInvalid(
                f"types: {name[:80]!r} is neither `family.verb`, `family.*` nor the name of a family"
            )
    return TypeFilter(
        types=names,
        hash=filter_hash(names),
        _exact=frozenset(name for name in names if not name.endswith(".*")),
        _families=frozenset(name.removesuffix(".*") for name in names if name.endswith(".*")),
    )


def _full(name: str) -> str:
    """A known family alone means all of it: two spellings of one filter, and their cursors are the same."""
    return f"{name}.*" if name in _KNOWN_FAMILIES else name


EVERYTHING = type_filter(None)
