"""Ordered batches of a pinned durable: nothing skipped, nothing reordered, whoever dies."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.consumer import BatchConsumer
from runlane.kernel.errors import Retryable
from runlane.kernel.jetstream import api
from runlane.kernel.provision import provision
from support.eventually import eventually
from support.nats import SMALL, nats_server

SPEC = msgspec.structs.replace(
    next(spec for spec in SMALL.consumers() if spec.service == "redaction_filter"), pin_ttl_s=1.0
)


@pytest.fixture
async def server():
    async with nats_server(sync_interval="2m") as one:
        connection = await connect(url=one.url, name="provision")
        await provision(connection, SMALL, now=utc_now)
        await set_pin_ttl(connection)
        await connection.close()
        yield one


@pytest.fixture
async def producer(server):
    one = await connect(url=server.url, name="producer")
    yield one
    await one.close()


async def set_pin_ttl(connection):
    verb = f"CONSUMER.INFO.{SPEC.stream}.{SPEC.durable}"
    config = (await api(connection, verb, answer=dict))["config"] | {"priority_timeout": 1_000_000_000}
    body = {"stream_name": SPEC.stream, "config": config, "action": "update"}
    await api(connection, f"CONSUMER.CREATE.{SPEC.stream}.{SPEC.durable}", body, answer=dict)


class Reader:
    """A handler that remembers."""

    def __init__(self):
        self.seqs = []
        self.batches = []
        self.failures = 0

    async def __call__(self, batch):
        if self.failures:
            self.failures -= 1
            raise Retryable("not now", retry_after_s=0.01)
        self.batches.append(len(batch))
        self.seqs += [one.stream_seq for one in batch]
        return batch[-1].stream_seq


@asynccontextmanager
async def running(server, handle, **options):
    connection = await connect(url=server.url, name="consumer")
    consumer = BatchConsumer(connection, SPEC, SMALL, handle, **options)
    task = asyncio.create_task(consumer.run())
    try:
        yield consumer, task, connection
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


async def publish(producer, count, start=0):
    for n in range(start, start + count):
        await producer.request("rl.log.00.acme.r1", b"%d" % n)


async def floor(producer):
    info = await api(producer, f"CONSUMER.INFO.{SPEC.stream}.{SPEC.durable}", answer=dict)
    return info["ack_floor"]["stream_seq"]


async def test_everything_comes_in_order_and_is_acknowledged(server, producer):
    reader = Reader()
    async with running(server, reader, max_batch=64) as (consumer, _, _):
        await publish(producer, 500)
        await eventually(lambda: len(reader.seqs) == 500)
        assert reader.seqs == list(range(1, 501))
        assert max(reader.batches) <= 64

        async def acknowledged():
            return await floor(producer) == 500

        await eventually(acknowledged)
        assert (consumer.stats.lag, consumer.stats.is_active, consumer.stats.sessions) == (0, True, 1)


async def test_a_batch_is_bounded_by_bytes(server, producer):
    reader = Reader()
    for _ in range(10):
        await producer.request("rl.log.00.acme.r1", b"x" * 1000)
    async with running(server, reader, max_batch_bytes=2500):
        await eventually(lambda: len(reader.seqs) == 10)
        assert max(reader.batches) == 2


async def test_what_was_in_hand_of_one_that_died_comes_at_once_and_before_the_rest(server, producer):
    async def hang(_batch):
        await asyncio.Event().wait()

    await publish(producer, 10)
    async with running(server, hang) as (consumer, task, _):
        await eventually(lambda: consumer.stats.delivered == 10)
        task.cancel()
        await asyncio.wait({task})
    reader = Reader()
    async with running(server, reader):
        await eventually(lambda: len(reader.seqs) == 10, within_s=5)  # the acknowledgement wait is 30 s
        await publish(producer, 5, 10)
        await eventually(lambda: len(reader.seqs) == 15)
        assert reader.seqs == list(range(1, 16))


async def test_one_is_active_and_the_other_takes_over(server, producer):
    first, second = Reader(), Reader()
    async with running(server, first) as (one, task, _), running(server, second) as (two, _, _):
        await publish(producer, 20)
        await eventually(lambda: len(first.seqs) + len(second.seqs) == 20)
        active, waiting = (one, two) if first.seqs else (two, one)
        reader, other = (first, second) if first.seqs else (second, first)
        assert reader.seqs == list(range(1, 21))
        assert not waiting.stats.is_active
        await asyncio.sleep(1.5)  # longer than the pin lasts: it is renewed while nothing comes
        await publish(producer, 5, 20)
        await eventually(lambda: len(reader.seqs) == 25)
        active.stop()
        await eventually(lambda: waiting.stats.is_active or publish_one(producer), within_s=5)
        await publish(producer, 5, 26)
        await eventually(lambda: len(other.seqs) >= 5, within_s=5)
        assert other.seqs == list(range(26, 26 + len(other.seqs)))
    assert task.done()


async def publish_one(producer):
    await publish(producer, 1, 25)


async def test_a_frozen_active_one_is_replaced_and_does_nothing_when_it_thaws(server, producer):
    gate = asyncio.Event()
    late = []

    async def slow(batch):
        late.append([one.stream_seq for one in batch])
        await gate.wait()
        return batch[-1].stream_seq

    await publish(producer, 4)
    reader = Reader()
    async with running(server, slow) as (one, _, _):
        await eventually(lambda: late)
        one._session._connection = _Mute()  # its requests no longer reach the server
        async with running(server, reader):
            await eventually(lambda: len(reader.seqs) == 4, within_s=5)
            gate.set()
            await publish(producer, 3, 4)
            await eventually(lambda: len(reader.seqs) == 7)
            assert reader.seqs == list(range(1, 8))


class _Mute:
    is_connected = True

    @property
    def nc(self):
        return self

    async def publish(self, *_args, **_kwargs):
        pass


async def test_a_handler_that_fails_gets_the_same_again_and_alone(server, producer):
    reader = Reader()
    reader.failures = 2
    await publish(producer, 6)
    async with running(server, reader) as (consumer, _, _):
        await eventually(lambda: len(reader.seqs) == 6)
        assert reader.seqs == list(range(1, 7))
        assert reader.batches[0] == 1
        assert consumer.stats.retried == 2


async def test_an_answer_below_the_batch_is_made_up_for_later(server, producer):
    seen = []

    async def behind(batch):
        seen.extend(one.stream_seq for one in batch)
        return max(0, seen[-1] - 2)

    async with running(server, behind, max_batch=1):
        await publish(producer, 10)
        await eventually(lambda: len(seen) == 10)

        async def acknowledged():
            return await floor(producer) == 8

        await eventually(acknowledged)


async def test_it_starts_where_its_owner_says(server, producer):
    reader = Reader()
    await publish(producer, 10)

    async def derived_up_to():
        return 4

    async with running(server, reader, on_active=derived_up_to):
        await eventually(lambda: len(reader.seqs) == 6)
        assert reader.seqs == [5, 6, 7, 8, 9, 10]


async def test_a_deleted_durable_is_made_again_where_it_was(server, producer):
    """Take `_made_from` out of the durable and about one in fifteen times everything comes again from the beginning."""
    reader = Reader()
    async with running(server, reader) as (consumer, _, _):
        await publish(producer, 10)
        await eventually(lambda: len(reader.seqs) == 10)
        await api(producer, f"CONSUMER.DELETE.{SPEC.stream}.{SPEC.durable}", answer=dict)
        await publish(producer, 10, 10)
        await eventually(lambda: len(reader.seqs) >= 20)
        assert reader.seqs == list(range(1, 21))
        assert consumer.stats.recreated == 1


@pytest.mark.fault
async def test_it_goes_on_after_the_server_was_killed(server, producer):
    reader = Reader()
    async with running(server, reader):
        await publish(producer, 10)
        await eventually(lambda: len(reader.seqs) == 10)
        await server.restart()
        await eventually(lambda: producer.is_connected)
        await publish(producer, 10, 10)
        await eventually(lambda: len(set(reader.seqs)) == 20, within_s=15)
        fresh = [seq for n, seq in enumerate(reader.seqs) if seq not in reader.seqs[:n]]
        assert fresh == list(range(1, 21))


@pytest.mark.fault
async def test_it_notices_a_frozen_server(server, producer):
    reader = Reader()
    async with running(server, reader) as (consumer, _, _):
        await publish(producer, 3)
        await eventually(lambda: len(reader.seqs) == 3)
        server.pause()
        await eventually(lambda: not consumer.stats.is_active, within_s=10)
        server.cont()
        await publish(producer, 3, 3)
        await eventually(lambda: len(set(reader.seqs)) == 6, within_s=15)


WRITERS = {
    "RL_LOG_0": ("worker", "rl.log.00.acme.r1"),
    "RL_VIEW_0": ("redaction_filter", "rl.view.00.acme.r1"),
    "RL_COMMAND": ("command_gateway", "rl.cmd.00.acme.r1"),
    "RL_SIGNAL": ("redaction_filter", "rl.signal.acme.run.created"),
    "RL_INTAKE": ("command_gateway", SMALL.subjects.intake("acme", "command_gateway")),
    "KV_RL_LEDGER": ("command_gateway", "$KV.RL_LEDGER.acme.cmd_1"),
}
ORDERED = [spec for spec in SMALL.consumers() if spec.ack_policy == "all"]


@pytest.mark.parametrize("spec", ORDERED, ids=lambda spec: spec.durable)
async def test_its_user_has_all_the_rights_it_takes(spec):
    async with nats_server(users=True) as server, AsyncExitStack() as stack:

        async def connected(user):
            one = await connect(url=server.url, user=user, password=f"pw-{user}", name=user)
            stack.push_async_callback(one.close)
            return one

        operator = await connected("operator")
        await provision(operator, SMALL, now=utc_now)
        connection, reader = await connected(spec.service), Reader()
        consumer = BatchConsumer(connection, spec, SMALL, reader)
        task = asyncio.create_task(consumer.run())
        writer, subject = WRITERS[spec.stream]
        await (await connected(writer)).request(subject, b"{}")
        await eventually(lambda: reader.seqs)
        await api(operator, f"CONSUMER.DELETE.{spec.stream}.{spec.durable}", answer=dict)
        await eventually(lambda: consumer.stats.recreated == 1)
        consumer.stop()
        await task
        assert connection.permission_violations == 0


async def test_a_consumer_that_is_stopped_while_it_becomes_active_stops(server, producer):
    await publish(producer, 1)
    consumers = []

    async def on_active():
        consumers[0].stop()

    async with running(server, Reader(), on_active=on_active) as (consumer, task, _):
        consumers.append(consumer)
        async with asyncio.timeout(10):
            await task
