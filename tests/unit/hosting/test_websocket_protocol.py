"""WebSocket beside HTTP on one port: what is no handshake is answered, and no bytes harm more than one connection."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect

from runlane.hosting.http_server import HttpAddress, http_server
from runlane.hosting.websocket_protocol import EXTENSION, WebSocketProtocol

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(b"0123456789abcdef") + b"\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await Response(f"{scope['method']} {scope['path']}")(scope, receive, send)
        return
    assert isinstance(scope["extensions"][EXTENSION], WebSocketProtocol)
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": str(message.get("text"))})


@asynccontextmanager
async def serving() -> AsyncIterator[HttpAddress]:
    async with http_server(echo, drain_deadline_s=1.0) as address:
        yield address


async def answer(address: HttpAddress, request: bytes, wanted: bytes) -> bytes:
    """What the server says until it closes, or has said what is wanted."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    said = b""
    async with asyncio.timeout(10):
        while wanted not in said and (data := await reader.read(65_536)):
            said += data
    writer.close()
    return said


async def is_well(address: HttpAddress) -> bool:
    async with httpx.AsyncClient(base_url=address.url, trust_env=False) as http:
        first, second = await http.get("/a"), await http.post("/b", content=b"x" * 100_000)
    async with connect(f"ws://{address.host}:{address.port}/ws", proxy=None) as socket:
        await socket.send("hello")
        return (first.text, second.text, await socket.recv()) == ("GET /a", "POST /b", "hello")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HANDSHAKE.replace(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 8"), b" 400 "),
        (HANDSHAKE.replace(b"Sec-WebSocket-Key: ", b"X-Key: "), b" 400 "),
        (HANDSHAKE.replace(b"GET ", b"POST "), b" 40"),
        (HANDSHAKE.replace(b"/ws", b"/" + b"w" * 9_000), b" 400 "),
        (HANDSHAKE.replace(b"Host: x", b"Host: x\r\nX-Long: " + b"y" * 9_000), b" 400 "),
        (HANDSHAKE.replace(b"Upgrade: websocket", b"Upgrade: h2c"), b"GET /ws"),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"GET /a"),
    ],
)
async def test_what_is_no_handshake_is_answered_and_not_left_waiting(request_: bytes, status: bytes) -> None:
    async with serving() as address:
        assert status in await answer(address, request_, status)
        assert await is_well(address)


async def test_bytes_of_any_kind_end_one_connection_and_nothing_else() -> None:
    chance = random.Random(7)
    async with serving() as address:
        for _ in range(40):
            noise = chance.randbytes(chance.randint(1, 400))
            said = await asyncio.wait_for(exchange(address, HANDSHAKE, noise), 5)
            assert said.startswith(b"HTTP/1.1 101 ")
        assert await is_well(address)


async def exchange(address: HttpAddress, *parts: bytes) -> bytes:
    """What the server says to a handshake and then to a frame, until it closes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(parts[0])
    said = await reader.read(65_536)
    writer.write(parts[1])
    writer.write_eof()
    try:
        while data := await reader.read(65_536):
            said += data
    except ConnectionError:
        pass
    writer.close()
    return said


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x05hello", 1002),  # not masked
        (b"\xc1\x80abcd", 1002),  # compressed, though nobody agreed to it
        (b"\x83\x80abcd", 1002),  # no such kind
        (b"\x80\x80abcd", 1002),  # goes on with nothing
        (b"\x81\xff" + (2**40).to_bytes(8, "big") + b"abcd", 1009),
        (b"\x89\xfe\x00\x80abcd" + b"x" * 128, 1002),  # a ping is short
        (b"\x81\x82\x00\x00\x00\x00\xff\xff", 1007),  # no UTF-8
        (b"\x88\x82\x00\x00\x00\x00\x03\xe8", 1000),
    ],
)
async def test_who_breaks_the_rules_of_frames_is_told_which_kind(frame: bytes, code: int) -> None:
    async with serving() as address:
        said = await exchange(address, HANDSHAKE, frame)
        closing = said.partition(b"\r\n\r\n")[2]
        assert closing[:1] == b"\x88"
        assert int.from_bytes(closing[2:4], "big") == code
        assert await is_well(address)


async def test_a_message_in_many_pieces_is_one_and_is_bounded_like_one() -> None:
    async with serving() as address, connect(f"ws://{address.host}:{address.port}/ws", proxy=None) as socket:
        await socket.send(["ab", "cd", "", "ef"])
        assert await socket.recv() == "abcdef"
        await socket.send(["x" * 300_000] * 4)
        await socket.wait_closed()
        assert socket.close_code == 1009


async def test_stopping_closes_who_was_not_told() -> None:
    async with serving() as address:
        socket = await connect(f"ws://{address.host}:{address.port}/ws", proxy=None)
        await socket.send("hello")
        assert await socket.recv() == "hello"
    await socket.wait_closed()
    assert socket.close_code == 1012
