"""The log, its readers and the buckets work with the rights that each service has, and need no others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.commit_reader import CommitReader
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict
from runlane.kernel.event_log import NOTHING
from runlane.kernel.kv import Bucket
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.codec import encode
from support.builders import a_commit, a_run
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server

RUN = a_run()


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server(users=True) as server:
        async with user(server, "operator") as operator:
            await provision(operator, SMALL, now=utc_now)
        yield server


@asynccontextmanager
async def user(server: NatsServer, name: str) -> AsyncIterator[Connection]:
    """A connection as one of the users; nothing it does may be refused."""
    connection = await connect(url=server.url, user=name, password=f"pw-{name}", name=name)
    try:
        yield connection
        await connection.nc.flush()
        assert connection.permission_violations == 0, connection.last_error
    finally:
        await connection.close()


@pytest.mark.parametrize("name", ["command_gateway", "run_supervisor", "worker"])
async def test_who_may_append_can_commit_settle_and_read(server: NatsServer, name: str) -> None:
    async with user(server, name) as connection:
        log = NatsEventLog(connection, SMALL)
        first = await log.commit(a_commit(RUN, NOTHING, 2), after=NOTHING)
        assert await log.commit(a_commit(RUN, NOTHING, 2), after=NOTHING) == first
        with pytest.raises(Conflict):
            await log.commit(a_commit(RUN, NOTHING, commit_id="other"), after=NOTHING)
        assert [stored.position async for stored in log.read(RUN)] == [first]
        await log.close()


async def test_a_worker_follows_its_run(server: NatsServer) -> None:
    async with user(server, "worker") as connection:
        log = NatsEventLog(connection, SMALL)
        first = await log.commit(a_commit(RUN, NOTHING), after=NOTHING)
        async with contextlib.aclosing(log.tail(RUN)) as commits, asyncio.timeout(10):
            assert (await anext(commits)).position == first
            second = await log.commit(a_commit(RUN, first), after=first)
            assert (await anext(commits)).position == second
        await log.close()


async def test_the_edge_gateway_reads_and_follows_the_view(server: NatsServer) -> None:
    async with (
        user(server, "redaction_filter") as writer,
        user(server, "edge_gateway") as connection,
        DirectReader(connection) as direct,
        WindowedPublisher(writer) as publisher,
    ):
        reader = CommitReader(connection, direct, SMALL, family="view")
        commit = a_commit(RUN, NOTHING, 3)
        async with contextlib.aclosing(reader.tail_raw(RUN)) as commits, asyncio.timeout(10):
            coming = asyncio.ensure_future(anext(commits))
            await asyncio.sleep(0.2)
            await publisher.publish(SMALL.subjects.view(*RUN), encode(commit), {"Rl-Last-Sequence": "3"})
            stored = await coming
        assert stored.data == encode(commit)
        heads = await reader.heads([RUN, a_run("none")])
        assert {run: head.position for run, head in heads.items()} == {RUN: stored.position}


@pytest.mark.parametrize("name", ["command_gateway", "run_supervisor", "worker"])
async def test_who_may_hold_leases_can_use_their_bucket(server: NatsServer, name: str) -> None:
    async with (
        user(server, name) as connection,
        DirectReader(connection) as direct,
        WindowedPublisher(connection) as publisher,
    ):
        bucket = Bucket(publisher, direct, SMALL.lease_bucket)
        revision = await bucket.create("acme.run_1", b"1")
        revision = await bucket.update("acme.run_1", b"2", revision)
        with pytest.raises(Conflict):
            await bucket.create("acme.run_1", b"3")
        await bucket.delete("acme.run_1", revision)
        assert await bucket.get("acme.run_1") is None


async def test_the_supervisor_watches_leases(server: NatsServer) -> None:
    async with (
        user(server, "run_supervisor") as connection,
        DirectReader(connection) as direct,
        WindowedPublisher(connection) as publisher,
    ):
        bucket = Bucket(publisher, direct, SMALL.lease_bucket)
        await bucket.create("acme.run_1", b"1")
        seen: list[str] = []

        async def watch() -> None:
            async with contextlib.aclosing(bucket.watch()) as changes:
                async for change in changes:
                    seen.extend(entry.key for entry in change.entries)

        watching = asyncio.ensure_future(watch())
        await eventually(lambda: seen == ["acme.run_1"])
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
