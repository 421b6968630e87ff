"""The least that can serve a run as server-sent events: what the gateway is measured against.

It knows one run and one frame format, checks nothing, keeps nothing, and writes each live commit, framed once, to every
connection. `python -m support.bare_sse URL USER PASSWORD SUBJECT` prints its port.
"""

import asyncio
import sys

import uvloop

from runlane.kernel.connection import connect
from runlane_contracts.codec import decode_raw_commit
from runlane_contracts.cursor import CursorKeys, Position, Scope

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_READY = b"event: synced\ndata: {}\n\n"
_KEYS = CursorKeys(current="k1", keys={"k1": b"0123456789abcdef"})
_SCOPE = Scope("acme", "run_wide", "ui", "")


class _Reader(asyncio.Protocol):
    def __init__(self, everybody: set[asyncio.Transport]) -> None:
        self.everybody = everybody

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._transport.write(_HEAD + _chunk(_READY))
        self.everybody.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.everybody.discard(self._transport)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frames(body: bytes) -> bytes:
    """The same bytes as the gateway's: each fact with a cursor."""
    commit = decode_raw_commit(body)
    facts = enumerate(commit.facts, commit.first_sequence)
    return b"".join(
        b"event: fact\nid: %b\ndata: %b\n\n" % (_KEYS.seal(Position("e", 1, sequence), _SCOPE).encode(), bytes(raw))
        for sequence, raw in facts
    )


async def _serve(url: str, user: str, password: str, subject: str) -> None:
    connection = await connect(url=url, user=user, password=password, name="bare")
    everybody: set[asyncio.Transport] = set()

    async def arrived(message: object) -> None:
        framed = _chunk(_frames(message.data))  # type: ignore[attr-defined]
        for transport in everybody:
            transport.write(framed)

    await connection.nc.subscribe(subject, cb=arrived)
    await connection.nc.flush()
    server = await asyncio.get_running_loop().create_server(lambda: _Reader(everybody), "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:5]))
