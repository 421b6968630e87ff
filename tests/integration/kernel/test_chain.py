"""One writer of a whole stream, pipelined: nothing that goes wrong in the middle stays unnoticed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from runlane.kernel.chain import ChainMessage, ChainPublisher
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, KernelError, Overloaded, Permanent, Retryable
from support.nats import NatsServer, nats_server


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(url=server.url, name="test")
    await connection.nc.jetstream().add_stream(
        name="S", subjects=["s.>"], max_bytes=200_000, discard="new", allow_direct=True
    )
    yield connection
    await connection.close()


def batch(first: int, count: int, size: int = 10) -> list[ChainMessage]:
    return [(f"s.{n % 3}", b"%d" % n + b" " * size, {"n": str(n)}) for n in range(first, first + count)]


async def stored(connection: Connection) -> list[int]:
    async with DirectReader(connection) as direct:
        return [int(m.data) async for page in direct.pages("S", "s.>") for m in page.messages]


async def test_batches_in_flight_are_stored_in_order_and_answer_their_last_sequence(connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0, window_batches=4) as chain:
        futures = [await chain.submit(batch(10 * i, 10)) for i in range(20)]
        assert await asyncio.gather(*futures) == [10 * (i + 1) for i in range(20)]
        assert chain.last_seq == 200
    assert await stored(connection) == list(range(200))


async def test_a_second_writer_in_between_is_noticed_and_breaks_the_chain(connection: Connection) -> None:
    """Send without the expected sequence and both writers' messages are stored, mixed."""
    async with ChainPublisher(connection, last_seq=0) as chain:
        await chain.write(batch(0, 5))
        await connection.nc.jetstream().publish("s.0", b"100")
        futures = [await chain.submit(batch(5 + 4 * i, 4)) for i in range(3)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, Conflict) for result in results)
        with pytest.raises(Conflict):
            await chain.write(batch(50, 1))
        assert chain.last_seq == 5
    assert (await stored(connection))[:6] == [0, 1, 2, 3, 4, 100]


async def test_a_chain_opened_behind_or_ahead_of_the_stream_is_a_conflict(connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0) as first:
        await first.write(batch(0, 3))
    for wrong in (0, 2, 4):
        async with ChainPublisher(connection, last_seq=wrong) as chain:
            with pytest.raises(Conflict) as caught:
                await chain.write(batch(7, 1))
            assert caught.value.current_seq == 3
    assert await stored(connection) == [0, 1, 2]


async def test_two_chains_that_derive_alike_make_one_stream_without_loss_repeat_or_reorder(
    connection: Connection,
) -> None:
    """Each message follows from its place; take the expectation away and places are filled twice."""
    url = connection.nc.connected_url.geturl()
    others = [await connect(url=url, name=f"writer {n}") for n in range(2)]

    async def derive(writer: Connection, size: int) -> None:
        async with DirectReader(writer) as direct:
            at = 0
            while at < 300:
                at = (await direct.stream_state("S")).last_seq
                async with ChainPublisher(writer, last_seq=at) as chain:
                    try:
                        while at < 300:
                            at = await chain.write(batch(at, min(size, 300 - at)))
                    except Conflict:
                        continue

    await asyncio.wait_for(asyncio.gather(derive(others[0], 3), derive(others[1], 7)), 20)
    assert await stored(connection) == list(range(300))
    for other in others:
        await other.close()


async def test_a_message_refused_in_the_middle_is_noticed_though_only_the_last_asks(connection: Connection) -> None:
    """The middle one does not fit into the full stream, the last one would: without the chain it is stored."""
    async with ChainPublisher(connection, last_seq=0) as chain:
        await chain.write(batch(0, 1, size=150_000))
        with pytest.raises(Conflict):
            await chain.write([*batch(1, 1), *batch(2, 1, size=100_000), *batch(3, 2)])
    assert await stored(connection) == [0, 1]


async def test_a_chain_opened_where_the_stream_is_full_says_overloaded(connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0) as chain:
        await chain.write(batch(0, 1, size=150_000))
    async with ChainPublisher(connection, last_seq=1) as chain:
        with pytest.raises(Overloaded):
            await chain.write([*batch(2, 1, size=100_000), *batch(3, 2)])


async def test_an_oversized_message_is_refused_before_anything_is_sent_and_the_chain_is_whole(
    connection: Connection,
) -> None:
    async with ChainPublisher(connection, last_seq=0) as chain:
        with pytest.raises(Permanent):
            await chain.write([*batch(0, 2), *batch(2, 1, size=5_000_000)])
        assert await chain.write(batch(0, 2)) == 2
    assert await stored(connection) == [0, 1]


async def test_a_bad_header_in_the_middle_sends_nothing_and_leaves_the_chain_whole(connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0) as chain:
        for headers in ({"bad name": "x"}, {"X": "a\r\nY: b"}):
            with pytest.raises(Permanent):
                await chain.write([*batch(0, 1), ("s.0", b"1", headers), *batch(2, 1)])
        with pytest.raises(Permanent):
            await chain.write([("s 0", b"1", None)])
        assert chain.failure is None
        assert await chain.write(batch(0, 3)) == 3


async def test_a_duplicate_in_the_middle_or_at_the_end_is_a_conflict(connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0) as chain:
        await chain.write([("s.0", b"0", {"Nats-Msg-Id": "a"})])
        with pytest.raises(Conflict):
            await chain.write([("s.0", b"0", {"Nats-Msg-Id": "a"})])
    assert await stored(connection) == [0]


async def test_a_lost_link_fails_all_and_a_new_chain_continues_where_the_stream_is(
    server: NatsServer, connection: Connection
) -> None:
    chain = ChainPublisher(connection, last_seq=0)
    await chain.write(batch(0, 10))
    server.pause()
    futures = [await chain.submit(batch(10 + 10 * i, 10)) for i in range(5)]
    server.kill9()
    results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
    assert all(isinstance(result, Retryable) for result in results)
    await server.start()
    async with DirectReader(connection) as direct, asyncio.timeout(10):
        while True:
            try:
                last = (await direct.stream_state("S")).last_seq
                break
            except KernelError:
                await asyncio.sleep(0.05)
    async with ChainPublisher(connection, last_seq=last) as again:
        await again.write(batch(last, 100 - last))
    assert await stored(connection) == list(range(100))


async def test_no_answer_in_time_breaks_the_chain(server: NatsServer, connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0, timeout_s=0.3) as chain:
        await chain.write(batch(0, 1))
        server.pause()
        with pytest.raises(Retryable):
            await chain.write(batch(1, 1))
        server.cont()


async def test_unacknowledged_bytes_are_bounded(server: NatsServer, connection: Connection) -> None:
    async with ChainPublisher(connection, last_seq=0, window_bytes=50_000) as chain:
        await chain.write(batch(0, 1))
        server.pause()
        await chain.submit(batch(1, 1, size=30_000))
        third = asyncio.ensure_future(chain.submit(batch(2, 1, size=30_000)))
        await asyncio.sleep(0.2)
        assert not third.done()
        server.cont()
        assert await (await third) == 3
