"""`GET /v1/runs/{run_id}/watch` over real HTTP: what is said first, and to whom no chunks are sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runlane.edge_gateway.app import WatchEndpoint
from runlane.edge_gateway.memory_view import MemoryView
from runlane.hosting.authorizer import Principal
from runlane.hosting.http import Problems
from runlane.hosting.http_server import HttpAddress, http_server
from runlane_contracts import events
from runlane_contracts.codec import decode_json
from runlane_contracts.subjects import RunAddress
from support.edge import FrameParser, edge
from support.runs import Story

RUN = RunAddress("acme", "run_1")


class Everybody:
    """Lets everybody in as the same one."""

    async def authenticate(self, _bearer: str) -> Principal | None:
        return Principal("acme", "ann")

    def revalidate(self, principal: Principal) -> Principal | None:
        return principal


@asynccontextmanager
async def serving() -> AsyncIterator[HttpAddress]:
    view = MemoryView()
    view.store(RUN, Story().then(events.RunCreated(agent="a"), events.RunStarted(), events.RunCompleted()).facts)
    async with edge(view) as gateway:
        endpoint = WatchEndpoint(Everybody(), gateway.presence, gateway.watches)
        async with http_server(Problems(endpoint)) as address:
            yield address


async def asked(address: HttpAddress, path: str, version: str) -> tuple[bytes, dict[str, str], bytes]:
    """Status line, headers and body as they came, read until the server closes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(
        f"GET {path} HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(10):
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    return status.encode(), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, body


async def test_a_client_of_http_1_0_is_sent_no_chunks_and_the_end_is_the_end() -> None:
    """Take `unframed` out of `open_connection`: sizes of chunks stand between the frames."""
    async with serving() as address:
        status, headers, body = await asked(address, "/v1/runs/run_1/watch?from=start", "1.0")
    assert b" 200 " in status
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    frames = FrameParser().feed(body)
    assert [frame.event for frame in frames] == ["hello", "fact", "fact", "fact", "synced", "end"]


async def test_who_asks_for_a_run_that_is_not_there_learns_that_whatever_else_is_wrong() -> None:
    """Take `judging` out of `WatchEndpoint`: the parameter is what is complained of."""
    async with serving() as address:
        for query in ("previews=maybe", "types=%25", "min_sequence=-1", "last=0", "cursor=nonsense", "x=%ff"):
            _, _, absent = await asked(address, f"/v1/runs/run_2/watch?{query}", "1.1")
            _, _, there = await asked(address, f"/v1/runs/run_1/watch?{query}", "1.1")
            assert decode_json(absent)["code"] == "run_not_found"
            assert decode_json(there)["code"] in {"invalid_request", "cursor_invalid"}
