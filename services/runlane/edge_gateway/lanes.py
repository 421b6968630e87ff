"""The four lanes of a connection, and how many bytes are kept free for the more urgent ones. Pure.

Facts of one run go out in the order of their sequence, so within a run a critical fact does not jump the queue: it
pulls everything before it into the critical lane. What it overtakes is status and previews, and the facts of other
runs on the same connection.
"""

from dataclasses import dataclass
from enum import IntEnum


class Lane(IntEnum):
    """The lower, the more urgent."""

    CRITICAL = 0  # facts up to one that somebody waits for: approval, input, run, a failure
    FACTS = 1
    STATUS = 2  # of something that goes on, only the newest counts; and what was lost
    PREVIEWS = 3


CRITICAL_FAMILIES = frozenset({"approval", "input", "run"})
FAILED = ".failed"


def is_critical(type_: str) -> bool:
    """Whether somebody waits for facts of this type."""
    return type_.partition(".")[0] in CRITICAL_FAMILIES or type_.endswith(FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBytes:
    """With how much unsent on a connection each lane may add to it; what lies between is kept for the more urgent.

    At `previews` a connection is closed to previews, to each other lane at its own bound; at `low` it is open again.
    """

    low: int = 4 * 1024
    previews: int = 16 * 1024
    status: int = 24 * 1024
    facts: int = 32 * 1024
    critical: int = 48 * 1024
    kernel: int = 256 * 1024
    """What the operating system may hold beyond that: sent and not confirmed, or not sent. 0: as it pleases."""


class Gate:
    """Which lanes a connection is open to. A lane that was closed stays so until the connection has emptied."""

    __slots__ = ("_bytes", "_lowest")

    def __init__(self, bytes_: LaneBytes) -> None:
        self._bytes = bytes_
        self._lowest = Lane.PREVIEWS

    def open(self) -> Lane:
        """What was unsent has gone out: everything may be written."""
        self._lowest = Lane.PREVIEWS
        return Lane.PREVIEWS

    def lowest(self, backlog_bytes: int) -> Lane | None:
        """The least urgent lane that may be written to a connection with so much unsent; None: nothing."""
        bounds = self._bytes
        if backlog_bytes < bounds.status:
            self._lowest = min(self._lowest, Lane.STATUS)
        elif backlog_bytes < bounds.facts:
            self._lowest = min(self._lowest, Lane.FACTS)
        else:
            self._lowest = Lane.CRITICAL
        return self._lowest if backlog_bytes < bounds.critical else None
