"""uvicorn's HTTP/1.1, which also lets an application reach the transport of a connection it streams to.

A response that goes on for hours and is the same for many readers should not pay for a copy of every frame per
reader, nor for a task that only waits for the disconnect. Applications find the protocol in the scope's
`extensions` under `EXTENSION`; those that do not look for it notice nothing.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "runlane.transport"
WRITE_BUFFER_BYTES = 32 * 1024
"""What may wait in user space per connection before a writer has to wait."""
UNSENT_BYTES = 64 * 1024
"""What may wait in the kernel that the client's window does not take. Less is also fresher: what comes next waits
behind it."""
_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})


def bound_buffers(transport: asyncio.WriteTransport, *, high: int, low: int, kernel: int) -> None:
    """Of a connection that is streamed to: writers wait from `high` to `low` bytes; `kernel` 0: as it was."""
    transport.set_write_buffer_limits(high=high, low=low)
    own = transport.get_extra_info("socket")
    if kernel and own is not None and own.family in _INTERNET:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel)


class TransportProtocol(HttpToolsProtocol):
    """Offers itself to the application, and tells a listener of the connection's moods."""

    listener: Callable[[], None] | None = None
    """Called when there is room to write again, and when the connection is lost. Must be quick and not raise."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what a connection buffers, here and in the kernel, whose own bound is megabytes."""
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        own = transport.get_extra_info("socket")
        if own is not None and own.family in _INTERNET and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        super().connection_made(transport)

    def bound_buffers(self, *, high: int, low: int, kernel: int) -> None:
        """Of a connection that is streamed to: writers wait from `high` to `low` bytes; `kernel` 0: as it was."""
        bound_buffers(self.transport, high=high, low=low, kernel=kernel)

    def unframed(self) -> None:
        """The answer that now begins is told to its end by closing: a client of HTTP/1.0 knows no chunks."""
        self.cycle.chunked_encoding = False
        self.cycle.expected_content_length = 0

    def on_message_begin(self) -> None:
        """Offer this connection to the application."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: cast("dict[object, object]", self)}

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener at once."""
        super().connection_lost(exc)
        self._tell()

    def resume_writing(self) -> None:
        """Tell the listener that there is room."""
        super().resume_writing()
        self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener()
