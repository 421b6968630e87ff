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

    Previews and status stop at the connection's own high mark, where the server says `paused`.
    """

    facts: int = 32 * 1024
    critical: int = 48 * 1024


class Gate:
    """Which lanes a connection is open to. A lane that was closed stays so until the connection has emptied."""

    __slots__ = ("_bytes", "_facts_shut")

    def __init__(self, bytes_: LaneBytes) -> None:
        self._bytes = bytes_
        self._facts_shut = False

    def open(self) -> Lane:
        """What was unsent has gone out: everything may be written."""
        self._facts_shut = False
        return Lane.PREVIEWS

    def lowest(self, backlog_bytes: int) -> Lane | None:
        """The least urgent lane that may be written to a connection with so much unsent; None: nothing."""
        if backlog_bytes >= self._bytes.critical:
            return None
        if backlog_bytes >= self._bytes.facts:
            self._facts_shut = True
        return Lane.CRITICAL if self._facts_shut else Lane.FACTS
