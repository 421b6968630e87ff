"""One verdict per delivery: in order within a key, the others go on."""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager

import msgspec
import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.consumer import MAX_FAILURES, EachConsumer, answer, backoff_s, in_any_order, pull_one
from runlane.kernel.dead_letter import DeadLetterRecord, DeadLetters
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Permanent, Retryable
from runlane.kernel.jetstream import api
from runlane.kernel.provision import ensure_consumer, provision
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.verdict import DONE, DeadLetter, Retry
from runlane_contracts.streams import ConsumerSpec
from support.eventually import eventually
from support.nats import SMALL, nats_server

COMMANDS = next(spec for spec in SMALL.consumers() if spec.durable == "run-supervisor-v1")
POOL = SMALL.pool_consumer("acme", "default")


@pytest.fixture
async def server():
    async with nats_server(sync_interval="2m") as one:
        connection = await connect(url=one.url, name="provision")
        await provision(connection, SMALL, now=utc_now, pools=[("acme", "default")])
        await connection.close()
        yield one


@pytest.fixture
async def producer(server):
    one = await connect(url=server.url, name="producer")
    yield one
    await one.close()


@asynccontextmanager
async def running(server, handle, spec: ConsumerSpec = COMMANDS, **options):
    connection = await connect(url=server.url, name="consumer")
    async with WindowedPublisher(connection) as publisher:
        letters = DeadLetters(publisher, SMALL, "run_supervisor")
        consumer = EachConsumer(connection, spec, SMALL, handle, dead_letters=letters, **options)
        task = asyncio.create_task(consumer.run())
        try:
            yield consumer, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await connection.close()


async def command(producer, run, text):
    await producer.request(f"rl.cmd.00.acme.{run}", text.encode())


async def info(producer, spec=COMMANDS):
    return await api(producer, f"CONSUMER.INFO.{spec.stream}.{spec.durable}", answer=dict)


async def settled(producer, spec=COMMANDS):
    state = await info(producer, spec)
    return state["num_ack_pending"] == 0 and state["num_pending"] == 0


async def test_a_run_is_handled_in_order_and_runs_side_by_side(server, producer):
    seen, under_way, most = defaultdict(list), set(), 0

    async def handle(delivery):
        nonlocal most
        run = delivery.subject.rpartition(".")[2]
        assert run not in under_way
        under_way.add(run)
        most = max(most, len(under_way))
        await asyncio.sleep(0.002)
        under_way.discard(run)
        seen[run].append(int(delivery.data))
        return DONE

    async with running(server, handle, concurrency=4) as (consumer, _):
        for n in range(120):
            await command(producer, f"r{n % 8}", str(n))
        await eventually(lambda: settled(producer))
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        assert sum(len(numbers) for numbers in seen.values()) == 120
        assert 1 < most <= 4
        assert consumer.stats.in_hand == 0


async def test_a_message_to_be_tried_again_holds_back_its_own_run_only(server, producer):
    order = []

    async def handle(delivery):
        if delivery.data == b"a1" and delivery.attempt < 3:
            return Retry("not yet", after_s=0.15)
        order.append(delivery.data.decode())
        return DONE

    for run, text in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")):
        await command(producer, run, text)
    async with running(server, handle) as (consumer, _):
        await eventually(lambda: settled(producer))
        assert order == ["b1", "b2", "a1", "a2"]
        assert consumer.stats.retried == 2


async def test_without_a_key_nothing_is_held_back(server, producer):
    order = []

    async def handle(delivery):
        if delivery.data == b"a1" and delivery.attempt < 2:
            return Retry("not yet", after_s=0.1)
        order.append(delivery.data.decode())
        return DONE

    for text in ("a1", "a2"):
        await command(producer, "a", text)
    async with running(server, handle, key=in_any_order):
        await eventually(lambda: settled(producer))
        assert order == ["a2", "a1"]


@pytest.mark.parametrize("how", ["verdict", "permanent"])
async def test_what_can_never_succeed_is_recorded_before_it_is_given_up(server, producer, how):
    async def handle(delivery):
        if delivery.data == b"poison":
            if how == "permanent":
                raise Permanent("it does not fit")
            return DeadLetter("it does not fit")
        return DONE

    for text in ("poison", "good"):
        await command(producer, "a", text)
    async with running(server, handle) as (consumer, _), DirectReader(producer) as reader:
        await eventually(lambda: settled(producer))
        letter = await reader.last("RL_DEAD", "rl.dead.run_supervisor.acme")
        record = msgspec.json.decode(letter.data, type=DeadLetterRecord)
        assert (record.reason, record.stream, record.stream_seq) == ("it does not fit", "RL_COMMAND", 1)
        assert b"poison" not in letter.data
        assert (consumer.stats.buried, consumer.stats.acknowledged) == (1, 1)


async def test_a_handler_that_keeps_failing_is_not_asked_for_ever(server, producer, monkeypatch):
    monkeypatch.setattr("runlane.kernel.consumer.backoff_s", lambda attempt: 0.01)
    attempts = []

    async def handle(delivery):
        attempts.append(delivery.attempt)
        raise ZeroDivisionError("with a secret")

    await command(producer, "a", "x")
    async with running(server, handle), DirectReader(producer) as reader:
        await eventually(lambda: settled(producer))
        assert attempts == list(range(1, MAX_FAILURES + 1))
        letter = await reader.last("RL_DEAD", "rl.dead.run_supervisor.acme")
        assert b"ZeroDivisionError" in letter.data
        assert b"secret" not in letter.data


