"""Serve an ASGI application from the loop that runs everything else."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from runlane.hosting.http_protocol import TransportProtocol
from runlane.hosting.websocket_protocol import WebSocketProtocol
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

BACKLOG = 2048
START_DEADLINE_S = 10.0
MAX_MESSAGE_BYTES = 1024 * 1024
"""Of a WebSocket message; a longer one closes the connection with 1009 before it is read."""


class HttpPortTaken(OSError):
    """Something else listens there."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """For clients."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host  # noqa: S104  not bound here
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@asynccontextmanager
async def http_server(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    drain_deadline_s: float = 5.0,
    keep_alive_s: int = 75,
) -> AsyncIterator[HttpAddress]:
    """Listening inside the block; port 0 takes a free one.

    On leaving: no new connections, and what is under way has `drain_deadline_s` before it is broken off.

    Raises:
        HttpPortTaken: on entering.
    """
    listener = _listen(host, port)
    address = HttpAddress(host, listener.getsockname()[1])
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=TransportProtocol,
            ws=WebSocketProtocol,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=None,  # applications ask themselves, and cut off who is dead
            ws_per_message_deflate=False,
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=keep_alive_s,
            timeout_graceful_shutdown=max(1, round(drain_deadline_s)),
            backlog=BACKLOG,
        )
    )
    # No task group: it would wrap whatever the block raises.
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name=f"http {address.port}")
    try:
        await server.listening(serving)
        log.info("listening", extra={"event": LogEvent.HTTP_LISTENING, "url": address.url})
        yield address
    finally:
        server.should_exit = True
        await asyncio.wait({serving}, timeout=drain_deadline_s + 1.0)
        serving.cancel()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        raise HttpPortTaken(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listener


class _Server(uvicorn.Server):
    """Signals are the service's business, not this one's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def listening(self, serving: "asyncio.Task[None]") -> None:
        async with asyncio.timeout(START_DEADLINE_S):
            while not self.started and not serving.done():  # noqa: ASYNC110  uvicorn has no event for it
                await asyncio.sleep(0.002)
