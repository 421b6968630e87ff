"""The edge gateway as a process of its own, and clients that cost as little as a client can."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.provision import provision
from runlane.read_store import ReadStore
from runlane_contracts.streams import Layout
from support.nats import NatsServer, free_port, nats_server

KEY = "key-acme"
RECEIVE_BUFFER_BYTES = 128 * 1024
"""So that a client that does not read is noticed soon, and a thousand of them fit into the machine."""


@dataclass
class EdgeProcess:
    """A gateway, its broker, and a connection that may write the view."""

    host: str
    port: int
    server: NatsServer
    layout: Layout
    filter: Connection
    settings: dict[str, str]
    watches: "list[RawWatch]" = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, or start it again after `stop`, where it was."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runlane.edge_gateway",
            env={**os.environ, **self.settings, "RUNLANE_EDGE_HTTP_PORT": str(self.port)},
        )  # fmt: skip
        await _ready(self.port)

    async def stop(self, number: int = signal.SIGKILL) -> None:
        """End it, and see it gone."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()

    @property
    def pid(self) -> int:
        """The gateway's process."""
        assert self.process is not None
        return self.process.pid

    @property
    def rss_bytes(self) -> int:
        """What the gateway's process holds."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def cpu_s(self) -> float:
        """What the gateway's process has used."""
        return _cpu_s(self.pid)

    @property
    def broker_cpu_s(self) -> float:
        """What the broker's process has used."""
        return _cpu_s(self.server.pid or 0)

    async def watch(self, run_id: str, on_data: Callable[[bytes], None], query: str = "from=start") -> "RawWatch":
        """Open a watch on a bare socket."""
        loop = asyncio.get_running_loop()
        own = socket.socket()
        own.setblocking(False)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        await loop.sock_connect(own, (self.host, self.port))
        transport, protocol = await loop.create_connection(lambda: RawWatch(on_data), sock=own)
        transport.write(
            f"GET /v1/runs/{run_id}/watch?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        )
        self.watches.append(protocol)
        return protocol


class RawWatch(asyncio.Protocol):
    """Hands over what arrives, as it arrives. `pause` stops reading from the socket."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self.transport: asyncio.Transport
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(exc)

    def pause(self) -> None:
        """Read nothing more."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self.transport.resume_reading()

    def close(self) -> None:
        """Go away without a word."""
        self.transport.abort()


@asynccontextmanager
async def edge_process(directory: Path, *, layout: Layout, **environment: str) -> AsyncIterator[EdgeProcess]:
    """A gateway process that is ready."""
    store = f"sqlite:///{directory}/read.sqlite"
    async with nats_server(users=True, layout=layout) as server, ReadStore.open(store) as opened:
        await opened.create()
        assert server.passwords is not None
        operator = await _connect(server, "operator")
        await provision(operator, layout, now=utc_now)
        await operator.close()
        filter_ = await _connect(server, "redaction_filter")
        settings = {
            "RUNLANE_NATS_URL": server.url, "RUNLANE_NATS_PASSWORD": server.passwords["edge_gateway"],
            "RUNLANE_LOG_STREAMS": str(layout.log_streams), "RUNLANE_STREAM_MAX_BYTES": str(layout.max_bytes),
            "RUNLANE_READ_STORE_URL": store, "RUNLANE_API_KEYS": f"acme:{KEY}",
            "RUNLANE_CURSOR_KEYS": "k1:" + b"0123456789abcdef".hex(), "RUNLANE_HEALTH_PORT": "-1",
            **environment,
        }  # fmt: skip
        edge = EdgeProcess("127.0.0.1", free_port(), server, layout, filter_, settings)
        try:
            await edge.start()
            yield edge
        finally:
            for watch in edge.watches:
                watch.close()
            await edge.stop(signal.SIGTERM)
            await filter_.close()


def _cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


async def _ready(port: int) -> None:
    async with asyncio.timeout(20), httpx.AsyncClient(trust_env=False) as http:
        while True:
            try:
                if (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)


async def _connect(server: NatsServer, user: str) -> Connection:
    assert server.passwords is not None
    return await connect(url=server.url, user=user, password=server.passwords[user], name=user)
