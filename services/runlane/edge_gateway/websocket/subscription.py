"""One watch on a connection that others share: its place in the run, and how many facts may be on their way.

A fact is in flight from when it is written until the client says that it applied it. No more than `credit` of them are,
whatever the socket would take; a client that stops acknowledging costs a place in memory, and nothing grows.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack

from runlane.edge_gateway.burst import Piece
from runlane.edge_gateway.frames import Chunk
from runlane.edge_gateway.lanes import Lane
from runlane.edge_gateway.outgoing import Outgoing, Want
from runlane.edge_gateway.queries import opened_cursor
from runlane.hosting.http import ProblemError
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason

IDLE_S = 1.0
"""A subscription that took nothing for so long holds no history in memory."""

OnStop = Callable[["Subscription", EndReason, int | None], None]
"""Told why it ends, and when the client may come back, in ms."""


class Subscription:
    """What one `run/watch` opened. A follower, see `crowd`."""

    __slots__ = (
        "_in_flight", "_on_stop", "_sent_through", "_snapshot", "_taken_at", "applied", "credit", "held", "name", "out",
        "run_id",
    )  # fmt: skip

    def __init__(self, name: str, run_id: str, out: Outgoing, *, credit: int, on_stop: OnStop) -> None:
        self.name = name
        self.run_id = run_id
        self.out = out
        self.credit = credit
        self.applied = out.position.sequence
        """Through which sequence the client has applied."""
        self.held = AsyncExitStack()
        """What it holds of the run."""
        self._on_stop = on_stop
        self._taken_at = 0.0
        self._snapshot = out.plan.snapshot is not None  # is still to be sent
        self._in_flight: deque[int] = deque()
        self._sent_through = self.applied

    @property
    def room(self) -> int:
        """How many facts may be written now."""
        return self.credit - len(self._in_flight)

    @property
    def cursor(self) -> str:
        """Continues after what was sent."""
        return self.out.encoder.cursor(self.out.position)

    # --- out ----------------------------------------------------------------------------------------------

    def take(self, lowest: Lane | None, now: float) -> Piece | None:
        """What comes next, within the credit."""
        if self._snapshot:
            return self._take_snapshot(lowest)
        piece = self.out.take(lowest, max_facts=self.room)
        if piece is not None:
            self._taken_at = now
            self._in_flight.extend(piece.sequences)
            self._sent_through = max(self._sent_through, self.out.position.sequence)
        return piece

    @property
    def lane(self) -> Lane | None:
        """The most urgent lane that has something."""
        return Lane.FACTS if self._snapshot else self.out.lane

    @property
    def want(self) -> Want:
        """What it takes to go on when `take` had nothing."""
        return Want.ROOM if self._snapshot else self.out.want

    def _take_snapshot(self, lowest: Lane | None) -> Piece | None:
        frame = self.out.snapshot() if lowest is not None and lowest >= Lane.FACTS else None
        if frame is None:
            return None
        self._snapshot = False
        return Piece(Lane.FACTS, Chunk(frame))

    # --- in -----------------------------------------------------------------------------------------------

    def ack(self, cursor: str) -> int:
        """Everything up to the cursor was applied. Returns how many facts may come now.

        Raises:
            ProblemError: `cursor_invalid`: not ours, or of something that was not sent; `cursor_foreign`;
                `sequence_conflict`: older than what was acknowledged before.
        """
        position = opened_cursor(self.out.encoder, cursor)
        sequence = 0 if position is None else position.sequence
        if sequence > self._sent_through:
            raise ProblemError(Code.CURSOR_INVALID, f"sequence {sequence} was not sent to this subscription")
        if sequence < self.applied:
            raise ProblemError(
                Code.SEQUENCE_CONFLICT, f"sequence {self.applied} was acknowledged before",
                current_sequence=self.applied,
            )  # fmt: skip
        self.applied = sequence
        while self._in_flight and self._in_flight[0] <= sequence:
            self._in_flight.popleft()
        return self.room

    # --- while it is open ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See `Follower.tick`."""
        if self.out.holds_page and now - self._taken_at >= IDLE_S:
            self.out.slow_down()

    def stop(self, reason: EndReason, *, retry_after_ms: int | None = None) -> None:
        """See `Follower.stop`."""
        self._on_stop(self, reason, retry_after_ms)

    async def release(self) -> None:
        """Let go of the run."""
        self.out.close()
        await self.held.aclose()
