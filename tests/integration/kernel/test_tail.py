"""Following a stream through everything that can happen to a consumer, a server and a link."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runlane.kernel import tail as tail_module
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.delivery import delivery_of
from runlane.kernel.direct import DirectReader, StoredMessage
from runlane.kernel.errors import KernelError, Retryable, StreamReplaced
from runlane.kernel.provision import provision
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.tail import Tail
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server(sync_interval="2m") as server:
        yield server


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(url=server.url, name="test")
    await connection.nc.jetstream().add_stream(name="S", subjects=["s.>"], allow_direct=True)
    yield connection
    await connection.close()


class Follower:
    """Collects what a tail yields."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.messages: list[StoredMessage] = []
        self.error: BaseException | None = None

    @property
    def seqs(self) -> list[int]:
        return [m.seq for m in self.messages]

    async def run(self) -> None:
        try:
            async with contextlib.aclosing(self.tail.batches()) as batches:
                async for batch in batches:
                    self.messages += batch
        except KernelError as exc:
            self.error = exc


@asynccontextmanager
async def following(connection: Connection, **options: object) -> AsyncIterator[Follower]:
    async with DirectReader(connection) as direct:
        follower = Follower(Tail(connection, direct, **{"stream": "S", "subjects": ["s.>"], **options}))
        task = asyncio.ensure_future(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def write(connection: Connection, count: int, *, size: int = 1, subject: str = "s.a") -> None:
    async with WindowedPublisher(connection) as publisher:
        sent = 0
        while sent < count:
            try:
                futures = [await publisher.send(subject, b"x" * size) for _ in range(min(200, count - sent))]
                await asyncio.gather(*futures)
                sent += len(futures)
            except Retryable:
                await asyncio.sleep(0.05)


async def consumers(connection: Connection) -> list[str]:
    return [info.name for info in await connection.nc.jetstream().consumers_info("S")]


async def test_history_and_then_what_comes_in_order_each_once(connection: Connection) -> None:
    await write(connection, 5000)
    async with following(connection) as follower:
        await eventually(lambda: len(follower.messages) == 5000)
        assert follower.tail.caught_up
        await write(connection, 500)
        await eventually(lambda: len(follower.messages) == 5500)
    assert follower.seqs == list(range(1, 5501))


async def test_a_message_is_told_with_its_subject_headers_time_and_data(connection: Connection) -> None:
    await connection.nc.jetstream().publish("s.a.b", b"data", headers={"h": "v"})
    async with following(connection) as follower, DirectReader(connection) as direct:
        await eventually(lambda: follower.messages)
        got, stored = follower.messages[0], await direct.get("S", 1)
    assert stored is not None
    assert (got.subject, got.seq, got.data, got.headers) == ("s.a.b", 1, b"data", {"h": "v"})
    assert got.time_ns == stored.time_ns


async def test_it_starts_after_a_position_and_follows_several_subjects(connection: Connection) -> None:
    for subject in ("s.a", "s.b", "s.c", "s.a", "s.b"):
        await write(connection, 1, subject=subject)
    async with following(connection, after_seq=1, subjects=["s.a", "s.c"]) as follower:
        await eventually(lambda: len(follower.messages) == 2)
        assert follower.seqs == [3, 4]
    async with following(connection, subjects=["s.>"], start="last_per_subject") as follower:
        await eventually(lambda: len(follower.messages) == 3)
        assert follower.seqs == [3, 4, 5]


async def test_an_empty_stream_is_caught_up_at_once(connection: Connection) -> None:
    async with following(connection) as follower:
        await eventually(lambda: follower.tail.caught_up)
        assert follower.messages == []


async def test_large_messages_pass_and_waiting_bytes_are_bounded(connection: Connection) -> None:
    await write(connection, 20, size=3_900_000)
    async with DirectReader(connection) as direct:
        tail = Tail(connection, direct, stream="S", subjects=["s.>"], max_bytes=8_000_000)
        got: list[int] = []
        async with contextlib.aclosing(tail.batches()) as batches:
            async for batch in batches:
                await asyncio.sleep(0.05)  # slower than the server
                assert sum(len(m.data) for m in batch) <= 8_400_000
                got += [m.seq for m in batch]
                if len(got) == 20:
                    break
    assert got == list(range(1, 21))


async def test_a_slow_reader_is_bounded_by_messages(connection: Connection) -> None:
    await write(connection, 1000)
    async with DirectReader(connection) as direct:
        tail = Tail(connection, direct, stream="S", subjects=["s.>"], max_messages=64)
        got: list[int] = []
        async with contextlib.aclosing(tail.batches()) as batches:
            async for batch in batches:
                await asyncio.sleep(0.001)
                assert len(batch) <= 64
                got += [m.seq for m in batch]
                if len(got) == 1000:
                    break
    assert got == list(range(1, 1001))


async def test_a_deleted_consumer_is_made_again(connection: Connection) -> None:
    """Ignore the status that says so and the tail is silent for ever."""
    async with following(connection) as follower:
        await write(connection, 10)
        await eventually(lambda: len(follower.messages) == 10)
        for name in await consumers(connection):
            await connection.nc.jetstream().delete_consumer("S", name)
        await write(connection, 10)
        await eventually(lambda: len(follower.messages) == 20, within_s=5)
    assert follower.seqs == list(range(1, 21))


async def test_a_lost_delivery_is_noticed_and_read_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take the check of the consumer sequence out and message 7 is missing."""
    original = tail_module._Pull._on_message
    dropped: list[str] = []

    async def drops_one(self: object, message: object) -> None:
        if not dropped and message.reply.startswith("$JS.ACK") and delivery_of(message).stream_seq == 7:
            dropped.append(message.reply)
            return
        await original(self, message)

    monkeypatch.setattr(tail_module._Pull, "_on_message", drops_one)
    async with following(connection) as follower:
        await write(connection, 20)
        await eventually(lambda: len(follower.messages) == 20)
    assert dropped
    assert follower.seqs == list(range(1, 21))


async def test_it_survives_kill_9_of_the_server(server: NatsServer, connection: Connection) -> None:
    async with following(connection) as follower:
        await write(connection, 100)
        await eventually(lambda: len(follower.messages) == 100)
        for round_ in range(1, 4):
            await server.restart()
            await write(connection, 100)
            stored = (await connection.nc.jetstream().stream_info("S")).state.last_seq
            await eventually(lambda stored=stored: follower.seqs[-1] == stored, within_s=10)
            assert round_
    assert follower.seqs == list(range(1, follower.seqs[-1] + 1))


async def test_it_survives_a_frozen_server(
    server: NatsServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "HEARTBEAT_S", 0.3)
    async with following(connection) as follower:
        await write(connection, 10)
        await eventually(lambda: len(follower.messages) == 10)
        server.pause()
        await asyncio.sleep(2)
        server.cont()
        await write(connection, 10)
        stored = (await connection.nc.jetstream().stream_info("S")).state.last_seq
        await eventually(lambda: follower.seqs[-1] == stored, within_s=10)
    assert follower.seqs == list(range(1, stored + 1))


async def test_the_last_deliveries_lost_are_noticed_by_the_next_heartbeat(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes after them whose number would tell. Without the check they are missing until something does."""
    monkeypatch.setattr(tail_module, "HEARTBEAT_S", 0.2)
    original = tail_module._Pull._on_message
    lost: list[str] = []

    async def loses_three(self: object, message: object) -> None:
        if len(lost) < 3 and message.reply.startswith("$JS.ACK"):
            lost.append(message.reply)
            return
        await original(self, message)

    monkeypatch.setattr(tail_module._Pull, "_on_message", loses_three)
    async with following(connection) as follower:
        await write(connection, 3)
        await eventually(lambda: len(follower.messages) == 3, within_s=5)
    assert follower.seqs == [1, 2, 3]


async def test_silence_is_noticed(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-open pull: the server forgot the request, the link is fine. Without the check it waits 20 s and more."""
    monkeypatch.setattr(tail_module, "HEARTBEAT_S", 0.2)
    original = tail_module._Pull._on_message
    first: list[object] = []

    async def the_first_hears_nothing(self: object, message: object) -> None:
        if not first:
            first.append(self)
        if self is not first[0]:
            await original(self, message)

    monkeypatch.setattr(tail_module._Pull, "_on_message", the_first_hears_nothing)
    async with following(connection) as follower:
        await write(connection, 3)
        await eventually(lambda: len(follower.messages) == 3, within_s=5)
    assert follower.seqs == [1, 2, 3]


async def test_a_stream_made_anew_ends_the_tail_with_an_error(connection: Connection) -> None:
    async with following(connection) as follower:
        await write(connection, 10)
        await eventually(lambda: len(follower.messages) == 10)
        js = connection.nc.jetstream()
        await js.delete_stream("S")
        await js.add_stream(name="S", subjects=["s.>"], allow_direct=True)
        await write(connection, 20)
        await eventually(lambda: follower.error is not None)
    assert isinstance(follower.error, StreamReplaced)
    assert len(follower.messages) == 10


async def test_a_position_of_another_epoch_is_refused_at_once(connection: Connection) -> None:
    async with following(connection, after_seq=5, epoch="other") as follower:
        await eventually(lambda: follower.error is not None)
    assert isinstance(follower.error, StreamReplaced)


async def test_a_stream_that_comes_later_is_waited_for(connection: Connection) -> None:
    js = connection.nc.jetstream()
    async with following(connection, stream="LATER", subjects=["later.>"]) as follower:
        await asyncio.sleep(0.2)
        await js.add_stream(name="LATER", subjects=["later.>"], allow_direct=True)
        await write(connection, 3, subject="later.a")
        await eventually(lambda: len(follower.messages) == 3)


async def test_it_leaves_no_consumer_behind(connection: Connection) -> None:
    async with following(connection) as follower:
        await write(connection, 1)
        await eventually(lambda: follower.messages)
        assert len(await consumers(connection)) == 1
    await eventually(lambda: _gone(connection))


async def _gone(connection: Connection) -> bool:
    return not await consumers(connection)


async def test_it_runs_within_the_rights_of_a_service() -> None:
    async with nats_server(users=True) as server:
        operator = await connect(
            url=server.url, user="operator", password=server.passwords["operator"], name="operator"
        )
        await provision(operator, SMALL, now=utc_now)
        worker = await connect(url=server.url, user="worker", password=server.passwords["worker"], name="worker")
        subject = SMALL.subjects.log("acme", "run_1")
        async with following(worker, stream=SMALL.log_stream("run_1"), subjects=[subject]) as follower:
            await write(worker, 3, subject=subject)
            await eventually(lambda: len(follower.messages) == 3)
        assert worker.permission_violations == 0
        await worker.close()
        await operator.close()


async def test_the_second_form_of_acknowledgement_subjects_is_understood() -> None:
    async with nats_server(extra="feature_flags { js_ack_fc_v2: true }") as server:
        connection = await connect(url=server.url, name="t")
        await connection.nc.jetstream().add_stream(name="S", subjects=["s.>"], allow_direct=True)
        await write(connection, 10)
        async with following(connection) as follower:
            await eventually(lambda: len(follower.messages) == 10)
        assert follower.seqs == list(range(1, 11))
        await connection.close()
