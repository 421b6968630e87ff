"""A whole edge gateway: real broker with its users, real HTTP, and a hand that writes the view as the filter would."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from runlane.edge_gateway.app import serve
from runlane.edge_gateway.settings import EdgeGatewaySettings
from runlane.hosting.connections import Connections
from runlane.hosting.http_server import http_server
from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.provision import provision
from runlane.read_store import ReadStore
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import COMMIT_ID, FIRST_SEQUENCE, LAST_SEQUENCE, LOG_POSITION
from runlane_contracts.streams import Layout
from support.edge import Frame, FrameParser
from support.nats import SMALL, NatsServer, nats_server

ACCESS = AccessSettings(
    api_keys="acme:key-acme,other:key-other",  # type: ignore[arg-type]
    cursor_keys="k1:" + b"0123456789abcdef".hex(),  # type: ignore[arg-type]
)


@dataclass
class EdgeServer:
    """The gateway and what is around it."""

    url: str
    server: NatsServer
    layout: Layout
    filter: Connection
    supervisor: Connection
    store: ReadStore
    http: httpx.AsyncClient
    drain: Callable[[], Awaitable[None]]
    log_epoch: str = ""
    log_seq: int = 0

    async def log_only(self, facts: Sequence[Fact]) -> None:
        """A commit that the filter has not reached yet."""
        await self._publish(self.supervisor, self.layout.subjects.log(facts[0].tenant_id, facts[0].run_id), facts, {})
        self.log_seq += 1

    async def view_only(self, facts: Sequence[Fact], *, log_seq: int | None = None) -> None:
        """What the filter derives from a commit."""
        position = f"{self.log_epoch}:{self.log_seq if log_seq is None else log_seq}"
        subject = self.layout.subjects.view(facts[0].tenant_id, facts[0].run_id)
        await self._publish(self.filter, subject, facts, {LOG_POSITION: position})

    async def commit(self, facts: Sequence[Fact]) -> None:
        """A commit in the log, derived at once."""
        await self.log_only(facts)
        await self.view_only(facts)

    async def preview(self, tenant_id: str, run_id: str, body: bytes) -> None:
        """A batch of previews as the filter passes it on."""
        await self.filter.nc.publish(self.layout.subjects.preview_view(tenant_id, run_id), body)
        await self.filter.nc.flush()

    async def _publish(
        self, connection: Connection, subject: str, facts: Sequence[Fact], headers: Mapping[str, str]
    ) -> None:
        first, last = facts[0], facts[-1]
        commit = Commit(
            commit_id=f"cmt_{first.run_id}_{first.sequence}", tenant_id=first.tenant_id, run_id=first.run_id,
            first_sequence=first.sequence, facts=tuple(facts),
        )  # fmt: skip
        own = {
            COMMIT_ID: commit.commit_id, FIRST_SEQUENCE: str(first.sequence), LAST_SEQUENCE: str(last.sequence)
        }  # fmt: skip
        await connection.request(subject, encode(commit), headers={**own, **headers})

    async def view_epoch(self) -> str:
        """The incarnation of the VIEW stream."""
        async with DirectReader(self.filter) as reader:
            return (await reader.stream_state(self.layout.view_stream_at(0))).epoch

    async def get(self, path: str, key: str = "key-acme", **params: Any) -> httpx.Response:
        """A read."""
        return await self.http.get(path, params=params, headers={"Authorization": f"Bearer {key}"})

    @asynccontextmanager
    async def watch(
        self, run_id: str, *, key: str = "key-acme", last_event_id: str | None = None, **params: Any
    ) -> AsyncIterator["Watch"]:
        """An open watch."""
        headers = {"Authorization": f"Bearer {key}"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        query = {name.removesuffix("_"): value for name, value in params.items()}
        async with self.http.stream("GET", f"/v1/runs/{run_id}/watch", params=query, headers=headers) as response:
            yield Watch(response)


class Watch:
    """Frames of an open watch."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.status = response.status_code
        self.frames: list[Frame] = []
        self._parser = FrameParser()
        self._bytes = response.aiter_raw()

    async def until(self, *events: str) -> list[Frame]:
        """All frames so far, once one of these events is among them."""
        while not any(frame.event in events for frame in self.frames):
            await self.more()
        return self.frames

    async def facts(self, count: int) -> list[Frame]:
        """The fact frames so far, once there are so many."""
        while len(self.of("fact")) < count:
            await self.more()
        return self.of("fact")

    async def over(self) -> list[Frame]:
        """All frames."""
        async for data in self._bytes:
            self.frames += self._parser.feed(data)
        return self.frames

    async def previews(self, count: int) -> list[Frame]:
        """The preview frames so far, once there are so many."""
        while len(self.of("preview")) < count:
            await self.more()
        return self.of("preview")

    async def more(self) -> None:
        """Wait for more bytes."""
        self.frames += self._parser.feed(await anext(self._bytes))

    def of(self, event: str) -> list[Frame]:
        """The frames of one kind."""
        return [frame for frame in self.frames if frame.event == event]

    @property
    def sequences(self) -> list[int]:
        """The sequences of the facts, as they came."""
        return [frame.data["sequence"] for frame in self.of("fact")]


@asynccontextmanager
async def edge_server(directory: Path, *, layout: Layout = SMALL, **settings: Any) -> AsyncIterator[EdgeServer]:
    """A gateway on a free port, and a broker."""
    store_url = f"sqlite:///{directory}/read.sqlite"
    defaults = {
        "read_store_url": store_url, "command_gateway_url": None, "sweep_s": 0.2, "http_port": 0, "access": ACCESS,
        "common": CommonSettings(log_streams=layout.log_streams, stream_max_bytes=layout.max_bytes),
    }  # fmt: skip
    chosen = EdgeGatewaySettings(**defaults | settings)
    async with nats_server(users=True, layout=layout) as server:
        operator = await _connect(server, "operator")
        await provision(operator, layout, now=utc_now)
        filter_, supervisor = await _connect(server, "redaction_filter"), await _connect(server, "run_supervisor")
        connections = Connections(url=server.url, passwords=server.passwords, instance="test")
        async with (
            connections,
            ReadStore.open(store_url) as store,
            DirectReader(supervisor) as reader,
        ):
            await store.create()
            epoch = (await reader.stream_state(layout.log_stream_at(0))).epoch
            async with serve(chosen, connections) as running:
                assert running.asgi is not None
                async with (
                    http_server(running.asgi) as address,
                    httpx.AsyncClient(base_url=address.url, timeout=15, trust_env=False) as http,
                ):
                    assert running.drain is not None
                    yield EdgeServer(
                        address.url, server, layout, filter_, supervisor, store, http, running.drain, log_epoch=epoch
                    )
                    await running.drain()
        for connection in (operator, filter_, supervisor):
            await connection.close()


async def _connect(server: NatsServer, user: str) -> Connection:
    assert server.passwords is not None
    return await connect(url=server.url, user=user, password=server.passwords[user], name=user)
