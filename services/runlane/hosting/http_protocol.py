"""uvicorn's HTTP/1.1, which also lets an application reach the transport of a connection it streams to.

A response that goes on for hours and is the same for many readers should not pay for a copy of every frame per
reader, nor for a task that only waits for the disconnect. Applications find the protocol in the scope's
`extensions` under `EXTENSION`; those that do not look for it notice nothing.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from runlane_contracts.codec import encode
from runlane_contracts.problems import Code, problem_document

EXTENSION = "runlane.transport"
WRITE_BUFFER_BYTES = 32 * 1024
"""What may wait in user space per connection before a writer has to wait."""
UNSENT_BYTES = 64 * 1024
"""What may wait in the kernel that the client's window does not take. Less is also fresher: what comes next waits
behind it."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request before its body, and of what came with its beginning. Whoever sends more may be anybody: it is refused
before it is asked who that is."""
HEAD_S = 30.0
"""By when that much has to be there, from the connection or from the beginning of the next request on."""
_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})

_PROBLEM = encode(problem_document(Code.PAYLOAD_TOO_LARGE, f"the head of a request has {MAX_HEAD_BYTES} bytes at most"))
_TOO_LARGE = (
    b"HTTP/1.1 413 Content Too Large\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
) % (len(_PROBLEM), _PROBLEM)


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
    head_s: float = HEAD_S
    _in_head = True
    _head_bytes = 0
    _is_first_piece = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what a connection buffers, here and in the kernel, whose own bound is megabytes."""
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        own = transport.get_extra_info("socket")
        if own is not None and own.family in _INTERNET and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Bound what a request says before its body."""
        super().data_received(data)
        if self._is_first_piece:
            self._is_first_piece = False  # what was before it in the same piece is not its own
        elif self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()

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
        self._in_head, self._head_bytes, self._is_first_piece = True, 0, True
        self._expect_head()
        self.scope["extensions"] = {EXTENSION: cast("dict[object, object]", self)}

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._forget_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener at once."""
        self._forget_head()
        super().connection_lost(exc)
        self._tell()

    def resume_writing(self) -> None:
        """Tell the listener that there is room."""
        super().resume_writing()
        self._tell()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self.transport.close()

    def _refuse_head(self) -> None:
        """Say so, unless an answer to the request before is under way, and be gone."""
        before = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if not self.transport.is_closing() and (before is None or before.response_complete):
            self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener()
