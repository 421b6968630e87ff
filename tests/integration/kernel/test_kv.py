"""A bucket with compare-and-set, on a real server and beside the official client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from nats.js.errors import KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, Permanent, Retryable
from runlane.kernel.kv import Bucket, Changes
from runlane.kernel.provision import provision
from runlane.kernel.publisher import PubAck, WindowedPublisher
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server


@dataclass
class LosesAnswers:
    """The next `count` answers get lost after the server stored the message."""

    publisher: WindowedPublisher
    count: int = 0
    sent: list[str] = field(default_factory=list)

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck:
        self.sent.append((headers or {})["Nats-Msg-Id"])
        ack = await self.publisher.publish(subject, data, headers, timeout_s=timeout_s)
        if self.count:
            self.count -= 1
            raise Retryable("no answer in time")
        return ack


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(url=server.url, name="test")
    await provision(connection, SMALL, now=utc_now)
    yield connection
    await connection.close()


@pytest.fixture
async def publisher(connection: Connection) -> LosesAnswers:
    return LosesAnswers(WindowedPublisher(connection))


@pytest.fixture
async def bucket(connection: Connection, publisher: LosesAnswers) -> AsyncIterator[Bucket]:
    async with DirectReader(connection) as direct:
        yield Bucket(publisher, direct, SMALL.lease_bucket)


async def test_create_get_update_delete(bucket: Bucket) -> None:
    assert await bucket.get("a.b") is None
    first = await bucket.create("a.b", b"1")
    entry = await bucket.get("a.b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("a.b", b"1", first)
    second = await bucket.update("a.b", b"2", first)
    assert second > first
    await bucket.delete("a.b", second)
    assert await bucket.get("a.b") is None


async def test_every_compare_and_set_that_lost_is_a_conflict(bucket: Bucket) -> None:
    first = await bucket.create("k", b"1")
    with pytest.raises(Conflict) as caught:
        await bucket.create("k", b"2")
    assert caught.value.current_seq == first
    second = await bucket.update("k", b"2", first)
    with pytest.raises(Conflict):
        await bucket.update("k", b"3", first)
    with pytest.raises(Conflict):
        await bucket.delete("k", first)
    entry = await bucket.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", second)


async def test_a_deleted_key_can_be_created_again(bucket: Bucket) -> None:
    revision = await bucket.create("k", b"1")
    await bucket.delete("k", revision)
    await bucket.delete("k")
    again = await bucket.create("k", b"2")
    entry = await bucket.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", again)


async def test_of_many_creators_exactly_one_wins_also_after_a_deletion(bucket: Bucket) -> None:
    for round_ in range(3):
        outcomes = await asyncio.gather(*(bucket.create("k", b"%d" % n) for n in range(20)), return_exceptions=True)
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
        assert round_ < 3
        await bucket.delete("k")


async def test_put_sets_whatever_is_there(bucket: Bucket) -> None:
    await bucket.put("k", b"1")
    revision = await bucket.put("k", b"2")
    entry = await bucket.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", revision)


async def test_a_lost_answer_is_settled(bucket: Bucket, publisher: LosesAnswers) -> None:
    """Take the settling out and a worker is refused by its own lease."""
    publisher.count = 1
    first = await bucket.create("k", b"1")
    publisher.count = 2
    second = await bucket.update("k", b"2", first)
    publisher.count = 1
    third = await bucket.put("k", b"3")
    assert [first, second, third] == [1, 2, 3]
    publisher.count = 1
    await bucket.delete("k", third)
    assert await bucket.get("k") is None
    assert len(set(publisher.sent)) == 4


async def test_a_deletion_goes_after_its_time(connection: Connection, publisher: LosesAnswers) -> None:
    async with DirectReader(connection) as direct:
        bucket = Bucket(publisher, direct, SMALL.lease_bucket, marker_ttl_s=1)
        await bucket.create("k", b"1")
        await bucket.delete("k")

        async def empty() -> bool:
            return (await direct.stream_state(bucket.stream)).messages == 0

        await eventually(empty, within_s=5)
        assert await bucket.create("k", b"2") == 3


async def test_the_official_client_sees_the_same_bucket(connection: Connection, bucket: Bucket) -> None:
    theirs: KeyValue = await connection.nc.jetstream().key_value(SMALL.lease_bucket)
    first = await bucket.create("k", b"1")
    assert (await theirs.get("k")).revision == first
    second = await theirs.update("k", b"2", last=first)
    entry = await bucket.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", second)
    third = await bucket.update("k", b"3", second)
    with pytest.raises(KeyWrongLastSequenceError):
        await theirs.update("k", b"4", last=second)
    await theirs.delete("k")
    assert await bucket.get("k") is None
    again = await bucket.create("k", b"5")
    assert again > third
    await bucket.delete("k")
    assert await theirs.create("k", b"6") > again
    await theirs.purge("k")
    assert await bucket.get("k") is None


async def test_a_watch_gives_what_is_there_then_every_change(bucket: Bucket) -> None:
    await bucket.create("t1.a", b"1")
    await bucket.put("t1.a", b"2")
    await bucket.create("t1.b", b"1")
    await bucket.create("t2.c", b"1")
    seen: list[Changes] = []

    async def watch() -> None:
        async with contextlib.aclosing(bucket.watch("t1.>")) as changes:
            async for change in changes:
                seen.append(change)  # noqa: PERF401 - it is looked at while it grows

    def entries() -> list[tuple[str, bytes, bool]]:
        return [(e.key, e.value, e.deleted) for change in seen for e in change.entries]

    watching = asyncio.ensure_future(watch())
    await eventually(lambda: seen and seen[-1].caught_up)
    assert entries() == [("t1.a", b"2", False), ("t1.b", b"1", False)]
    await bucket.delete("t1.a")
    await bucket.put("t2.c", b"2")
    await bucket.put("t1.b", b"2")
    await eventually(lambda: len(entries()) == 4)
    assert entries()[2:] == [("t1.a", b"", True), ("t1.b", b"2", False)]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_watch_of_an_empty_bucket_says_that_it_is_caught_up(bucket: Bucket) -> None:
    async with contextlib.aclosing(bucket.watch()) as changes, asyncio.timeout(5):
        async for change in changes:
            assert change == Changes([], caught_up=True)
            break


async def test_a_watch_goes_on_after_the_server_was_killed(server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("k", b"1")
    seen: list[bytes] = []

    async def watch() -> None:
        async with contextlib.aclosing(bucket.watch()) as changes:
            async for change in changes:
                seen.extend(e.value for e in change.entries)

    watching = asyncio.ensure_future(watch())
    await eventually(lambda: seen == [b"1"])
    await server.restart()
    await bucket.put("k", b"2")
    await eventually(lambda: seen == [b"1", b"2"])
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("key", ["", "a b", "a.*", ">", ".a", "a.", "a..b", "ä", "a\r\nb"])
async def test_what_is_no_key_is_refused(bucket: Bucket, key: str) -> None:
    with pytest.raises(Permanent):
        await bucket.get(key)
    with pytest.raises(Permanent):
        await bucket.put(key, b"")
