"""When a reader is too slow for its previews: more are merged, and shown less often. Pure.

The first of the three things that happen to a slow reader, in this order: its previews are coalesced longer; the
oldest of them are dropped (by the lane's byte bound, said as `preview_gap`); it is closed with its cursor.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureLimits:
    """Marks and times. Between the marks nothing changes."""

    high_bytes: int = 64 * 1024
    """With so much waiting for a connection that has been closed to previews for a while, coalescing is lengthened."""
    low_bytes: int = 8 * 1024
    """With no more than this waiting at the beginning of a round it is ended."""
    coalesce_s: float = 0.25
    """How long previews gather before the next round."""
    closed_s: float = 0.05
    """A connection that is closed no longer than this only has not been served yet."""


class Pressure:
    """Whether previews flow as they come or gather first."""

    __slots__ = ("_closed_at", "_due_at", "_in_round", "_limits", "coalescing")

    def __init__(self, limits: PressureLimits) -> None:
        self._limits = limits
        self._closed_at: float | None = None
        self._due_at = 0.0
        self._in_round = False
        self.coalescing = False

    @property
    def merges(self) -> bool:
        """Whether what is taken now has gathered, and should be as few frames as may be."""
        return self.coalescing or self._in_round

    def closed(self, pending_bytes: int, now: float) -> bool:
        """The connection takes no previews just now, and there are some; whether coalescing is lengthened by it."""
        if self._closed_at is None:
            self._closed_at = now
        return self._rises(pending_bytes, now)

    def opened(self, pending_bytes: int, now: float) -> bool:
        """The connection takes previews; whether coalescing is lengthened because it did not for a while."""
        rises = self._closed_at is not None and self._rises(pending_bytes, now)
        self._closed_at = None
        return rises

    def _rises(self, pending_bytes: int, now: float) -> bool:
        is_long = self._closed_at is not None and now - self._closed_at >= self._limits.closed_s
        if self.coalescing or not is_long or pending_bytes < self._limits.high_bytes:
            return False
        self.coalescing = True
        self._due_at = now  # enough has gathered already
        self._in_round = False
        return True

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
