"""Writes a VIEW stream as the redaction filter does, and runs a projector on it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from runlane.hosting.connections import Connections
from runlane.hosting.service import Running
from runlane.hosting.settings import CommonSettings
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.jetstream import api
from runlane.kernel.provision import provision
from runlane.projector.app import serve
from runlane.projector.settings import ProjectorSettings
from runlane_contracts import reducer
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE, LOG_POSITION
from runlane_contracts.streams import MIB, Layout
from runlane_contracts.subjects import RunAddress
from support.nats import SMALL, NatsServer

STREAM = SMALL.view_stream_at(0)


class ViewStream:
    """The VIEW of a server without users, or as the redaction filter's user."""

    def __init__(self, connection: Connection, layout: Layout = SMALL) -> None:
        self._connection = connection
        self._subjects = layout.subjects
        self.stored = 0

    async def put(self, *commits: Commit) -> None:
        """Store commits, one message each."""
        for one in commits:
            headers = {
                FIRST_SEQUENCE: str(one.first_sequence),
                LAST_SEQUENCE: str(one.last_sequence),
                LOG_POSITION: f"e:{self.stored + 1}",
            }
            await self.put_raw(RunAddress(one.tenant_id, one.run_id), encode(one), headers)

    async def put_raw(self, run: RunAddress, data: bytes, headers: dict[str, str]) -> None:
        """Store any message."""
        answer = await self._connection.request(self._subjects.view(*run), data, headers=headers)
        assert b'"seq"' in answer.data, answer.data
        self.stored += 1


@asynccontextmanager
async def view_stream(server: NatsServer, *, user: str | None = None) -> AsyncIterator[ViewStream]:
    """A provisioned server's VIEW, to be written to."""
    password = None if user is None else f"pw-{user}"
    connection = await connect(url=server.url, user=user, password=password, name="test")
    try:
        yield ViewStream(connection)
    finally:
        await connection.close()


async def provisioned(server: NatsServer, *, user: str | None = None) -> None:
    """Make the streams and durables."""
    password = None if user is None else f"pw-{user}"
    connection = await connect(url=server.url, user=user, password=password, name="provision")
    try:
        await provision(connection, SMALL, now=utc_now)
    finally:
        await connection.close()


async def unmake(server: NatsServer, verb: str) -> None:
    """``STREAM.DELETE.<stream>``, ``CONSUMER.DELETE.…``: on a server without users."""
    connection = await connect(url=server.url, name="harm")
    try:
        await api(connection, verb, answer=dict)
    finally:
        await connection.close()


async def cut(server: NatsServer, stream_seq: int) -> None:
    """Delete one message of the VIEW."""
    connection = await connect(url=server.url, name="harm")
    try:
        await api(connection, f"STREAM.MSG.DELETE.{STREAM}", {"seq": stream_seq, "no_erase": True}, answer=dict)
    finally:
        await connection.close()


def projector_settings(server: NatsServer, url: str, **more: object) -> ProjectorSettings:
    """Settings of a projector on a test server."""
    common = CommonSettings(nats_url=server.url, stream_max_bytes=64 * MIB)
    return ProjectorSettings(common=common, read_store_url=url, **more)  # type: ignore[arg-type]


@asynccontextmanager
async def running_projector(server: NatsServer, url: str, **more: object) -> AsyncIterator[Running]:
    """A projector that works."""
    passwords = server.passwords
    async with (
        Connections(url=server.url, passwords=passwords, instance="test") as connections,
        serve(projector_settings(server, url, **more), connections) as running,
    ):
        yield running


def replayed(facts: Iterable[Fact], run_id: str, tenant_id: str = "acme") -> str:
    """The checksum of a full replay."""
    state = reducer.initial_state(tenant_id, run_id)
    for fact in facts:
        reducer.reduce(state, fact)
    return reducer.checksum(state)
