"""How frames get onto one connection: what a watcher needs of HTTP, and not more.

Under `hosting.http_server` a watcher writes straight to the transport: frames that a thousand watchers share are
handed over as one object, never copied per connection, and no second task waits for the disconnect.
Any other ASGI server works as well, through `send` and `receive`.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from runlane.edge_gateway.frames import Chunk
from runlane.edge_gateway.lanes import LaneBytes
from runlane.hosting.http_protocol import EXTENSION, TransportProtocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class ConnectionLost(Exception):
    """The client is gone."""


class Stalled(Exception):
    """The client does not read."""


class Connection(Protocol):
    """One response that goes on for a while."""

    @property
    def lost(self) -> bool:
        """Whether the client is gone; nothing can be written."""
        ...

    @property
    def writable(self) -> bool:
        """Whether `write_now` may be called: what is written is taken, or buffered while `paused`."""
        ...

    @property
    def paused(self) -> bool:
        """Whether the client has to take something first; `wake` tells when it has."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """What the client has not taken yet, as far as is known here."""
        ...

    def write_now(self, chunk: Chunk) -> None:
        """Hand over. Only while `writable`."""
        ...

    async def write(self, chunk: Chunk) -> None:
        """Hand over. Raises ConnectionLost, Stalled."""
        ...

    async def finish(self) -> None:
        """End the response as complete."""
        ...

    async def part(self, chunk: Chunk | None, *, within_s: float) -> None:
        """Say a last thing to a client that does not read, and be rid of it in time, whatever it does."""
        ...


async def open_connection(
    scope: Scope, receive: Receive, send: Send, headers: Headers, *,
    wake: Callable[[], None], stall_s: float, lanes: LaneBytes,
) -> "Connection":  # fmt: skip
    """Begin a streamed response. `wake` is called when there is room again, or the client is gone."""
    protocol = (scope.get("extensions") or {}).get(EXTENSION)
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    if not isinstance(protocol, TransportProtocol):
        await send(start)
        return AsgiConnection(receive, send, wake, stall_s)
    if scope["http_version"] == "1.0":
        protocol.unframed()
    await send(start)
    protocol.bound_buffers(high=lanes.previews, low=lanes.low, kernel=lanes.kernel)
    return TransportConnection(protocol, send, wake)


class TransportConnection:
    """Writes to the transport of a `TransportProtocol`."""

    __slots__ = ("_is_chunked", "_protocol", "_send", "_transport")

    def __init__(self, protocol: TransportProtocol, send: Send, wake: Callable[[], None]) -> None:
        self._protocol = protocol
        self._is_chunked = bool(protocol.cycle.chunked_encoding)
        self._transport = protocol.transport
        self._send = send
        protocol.listener = wake

    @property
    def lost(self) -> bool:
        """See `Connection.lost`."""
        return self._protocol.cycle.disconnected or self._transport.is_closing()

    @property
    def writable(self) -> bool:
        """See `Connection.writable`."""
        return not (self._protocol.cycle.disconnected or self._transport.is_closing())

    @property
    def paused(self) -> bool:
        """See `Connection.paused`."""
        return self._protocol.flow.write_paused and not self.lost

    @property
    def backlog_bytes(self) -> int:
        """See `Connection.backlog_bytes`."""
        return self._transport.get_write_buffer_size()

    def write_now(self, chunk: Chunk) -> None:
        """See `Connection.write_now`."""
        self._transport.write(self._bytes(chunk))

    async def write(self, chunk: Chunk) -> None:
        """See `Connection.write`."""
        if self.lost:
            raise ConnectionLost
        self._transport.write(self._bytes(chunk))

    async def finish(self) -> None:
        """See `Connection.finish`."""
        self._protocol.listener = None
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def part(self, chunk: Chunk | None, *, within_s: float) -> None:
        """See `Connection.part`."""
        if chunk is not None and not self.lost:
            self._transport.write(self._bytes(chunk) + (b"0\r\n\r\n" if self._is_chunked else b""))
            self._transport.close()  # after what is buffered, if the client ever takes it
        else:
            self._transport.abort()
        try:
            async with asyncio.timeout(within_s):
                await self._closed()
        except TimeoutError:
            self._transport.abort()
            await self._closed()

    def _bytes(self, chunk: Chunk) -> bytes:
        return chunk.framed if self._is_chunked else chunk.data

    async def _closed(self) -> None:
        # The server takes a response that is neither complete nor disconnected for a fault of ours.
        gone = asyncio.Event()
        self._protocol.listener = lambda: gone.set() if self._protocol.cycle.disconnected else None
        if not self._protocol.cycle.disconnected:
            await gone.wait()


class AsgiConnection:
    """Writes through `send`, and learns of a disconnect from `receive`."""

    __slots__ = ("_send", "_stall_s", "_wake", "backlog_bytes", "lost", "receive")

    def __init__(self, receive: Receive, send: Send, wake: Callable[[], None], stall_s: float) -> None:
        self.receive = receive
        self.lost = False
        self.backlog_bytes = 0
        self._send = send
        self._wake = wake
        self._stall_s = stall_s

    @property
    def writable(self) -> bool:
        """See `Connection.writable`: only `send` knows, and it may wait."""
        return False

    @property
    def paused(self) -> bool:
        """See `Connection.paused`: `write` waits itself."""
        return False

    def write_now(self, chunk: Chunk) -> None:  # noqa: ARG002
        """See `Connection.write_now`."""
        raise RuntimeError("never writable at once")

    async def write(self, chunk: Chunk) -> None:
        """See `Connection.write`."""
        await self._put(chunk.data, more_body=True)

    async def finish(self) -> None:
        """See `Connection.finish`."""
        await self._put(b"", more_body=False)

    async def part(self, chunk: Chunk | None, *, within_s: float) -> None:
        """See `Connection.part`: there is no way around `send`."""

    async def _put(self, body: bytes, *, more_body: bool) -> None:
        if self.lost:
            raise ConnectionLost
        try:
            async with asyncio.timeout(self._stall_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": more_body})
        except TimeoutError:
            raise Stalled from None
        except OSError as exc:
            raise ConnectionLost from exc

    async def watch_disconnect(self) -> None:
        """Wait until the client is gone; then say so."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.lost = True
        self._wake()
