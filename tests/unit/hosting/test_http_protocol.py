"""What a request may say before its body: so many bytes, and in time, whoever sends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from runlane.hosting.http_protocol import MAX_HEAD_BYTES, TransportProtocol
from runlane.hosting.http_server import HttpAddress, http_server
from runlane_contracts.codec import decode_json

OK = b"HTTP/1.1 200 OK"


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, and says how many bytes it had."""
    assert scope["type"] == "http"
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]})
    await send({"type": "http.response.body", "body": str(size).encode()})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with http_server(answers, drain_deadline_s=1.0) as address:
        yield await opened(address)


async def opened(address: HttpAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(address.host, address.port)


async def refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes) -> bytes:
    """Sends a piece again and again until the server has had enough; what it said, if that got through."""
    sent = 0
    try:
        while not reader.at_eof() and sent < 64 * MAX_HEAD_BYTES:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        assert sent < 64 * MAX_HEAD_BYTES, "nobody stopped it"
        writer.close()


@pytest.mark.parametrize("piece", [b"a" * 8192, b"\r\nX-Name: value" * 500])
async def test_a_head_without_an_end_is_refused(piece: bytes) -> None:
    """Take the count out of `data_received`: it is taken in for ever."""
    async with asyncio.timeout(20), connected() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")
        said = await refused(reader, writer, piece)
    if said:  # what was on its way when the server closed may have taken its words with it
        assert said.startswith(b"HTTP/1.1 413 ")
        assert decode_json(said.partition(b"\r\n\r\n")[2])["code"] == "payload_too_large"


async def test_a_head_in_many_pieces_bodies_and_the_next_requests_are_as_they_were() -> None:
    async with asyncio.timeout(20), connected() as (reader, writer):
        for _ in range(3):
            head = b"POST / HTTP/1.1\r\nHost: x\r\nX-A: %b\r\nContent-Length: %d\r\n\r\n"
            whole = head % (b"a" * 30_000, 5 * MAX_HEAD_BYTES)
            for start in range(0, len(whole), 997):
                writer.write(whole[start : start + 997])
                await writer.drain()
            writer.write(b"b" * 5 * MAX_HEAD_BYTES)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
            assert await reader.readexactly(6) == str(5 * MAX_HEAD_BYTES).encode()
        writer.close()


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHos", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT"])
async def test_who_never_comes_to_an_end_is_let_go_of(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take `_expect_head` out of either place: the connection stays."""
    monkeypatch.setattr(TransportProtocol, "head_s", 0.2)
    async with asyncio.timeout(20), connected() as (reader, writer):
        writer.write(begun)
        said = await reader.read(-1)  # until the server closes
        assert said.startswith(OK) is (begun.count(b"GET") > 1)
        writer.close()


async def test_who_keeps_a_connection_open_between_requests_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransportProtocol, "head_s", 0.2)
    async with asyncio.timeout(20), connected() as (reader, writer):
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
            assert await reader.readexactly(1) == b"0"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.6):  # three times as long as a head may take
                    await reader.readexactly(1)
        writer.close()
