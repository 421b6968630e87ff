"""uvicorn's WebSocket, which also lets an application write whole frames to the transport of its connection.

Frames that are the same for many readers are made once; whoever writes them sees at any time whether the client takes
them. Applications find the protocol in the scope's `extensions` under `EXTENSION`.
"""

from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from runlane.hosting.http_protocol import bound_buffers

EXTENSION = "runlane.websocket"
LINGER_S = 5.0
"""How long a connection that is over may take to hand over what was written."""
MAX_REASON = 120
"""Characters of ASCII that fit into a close frame."""

_BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Offers itself to the application, and tells a listener of the connection's moods."""

    listener: Callable[[], None] | None = None
    """Called when there is room to write again, and when the connection is lost. Must be quick and not raise."""
    heard_at = 0.0
    """When the last bytes came, by the loop's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pong_due = b""

    # --- what an application may do -------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether frames may be written: accepted, and neither side has said that it closes."""
        return self.conn.state is State.OPEN and not self.transport.is_closing()

    @property
    def is_paused(self) -> bool:
        """Whether the client has to take something first."""
        return not self.writable.is_set()

    @property
    def backlog_bytes(self) -> int:
        """What waits in user space."""
        return self.transport.get_write_buffer_size()

    def bound_buffers(self, *, high: int, low: int, kernel: int) -> None:
        """Writers wait from `high` to `low` bytes; `kernel` 0: as it was."""
        bound_buffers(self.transport, high=high, low=low, kernel=kernel)

    def write_frames(self, frames: bytes) -> None:
        """Hand over whole frames, made for a server. Ignored unless `is_open`."""
        if self.is_open:
            self.transport.write(frames)

    def ping(self) -> None:
        """Ask whether the client is there: any answer moves `heard_at`."""
        if self.is_open:
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))

    def say_close(self, code: int, reason: str, *, within_s: float) -> None:
        """Close, after what was written. A client that does not answer in time is cut off. Never waits."""
        if self.is_open:
            self.conn.send_close(code, reason[:MAX_REASON])
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.close_timer = self.loop.call_later(within_s, self.transport.abort)
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()

    def abort(self) -> None:
        """Be rid of the client, whatever it has not taken."""
        self.transport.abort()

    # --- what happens to it ---------------------------------------------------------------------------------

    def handle_connect(self, event: Request) -> None:
        """Offer this connection to the application."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.close_sent:
            self.scope["extensions"] = {
                **(self.scope["extensions"] or {}),
                EXTENSION: cast("dict[object, object]", self),
            }
        elif self.close_sent:
            self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Note that the client is alive."""
        self.heard_at = self.loop.time()
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            # What cannot even be read as a handshake would otherwise wait for ever.
            self.transport.write(_BAD_HANDSHAKE)
            self.transport.close()

    def handle_ping(self) -> None:
        """A client that pings and does not read gets the newest answer only (RFC 6455, 5.5.3), so that none pile up."""
        if self.is_paused:
            self._pong_due = b"".join(self.conn.data_to_send())
        else:
            super().handle_ping()

    def resume_writing(self) -> None:
        """Tell the listener that there is room."""
        super().resume_writing()
        pong, self._pong_due = self._pong_due, b""
        if pong and self.is_open:
            self.transport.write(pong)
        self._tell()

    def shutdown(self) -> None:
        """The server stops. Who was told already, and is given its time, keeps it."""
        if not (self.close_sent and self.close_timer is not None):
            super().shutdown()

    def handle_close(self, event: Frame) -> None:
        """Tell the listener at once: nothing may be written after this."""
        super().handle_close(event)
        self._linger()
        self._tell()

    def handle_parser_exception(self) -> None:
        """The client does not follow the protocol; it was told which rule it broke."""
        super().handle_parser_exception()
        self._linger()
        self._tell()

    def eof_received(self) -> None:
        """The client sends nothing more; it may still read what it was told."""
        super().eof_received()
        self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener at once."""
        super().connection_lost(exc)
        self._tell()

    def _linger(self) -> None:
        """A client that said good-bye and takes nothing must not keep what is buffered for it."""
        if self.close_timer is None and not self.disconnected:
            self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener()
