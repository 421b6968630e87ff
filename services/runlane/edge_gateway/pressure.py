"""When a reader is too slow for its previews: more are merged, and shown less often. Pure.

The first of the three things that happen to a slow reader, in this order: its previews are coalesced longer; the
oldest of them are dropped (by the lane's byte bound, said as `preview_gap`); it is closed with its cursor.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureLimits:
    """Marks and times. Between the marks nothing changes."""

    high_bytes: int = 64 * 1024
    """With so much waiting, or a connection that is closed to previews, coalescing is lengthened."""
    low_bytes: int = 8 * 1024
    """With no more than this waiting at the beginning of a round it is ended."""
    coalesce_s: float = 0.25
    """How long previews gather before the next round."""


class Pressure:
    """Whether previews flow as they come or gather first."""

    __slots__ = ("_due_at", "_in_round", "_limits", "coalescing")

    def __init__(self, limits: PressureLimits) -> None:
        self._limits = limits
        self._due_at = 0.0
        self._in_round = False
        self.coalescing = False

    @property
    def merges(self) -> bool:
        """Whether what is taken now has gathered, and should be as few frames as may be."""
        return self.coalescing or self._in_round

    def rise(self, now: float) -> None:
        """There is too much, or the connection is closed to previews: the next round comes later."""
        self.coalescing = True
        self._due_at = now + self._limits.coalesce_s
        self._in_round = False

    def wait_s(self, pending_bytes: int, now: float) -> float:
        """How long previews have to wait still. Called before anything is taken, while the connection is open."""
        if not self.coalescing or self._in_round:
            return 0.0
        if now < self._due_at:
            return self._due_at - now
        self._in_round = True
        self.coalescing = pending_bytes > self._limits.low_bytes
        return 0.0

    def emptied(self, now: float) -> None:
        """Everything that waited was taken: the round is over."""
        if self._in_round:
            self._in_round = False
            self._due_at = now + self._limits.coalesce_s
