"""WebSocket frames of a server as bytes: text, whole, unmasked, uncompressed. Pure.

What a subscription is sent is the same for all first subscriptions of all connections, all second ones and so on: so
it is made once and shared, as long as they have the same number.
"""

from runlane.edge_gateway.websocket.jsonrpc import notification

_FIN_TEXT = 0x81
_SMALL, _MEDIUM = 126, 1 << 16
_NESTED = frozenset({"fact", "preview"})
"""What somebody else made stays an object of its own; what the gateway says is spread out."""


def text_frame(text: bytes) -> bytes:
    """One message in one frame."""
    size = len(text)
    if size < _SMALL:
        return bytes((_FIN_TEXT, size)) + text
    if size < _MEDIUM:
        return b"\x81\x7e" + size.to_bytes(2, "big") + text
    return b"\x81\x7f" + size.to_bytes(8, "big") + text


class SubscriptionWire:
    """The wire format of one subscription: a notification for each event."""

    __slots__ = ("name", "subscription")

    def __init__(self, number: int) -> None:
        self.subscription = f"sub_{number}"
        self.name = f"ws:{self.subscription}"

    def frame(self, event: str, data: bytes, cursor: str | None = None) -> bytes:
        """See `Wire.frame`. The data of a fact is, byte for byte, what SSE has."""
        if b"\n" in data or b"\r" in data:
            data = data.replace(b"\r", b" ").replace(b"\n", b" ")
        members = b'{"%b":%b}' % (event.encode(), data) if event in _NESTED else data
        if cursor is not None and event in _NESTED:
            members = b'{"cursor":"%b",%b' % (cursor.encode(), members[1:])
        return text_frame(notification(f"run/{event}", self.subscription, members))
