"""Direct-get reads on a real server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from runlane.kernel.chain import ChainPublisher
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader, time_ns
from runlane.kernel.errors import Permanent, Retryable
from support.nats import NatsServer, nats_server


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(url=server.url, name="test")
    await connection.nc.jetstream().add_stream(name="S", subjects=["s.>"], allow_direct=True)
    yield connection
    await connection.close()


@pytest.fixture
async def direct(connection: Connection) -> AsyncIterator[DirectReader]:
    async with DirectReader(connection) as direct:
        yield direct


async def fill(connection: Connection, count: int, subjects: int) -> None:
    async with ChainPublisher(connection, last_seq=0) as chain:
        await chain.write([(f"s.{n % subjects}", b"%d" % n, {"n": str(n)}) for n in range(count)])


async def test_last_and_get_answer_the_message_or_none(connection: Connection, direct: DirectReader) -> None:
    await fill(connection, 10, 3)
    last = await direct.last("S", "s.0")
    assert last is not None
    assert (last.subject, last.seq, last.data, last.headers["n"]) == ("s.0", 10, b"9", "9")
    assert last == await direct.get("S", 10)
    assert await direct.last("S", "s.none") is None
    assert await direct.get("S", 11) is None


async def test_pages_read_a_subject_to_its_end_in_order(connection: Connection, direct: DirectReader) -> None:
    await fill(connection, 100, 3)
    pages = [page async for page in direct.pages("S", "s.1", 5, max_messages=7)]
    assert [int(m.data) for page in pages for m in page.messages] == [n for n in range(4, 100) if n % 3 == 1]
    assert {len(page.messages) for page in pages[:-1]} == {7}
    assert pages[-1].pending == 0


async def test_a_page_is_bounded_by_bytes_and_holds_at_least_one(connection: Connection, direct: DirectReader) -> None:
    await fill(connection, 10, 1)
    page = await direct.page("S", "s.0", max_bytes=1)
    assert (len(page.messages), page.pending) == (1, 9)


async def test_an_empty_message_with_a_status_header_is_a_message(connection: Connection, direct: DirectReader) -> None:
    await connection.nc.jetstream().publish("s.0", b"", headers={"Status": "404"})
    last = await direct.last("S", "s.0")
    assert last is not None
    assert last.seq == 1
    assert len((await direct.page("S", "s.0")).messages) == 1


async def test_multi_last_answers_for_more_subjects_than_one_request_takes(
    connection: Connection, direct: DirectReader
) -> None:
    await fill(connection, 3000, 1500)
    names = [f"s.{n}" for n in range(1600)]
    found = await direct.multi_last("S", names)
    assert {name: m.seq for name, m in found.items()} == {f"s.{n}": 1501 + n for n in range(1500)}
    earlier = await direct.multi_last("S", names, up_to_seq=1500)
    assert {name: m.seq for name, m in earlier.items()} == {f"s.{n}": 1 + n for n in range(1500)}
    with pytest.raises(Permanent):
        await direct.multi_last("S", ["s.>"])
    assert await direct.multi_last("S", ["s.none"]) == {}


async def test_multi_last_continues_where_one_answer_was_too_large(
    connection: Connection, direct: DirectReader
) -> None:
    async with ChainPublisher(connection, last_seq=0) as chain:
        for n in range(60):
            await chain.write([(f"s.{n}", bytes(1_000_000), None)])
    found = await direct.multi_last("S", ["s.*"])
    assert len(found) == 60


async def test_the_epoch_survives_a_restart_and_changes_when_the_stream_is_made_anew(
    server: NatsServer, connection: Connection, direct: DirectReader
) -> None:
    await fill(connection, 5, 1)
    before = await direct.stream_state("S")
    assert (before.first_seq, before.last_seq, before.messages) == (1, 5, 5)
    await server.restart()
    async with asyncio.timeout(10):
        while not connection.is_connected:
            await asyncio.sleep(0.02)
    assert (await direct.stream_state("S")).epoch == before.epoch
    js = connection.nc.jetstream()
    await js.delete_stream("S")
    with pytest.raises(Retryable):
        await direct.stream_state("S")
    await js.add_stream(name="S", subjects=["s.>"])
    assert (await direct.stream_state("S")).epoch != before.epoch


async def test_no_stream_a_frozen_server_and_a_lost_link_are_retryable(
    server: NatsServer, connection: Connection
) -> None:
    async with DirectReader(connection, timeout_s=0.3) as direct:
        with pytest.raises(Retryable):
            await direct.last("NONE", "s.0")
        server.pause()
        with pytest.raises(Retryable):
            await direct.last("S", "s.0")
        server.cont()
    async with DirectReader(connection, timeout_s=60) as direct:
        await direct.last("S", "s.0")
        server.pause()
        waiting = asyncio.ensure_future(direct.last("S", "s.0"))
        await asyncio.sleep(0.1)
        server.kill9()
        with pytest.raises(Retryable):
            await asyncio.wait_for(waiting, 5)


async def test_many_reads_at_once_each_get_their_own_answer(connection: Connection, direct: DirectReader) -> None:
    await fill(connection, 300, 300)
    found = await asyncio.gather(*(direct.last("S", f"s.{n}") for n in range(300)))
    assert [m.seq if m else 0 for m in found] == list(range(1, 301))


def test_a_time_without_a_fraction_is_a_time() -> None:
    assert time_ns("1970-01-01T00:00:01Z") == 1_000_000_000
    assert time_ns("1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert time_ns("1970-01-01T00:00:01.000000007Z") == 1_000_000_007
