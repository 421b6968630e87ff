"""A proxy that adds who is asking and cuts connections in the middle of an answer, wherever that is."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

HEAD_END = b"\r\n\r\n"
_PIECE = 16 * 1024


@dataclass
class CuttingProxy:
    """One request a connection. The first `certain` answers are cut, then `share` of them, after 1 to `max_bytes`."""

    upstream: str
    token: str
    chance: random.Random
    certain: int = 5
    share: float = 0.3
    max_bytes: int = 400_000
    only: str = "/watch"
    """Only answers to requests with this in their first line are cut."""
    url: str = ""
    answers: int = 0
    cuts: int = 0
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one connection."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop what is open."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(HEAD_END)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        there = urlsplit(self.upstream)
        from_server, to_server = await asyncio.open_connection(there.hostname, there.port)
        try:
            to_server.write(self._changed(head))
            await self._pass_on(from_server, writer, self._cut_after(head))
        except ConnectionError:
            pass
        finally:
            to_server.transport.abort()
            writer.transport.abort()

    def _changed(self, head: bytes) -> bytes:
        lines = [
            line for line in head.removesuffix(HEAD_END).split(b"\r\n")
            if not line.lower().startswith((b"connection:", b"authorization:"))
        ]  # fmt: skip
        own = [b"Connection: close", b"Authorization: Bearer " + self.token.encode()]
        return b"\r\n".join([*lines, *own]) + HEAD_END

    def _cut_after(self, head: bytes) -> int | None:
        if self.only.encode() not in head.partition(b"\r\n")[0]:
            return None
        self.answers += 1
        if self.answers > self.certain and self.chance.random() >= self.share:
            return None
        return self.chance.randint(1, self.max_bytes)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
        while data := await reader.read(_PIECE):
            if left is not None and len(data) >= left:
                writer.write(data[:left])
                await writer.drain()
                self.cuts += 1
                return
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        await asyncio.sleep(0.05)  # what is still on its way arrives before the connection is dropped


@asynccontextmanager
async def cutting_proxy(upstream: str, token: str, *, seed: int, **how: float) -> AsyncIterator[CuttingProxy]:
    """On a free port of loopback."""
    proxy = CuttingProxy(upstream, token, random.Random(seed), **how)  # type: ignore[arg-type]
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
