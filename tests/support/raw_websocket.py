"""WebSocket clients that cost as little as a client can: bare sockets, whose bytes nobody parses."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from support.edge_process import KEY, RECEIVE_BUFFER_BYTES, EdgeProcess, RawWatch

HANDSHAKE = (
    "GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer {KEY}\r\n\r\n"
).encode()


def client_frame(method: str, id_: int | None = None, **params: Any) -> bytes:
    """Masked with zeros, which changes nothing."""
    message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id_ is None else {"id": id_})
    text = json.dumps(message).encode()
    size = bytes((0x80 | len(text),)) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + text


async def open_ws(edge: EdgeProcess, run_id: str | None, on_data: Callable[[bytes], None], **params: Any) -> RawWatch:
    """A connection, and a watch on it if there is a run."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_all(data: bytes) -> None:
        if not ready.done():
            if b"heartbeat_s" in data:
                ready.set_result(None)
            elif b" 101 " in data:
                transport.write(client_frame("initialize", 1, protocol_version=1))
            return
        on_data(data)

    own = socket.socket()
    own.setblocking(False)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    await loop.sock_connect(own, (edge.host, edge.port))
    transport, protocol = await loop.create_connection(lambda: RawWatch(on_all), sock=own)
    transport.write(HANDSHAKE)
    await ready
    if run_id is not None:
        transport.write(client_frame("run/watch", 2, run_id=run_id, credit=100_000, **params))
    edge.watches.append(protocol)
    return protocol