async def test_what_may_succeed_later_is_never_given_up(server, producer, monkeypatch):
    monkeypatch.setattr("runlane.kernel.consumer.backoff_s", lambda attempt: 0.005)

    async def handle(delivery):
        if delivery.attempt <= MAX_FAILURES + 3:
            raise Retryable("the log is full", retry_after_s=0.005)
        return DONE

    await command(producer, "a", "x")
    async with running(server, handle) as (consumer, _):
        await eventually(lambda: settled(producer))
        assert (consumer.stats.acknowledged, consumer.stats.buried) == (1, 0)


async def test_without_a_record_nothing_is_given_up(server, producer):
    async def handle(delivery):
        return DeadLetter("no")

    await api(producer, "STREAM.DELETE.RL_DEAD", answer=dict)
    await command(producer, "a", "x")
    async with running(server, handle) as (consumer, _):
        await eventually(lambda: consumer.stats.retried >= 1)
        assert (await info(producer))["num_ack_pending"] == 1
        await provision(producer, SMALL, now=utc_now)
        await eventually(lambda: settled(producer), within_s=20)
        assert consumer.stats.buried == 1


async def test_a_long_handler_keeps_its_message(server, producer):
    spec = msgspec.structs.replace(POOL, durable="short", ack_wait_s=0.6)
    await api(producer, "CONSUMER.DELETE.RL_WORK." + POOL.durable, answer=dict)
    await ensure_consumer(producer, SMALL, spec)
    attempts = []

    async def handle(delivery):
        attempts.append(delivery.attempt)
        await asyncio.sleep(2.0)
        return DONE

    await producer.request("rl.work.acme.default", b"x")
    async with running(server, handle, spec) as (_, _):
        await eventually(lambda: settled(producer, spec))
        assert attempts == [1]


async def test_workers_of_a_pool_share_and_take_no_more_than_they_can_do(server, producer):
    taken = defaultdict(list)

    def worker(name):
        async def handle(delivery):
            taken[name].append(int(delivery.data))
            await asyncio.sleep(0.01)
            return DONE

        return handle

    for n in range(30):
        await producer.request("rl.work.acme.default", b"%d" % n)
    async with (
        running(server, worker("one"), POOL, concurrency=1, capacity=1) as (one, _),
        running(server, worker("two"), POOL, concurrency=1, capacity=1) as (two, _),
    ):
        await eventually(lambda: len(taken["one"]) + len(taken["two"]) == 30)
        assert sorted(taken["one"] + taken["two"]) == list(range(30))
        assert min(len(taken["one"]), len(taken["two"])) >= 5
        assert (one.stats.sessions, two.stats.sessions) == (1, 1)


async def test_stopping_finishes_what_runs_and_gives_back_the_rest(server, producer):
    begun, gate, done = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        begun.set()
        await gate.wait()
        done.append(delivery.data)
        return DONE

    for n in range(5):
        await producer.request("rl.work.acme.default", b"%d" % n)
    async with running(server, handle, POOL, concurrency=1) as (consumer, task):
        await begun.wait()
        await eventually(lambda: consumer.stats.in_hand == 5)
        consumer.stop()
        await asyncio.sleep(0.05)
        assert not task.done()
        gate.set()
        await task
        assert done == [b"0"]

    async def quick(delivery):
        done.append(delivery.data)
        return DONE

    async with running(server, quick, POOL):
        await eventually(lambda: len(done) == 5, within_s=5)  # the acknowledgement wait is 30 s


async def test_a_successor_gets_what_the_dead_one_had_at_once(server, producer):
    async def hang(_delivery):
        await asyncio.Event().wait()

    for n in range(3):
        await command(producer, f"r{n}", str(n))
    async with running(server, hang) as (consumer, task):
        await eventually(lambda: consumer.stats.in_hand == 3)
        task.cancel()
        await asyncio.wait({task})
    done = []

    async def handle(delivery):
        done.append(int(delivery.data))
        return DONE

    async with running(server, handle):
        await eventually(lambda: sorted(done) == [0, 1, 2], within_s=10)


@pytest.mark.fault
async def test_every_command_is_handled_although_the_server_dies(server, producer):
    done = set()

    async def handle(delivery):
        await asyncio.sleep(0.005)
        done.add(int(delivery.data))
        return DONE

    async with running(server, handle, concurrency=2):
        for n in range(100):
            await command(producer, f"r{n % 5}", str(n))
        await server.restart()
        await eventually(lambda: len(done) == 100, within_s=20)
        await eventually(lambda: settled(producer), within_s=20)


async def test_one_message_can_be_waited_for(server, producer):
    assert await pull_one(producer, POOL, wait_s=0.1) is None
    await producer.request("rl.work.acme.default", b"x")
    delivery = await pull_one(producer, POOL, wait_s=1)
    assert delivery is not None
    assert (delivery.data, delivery.attempt, delivery.stream) == (b"x", 1, "RL_WORK")
    await answer(producer, delivery, Retry("again", after_s=0.01))
    again = await pull_one(producer, POOL, wait_s=2)
    assert again is not None
    assert again.attempt == 2
    await answer(producer, again, DONE)
    await eventually(lambda: settled(producer, POOL))


async def test_waiting_on_a_durable_that_is_not_there_is_told(server, producer):
    with pytest.raises(Retryable, match="503"):
        await pull_one(producer, SMALL.pool_consumer("acme", "nobody"), wait_s=1)


def test_the_wait_grows_and_has_an_end():
    waits = [backoff_s(attempt) for attempt in range(1, 40)]
    assert 0.1 <= waits[0] <= 0.2
    assert max(waits) <= 30
    assert waits[-1] >= 15
