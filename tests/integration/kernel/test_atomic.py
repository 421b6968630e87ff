"""Atomic batches on a real server: all or nothing, at the expected end, whoever else writes."""

import asyncio
from typing import Any

import pytest

from runlane.kernel.atomic import MAX_MESSAGES, publish_atomic
from runlane.kernel.connection import connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, Overloaded, Permanent
from runlane.kernel.jetstream import api
from support.nats import nats_server

STREAM = "A"


@pytest.fixture
async def connection():
    async with nats_server(sync_interval="2m") as server:
        one = await connect(url=server.url, name="test")
        config = {"name": STREAM, "subjects": ["a.>"], "storage": "file", "discard": "new", "allow_direct": True,
                  "allow_atomic": True, "max_bytes": 2_000_000}  # fmt: skip
        await api(one, f"STREAM.CREATE.{STREAM}", config, answer=dict[str, Any])
        yield one
        await one.close()


async def read(connection) -> list[bytes]:
    async with DirectReader(connection) as reader:
        return [message.data async for page in reader.pages(STREAM, "a.>") for message in page.messages]


def batch(*texts: str) -> list:
    return [(f"a.{text}", text.encode(), {"X": text}) for text in texts]


async def test_a_batch_is_stored_whole_and_in_order(connection):
    assert await publish_atomic(connection, batch("1"), last_seq=0) == 1
    assert await publish_atomic(connection, batch("2", "3", "4"), last_seq=1) == 4
    assert await read(connection) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("texts", [("x",), ("x", "y")])
async def test_at_another_end_nothing_is_stored(connection, texts):
    await publish_atomic(connection, batch("1"), last_seq=0)
    for last_seq in (0, 2):
        with pytest.raises(Conflict):
            await publish_atomic(connection, batch(*texts), last_seq=last_seq)
    assert await read(connection) == [b"1"]


async def test_the_largest_batch_fits_and_a_larger_one_is_refused(connection):
    most = [("a.x", b"%d" % n, None) for n in range(MAX_MESSAGES)]
    assert await publish_atomic(connection, most, last_seq=0) == MAX_MESSAGES
    with pytest.raises(ValueError, match="messages"):
        await publish_atomic(connection, [*most, *most], last_seq=MAX_MESSAGES)


async def test_a_full_stream_takes_nothing_of_a_batch(connection):
    last_seq = await publish_atomic(connection, [("a.x", bytes(900_000), None)] * 2, last_seq=0)
    with pytest.raises(Overloaded):
        await publish_atomic(connection, [("a.x", bytes(150_000), None)] * 2, last_seq=last_seq)
    with pytest.raises(Overloaded):
        await publish_atomic(connection, [("a.x", bytes(300_000), None)], last_seq=last_seq)
    assert len(await read(connection)) == 2


async def test_a_message_that_is_too_large_is_refused_before_anything_is_sent(connection):
    with pytest.raises(Permanent):
        await publish_atomic(connection, [("a.x", b"", None), ("a.x", bytes(5_000_000), None)], last_seq=0)
    assert await read(connection) == []


async def test_two_writers_never_share_a_batch(connection):
    async def write(name: str) -> None:
        done, last_seq = 0, 0
        while done < 20:
            try:
                last_seq = await publish_atomic(
                    connection, batch(*(f"{name}{done}_{n}" for n in range(5))), last_seq=last_seq
                )
                done += 1
            except Conflict:
                async with DirectReader(connection) as reader:
                    last_seq = (await reader.stream_state(STREAM)).last_seq

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(write("p"))
        tasks.create_task(write("q"))
    texts = [one.decode() for one in await read(connection)]
    assert len(texts) == 200
    for at in range(0, 200, 5):
        assert {one.rpartition("_")[0] for one in texts[at : at + 5]} == {texts[at].rpartition("_")[0]}
