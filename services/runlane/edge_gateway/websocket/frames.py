"""WebSocket frames of a server as bytes: text, whole, unmasked, uncompressed. Pure.

What a subscription is sent is the same for all first subscriptions of all connections, all second ones and so on: so
it is made once and shared, as long as they have the same number.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

from runlane.edge_gateway.frames import Chunk, one_line
from runlane.edge_gateway.websocket.jsonrpc import notification
from runlane_contracts.codec import encode
from runlane_contracts.websocket import Part

_FIN_TEXT = 0x81
_SMALL, _MEDIUM = 126, 1 << 16
_AROUND_PART = 160
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


def text_of(frame: bytes) -> bytes:
    """The message in a frame that `text_frame` made."""
    return frame[{126: 4, 127: 10}.get(frame[1], 2) :]


def in_parts(text: bytes, largest: int) -> Iterator[bytes]:
    """A message as frames of `message/part`, none of which holds more than `largest` bytes."""
    room = (largest - _AROUND_PART) // 2  # what is escaped in a text of JSON grows to two bytes at most
    cuts = [0]
    while cuts[-1] < len(text):
        end = min(cuts[-1] + room, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:  # inside of a character
            end -= 1
        cuts.append(end)
    parts = len(cuts) - 1
    for part, (start, end) in enumerate(pairwise(cuts), 1):
        params = encode(Part(part=part, parts=parts, text=text[start:end].decode()))
        yield text_frame(b'{"jsonrpc":"2.0","method":"message/part","params":%b}' % params)


class Socket(Protocol):
    """What is written to."""

    def write_frames(self, frames: bytes) -> None:
        """Hand over whole frames."""
        ...


class Outlet:
    """Writes messages. One that is larger than the client takes goes in parts, with nothing between them."""

    __slots__ = ("_socket", "largest")

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.largest = 0
        """In bytes; 0: any size."""

    def write(self, chunk: Chunk) -> None:
        """Hand over; `chunk` holds one message a frame."""
        if not self.largest or chunk.size_bytes <= self.largest:
            self._socket.write_frames(chunk.data)
            return
        for frame in chunk.frames:
            text = text_of(frame)
            if len(text) <= self.largest:
                self._socket.write_frames(frame)
            else:
                for part in in_parts(text, self.largest):
                    self._socket.write_frames(part)


class SubscriptionWire:
    """The wire format of one subscription: a notification for each event."""

    __slots__ = ("name", "subscription")

    def __init__(self, number: int) -> None:
        self.subscription = f"sub_{number}"
        self.name = f"ws:{self.subscription}"

    def frame(self, event: str, data: bytes, cursor: str | None = None) -> bytes:
        """See `Wire.frame`. The data of a fact is, byte for byte, what SSE has."""
        data = one_line(data)
        members = b'{"%b":%b}' % (event.encode(), data) if event in _NESTED else data
        if cursor is not None and event in _NESTED:
            members = b'{"cursor":"%b",%b' % (cursor.encode(), members[1:])
        return text_frame(notification(f"run/{event}", self.subscription, members))
