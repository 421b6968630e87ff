"""How sensitive data is. Derived data is never less sensitive than what it was derived from."""

from enum import StrEnum


class Classification(StrEnum):
    """``public < internal < confidential < restricted``."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    RESTRICTED = "restricted"

    @property
    def rank(self) -> int:
        """Higher is more sensitive."""
        return _ORDER.index(self)


_ORDER = (
    Classification.PUBLIC,
    Classification.INTERNAL,
    Classification.CONFIDENTIAL,
    Classification.RESTRICTED,
)


def strictest(*classes: Classification) -> Classification:
    """The class of what was made from all of `classes`; `internal` for nothing."""
    return max(classes, key=lambda c: c.rank, default=Classification.INTERNAL)
