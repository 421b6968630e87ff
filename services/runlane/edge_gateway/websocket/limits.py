"""Bounds of one connection and of all of them."""

from dataclasses import dataclass, field

from runlane.edge_gateway.lanes import LaneBytes
from runlane_contracts.websocket import MAX_DEPTH, ConnectionLimits

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """Times and sizes."""

    lanes: LaneBytes = field(default_factory=LaneBytes)
    max_connections: int = 10_000
    max_connections_per_tenant: int = 1_000
    max_message_bytes: int = MIB
    max_subscriptions: int = 32
    max_requests: int = 32
    credit: int = 1_024
    initialize_s: float = 10.0
    """A connection on which nobody says `initialize` for so long is closed."""
    heartbeat_s: float = 12.0
    dead_after: float = 2.5
    """A client from which nothing came for so many heartbeats is gone."""
    stall_s: float = 30.0
    """A client that takes nothing for so long is closed."""
    goodbye_s: float = 5.0
    lifetime_s: float = 0.0
    """0: no bound."""
    expiry_warning_s: float = 60.0

    @property
    def announced(self) -> ConnectionLimits:
        """What a client is told."""
        return ConnectionLimits(
            max_message_bytes=self.max_message_bytes,
            max_depth=MAX_DEPTH,
            max_subscriptions=self.max_subscriptions,
            max_requests=self.max_requests,
            credit=self.credit,
        )
