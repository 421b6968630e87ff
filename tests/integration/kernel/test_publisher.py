"""The windowed publisher on a real server: every future ends, and says why."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from runlane.kernel.connection import Connection, connect
from runlane.kernel.errors import Conflict, Overloaded, Permanent, Retryable
from runlane.kernel.publisher import WindowedPublisher
from support.nats import NatsServer, nats_server


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(url=server.url, name="test")
    await connection.nc.jetstream().add_stream(name="S", subjects=["s.>"], max_bytes=200_000, discard="new")
    yield connection
    await connection.close()


async def test_publishes_are_stored_in_the_order_of_their_calls(connection: Connection) -> None:
    async with WindowedPublisher(connection, window=16) as publisher:
        futures = [await publisher.send("s.a", b"%d" % i) for i in range(100)]
        acks = await asyncio.gather(*futures)
    assert [ack.seq for ack in acks] == list(range(1, 101))
    assert publisher.in_flight == 0


async def test_a_wrong_expected_sequence_is_a_conflict_that_tells_where_the_subject_is(connection: Connection) -> None:
    async with WindowedPublisher(connection) as publisher:
        await publisher.publish("s.a", b"1")
        with pytest.raises(Conflict) as caught:
            await publisher.publish("s.a", b"2", {"Nats-Expected-Last-Subject-Sequence": "0"})
    assert caught.value.current_seq == 1


async def test_the_same_message_id_twice_is_stored_once(connection: Connection) -> None:
    async with WindowedPublisher(connection) as publisher:
        first = await publisher.publish("s.a", b"1", {"Nats-Msg-Id": "m"})
        second = await publisher.publish("s.a", b"1", {"Nats-Msg-Id": "m"})
    assert (first.seq, first.duplicate, second.seq, second.duplicate) == (1, False, 1, True)


async def test_a_full_stream_says_overloaded(connection: Connection) -> None:
    async with WindowedPublisher(connection) as publisher:
        for _ in range(3):
            await publisher.publish("s.a", b"x" * 60_000)
        with pytest.raises(Overloaded):
            await publisher.publish("s.a", b"x" * 60_000)


async def test_a_subject_without_a_stream_is_retryable_at_once(connection: Connection) -> None:
    async with WindowedPublisher(connection) as publisher:
        with pytest.raises(Retryable):
            await publisher.publish("elsewhere", b"", timeout_s=30)


async def test_what_is_too_large_with_its_headers_is_refused_and_the_connection_lives(connection: Connection) -> None:
    size = connection.max_payload - 10
    async with WindowedPublisher(connection) as publisher:
        with pytest.raises(Permanent):
            await publisher.publish("s.a", b"x" * size, {"h": "y" * 100})
        with pytest.raises(Permanent):
            await publisher.publish("s.a", b"x" * (size + 100))
        with pytest.raises(Permanent):
            await publisher.publish("s.a", b"", {"bad header": "x"})
        assert (await publisher.publish("s.a", b"fine")).seq == 1
        assert publisher.in_flight == 0


async def test_no_answer_in_time_is_retryable_and_frees_its_slot(server: NatsServer, connection: Connection) -> None:
    async with WindowedPublisher(connection, window=2) as publisher:
        await publisher.publish("s.a", b"")
        server.pause()
        results = await asyncio.gather(
            *(publisher.publish("s.a", b"", timeout_s=0.2) for _ in range(4)), return_exceptions=True
        )
        server.cont()
        assert all(isinstance(result, Retryable) for result in results)
        assert publisher.in_flight == 0
        await publisher.publish("s.a", b"")


async def test_a_lost_link_fails_what_is_under_way_and_nothing_unsent_is_written_later(
    server: NatsServer, connection: Connection
) -> None:
    """Take `forget_unsent` out of the client and the messages turn up in the stream."""
    async with WindowedPublisher(connection) as publisher:
        await publisher.publish("s.a", b"")
        server.pause()
        for _ in range(6):  # more than the sockets hold, so that what follows stays with the client
            await connection.nc.publish("elsewhere", bytes(1_000_000))
        await asyncio.sleep(0.05)
        futures = [await publisher.send("s.a", b"x", timeout_s=60) for _ in range(100)]
        server.kill9()
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
        assert all(isinstance(result, Retryable) for result in results)
        with pytest.raises(Retryable):
            await publisher.publish("s.a", b"while away")
        await server.start()
        async with asyncio.timeout(10):
            while not connection.is_connected:
                await asyncio.sleep(0.02)
        assert (await publisher.publish("s.a", b"")).seq == 2


async def test_a_cancelled_publish_gives_its_slot_back_when_the_answer_comes(connection: Connection) -> None:
    async with WindowedPublisher(connection, window=1) as publisher:
        task = asyncio.ensure_future(publisher.publish("s.a", b""))
        while not publisher.in_flight:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(2):
            assert (await publisher.publish("s.a", b"")).seq == 2
