"""What is written next on one connection: the most urgent lane first, and of one lane each subscription in turn.

Nothing waits in here. The pump runs when something is new, when the socket has room again and when credit comes back,
and writes as long as the client takes it; what it does not write stays in the runs' rings and views.
"""

from collections.abc import Callable
from typing import Protocol

from runlane.edge_gateway.burst import Piece
from runlane.edge_gateway.lanes import Gate, Lane
from runlane.edge_gateway.outgoing import Want
from runlane.edge_gateway.websocket.frames import Outlet
from runlane.edge_gateway.websocket.subscription import Subscription
from runlane_contracts.resume import EndReason


class Socket(Protocol):
    """What is needed of a connection."""

    @property
    def is_open(self) -> bool:
        """Whether anything may be written."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether the client has to take something first."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """What the client has not taken yet, as far as is known here."""
        ...

    def write_frames(self, frames: bytes) -> None:
        """Hand over whole frames."""
        ...


OnEnd = Callable[[Subscription, EndReason], None]


class Pump:
    """Writes what subscriptions have. `on_end`: one of them has come to its end, and everything was written."""

    def __init__(self, socket: Socket, gate: Gate, *, clock: Callable[[], float], on_end: OnEnd) -> None:
        self._socket = socket
        self.outlet = Outlet(socket)
        self._gate = gate
        self._clock = clock
        self._on_end = on_end
        self._ready: dict[Subscription, None] = {}
        self._running = False

    def wake(self, subscription: Subscription) -> None:
        """It has something new, or may send again."""
        self._ready[subscription] = None
        self.run()

    def forget(self, subscription: Subscription) -> None:
        """It sends nothing more."""
        self._ready.pop(subscription, None)

    def run(self) -> None:
        """Write what there is, as long as there is room."""
        if self._running:
            return
        self._running = True
        try:
            while self._socket.is_open and self._ready and self._write_one(self._allowed()):
                pass
        finally:
            self._running = False

    def _allowed(self) -> Lane | None:
        return self._gate.lowest(self._socket.backlog_bytes) if self._socket.is_paused else self._gate.open()

    def _write_one(self, lowest: Lane | None) -> bool:
        """Whether anything was written, or settled. None: nothing may be written; they are asked so that they know."""
        for subscription in self._by_urgency():
            piece = subscription.take(lowest, self._clock())
            if piece is not None:
                self._write(subscription, piece)
                return True
            if lowest is not None and self._settle(subscription):
                return True
        return False

    def _by_urgency(self) -> list[Subscription]:
        """Those that may have something, the most urgent first; of the same lane, whose turn it is."""
        if len(self._ready) == 1:
            return list(self._ready)
        return sorted(self._ready, key=lambda one: Lane.PREVIEWS if one.lane is None else one.lane)

    def _write(self, subscription: Subscription, piece: Piece) -> None:
        self.outlet.write(piece.chunk)
        del self._ready[subscription]
        if subscription.want is not Want.NEWS:
            self._ready[subscription] = None  # at the end of the queue

    def _settle(self, subscription: Subscription) -> bool:
        """What becomes of one that had nothing to take; whether it has ended."""
        want = subscription.want
        if want is Want.END:
            self._end(subscription, EndReason.RUN_TERMINAL)
            return True
        if want is Want.NOTHING:
            # Nothing more can be read here. Whoever comes back is told what became of the run.
            self._end(subscription, EndReason.SHUTDOWN)
            return True
        if want is Want.NEWS or subscription.room == 0:
            self._ready.pop(subscription, None)  # it wakes us
        return False

    def _end(self, subscription: Subscription, reason: EndReason) -> None:
        self._ready.pop(subscription, None)
        self._on_end(subscription, reason)
