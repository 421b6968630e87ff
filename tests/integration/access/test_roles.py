"""Each user does its work on a real server with the rights it has, and is refused nothing on the way."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import nats
import pytest

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import LeaseDesk
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.kernel.tail import Tail
from runlane_contracts import events
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import draft
from runlane_contracts.subjects import RunAddress
from support.nats import SMALL, nats_server

RUN = RunAddress("acme", "r1")
ACTOR = Actor(kind="service", id="test")


class Role:
    """What the kernel gives a user."""

    def __init__(self, connection):
        self.connection = connection
        self.publisher = WindowedPublisher(connection)
        self.direct = DirectReader(connection)
        self.log = NatsEventLog(connection, SMALL, publisher=self.publisher, direct=self.direct)
        self.run_logs = RunLogs(self.log, now=utc_now, new_id=new_id)

    def bucket(self, name):
        return Bucket(self.publisher, self.direct, name, new_id=new_id)

    @property
    def leases(self):
        return LeaseDesk(self.bucket(SMALL.lease_bucket), self.run_logs, now=utc_now)

    async def create_run(self):
        run = self.run_logs.of(RUN)
        await run.transact(lambda _: [draft(events.RunCreated(agent="a"))], lease_epoch=0, actor=ACTOR)


@pytest.fixture
async def role():
    async with nats_server(users=True) as server, AsyncExitStack() as stack:
        made = []

        async def connected(user):
            one = await connect(url=server.url, user=user, password=f"pw-{user}", name=user)
            stack.push_async_callback(one.close)
            made.append(one)
            return Role(one)

        await provision((await connected("operator")).connection, SMALL, now=utc_now)
        yield connected
        assert [(one.name, one.permission_violations) for one in made if one.permission_violations] == []


async def first(iterator):
    async with aclosing(iterator) as one, asyncio.timeout(5):
        return await anext(one)


async def test_a_gateway_starts_a_run_and_a_worker_drives_it(role):
    gateway, worker = await role("command_gateway"), await role("worker")
    await gateway.create_run()
    lease = await worker.leases.take(RUN, "w1", 10)
    written = await worker.run_logs.of(RUN).append(
        [draft(events.RunStarted())], lease_epoch=lease.lease_epoch, actor=ACTOR
    )
    assert [sequence for _, sequence in written] == [3]
    assert (await first(worker.log.tail(RUN))).position.sequence == 1
    await worker.leases.renew(RUN, "w1", lease.lease_epoch)
    await worker.leases.release(RUN, "w1", lease.lease_epoch)
    await gateway.leases.take(RUN, "http", 10)


async def test_a_supervisor_watches_leases_timers_and_the_ledger(role):
    supervisor = await role("run_supervisor")
    await supervisor.create_run()
    await supervisor.leases.take(RUN, "w1", 10)
    for name in (SMALL.lease_bucket, SMALL.timer_bucket, SMALL.ledger_bucket):
        bucket = supervisor.bucket(name)
        await bucket.create("acme.x", b"{}")
        assert (await first(bucket.watch())).entries


@pytest.mark.parametrize(
    ("user", "streams"),
    [
        ("run_supervisor", ["RL_LOG_0"]),
        ("worker", ["RL_LOG_0"]),
        ("projector", ["RL_VIEW_0"]),
        ("edge_gateway", ["RL_VIEW_0"]),
    ],
)
async def test_who_follows_a_stream_may(role, user, streams):
    filter_ = await role("redaction_filter")
    worker = await role("worker")
    await worker.connection.request("rl.log.00.acme.r1", b"{}")
    await filter_.connection.request("rl.view.00.acme.r1", b"{}")
    one = await role(user)
    for stream in streams:
        subject = "rl.log.>" if "LOG" in stream else "rl.view.>"
        tail = Tail(one.connection, one.direct, stream=stream, subjects=[subject])
        assert await first(tail.batches())
        assert (await one.direct.stream_state(stream)).last_seq == 1


async def test_another_service_works_through_its_durable_with_a_stock_client():
    async with nats_server(users=True) as server:
        operator = await connect(url=server.url_of("operator"), name="operator", inbox_prefix="_INBOX_operator")
        billing = SMALL.subscriber_consumer("billing", ("rl.signal.*.run.>",))
        await provision(operator, SMALL, now=utc_now, more=[billing])
        assert not (await provision(operator, SMALL, now=utc_now, more=[billing])).changes
        await operator.close()
        filter_ = await connect(url=server.url, user="redaction_filter", password="pw-redaction_filter", name="f")
        for type_ in ("run.created", "tool.requested", "run.started"):
            await filter_.request(f"rl.signal.acme.{type_}", type_.encode())
        await filter_.close()
        assert await _fetched(server, acknowledged=1) == ["run.created", "run.started"]
        assert await _fetched(server, acknowledged=1) == ["run.started"]


async def _fetched(server, *, acknowledged):
    """What a client that comes back is given; it acknowledges the first few."""
    refused = []

    async def complain(exc):
        refused.append(exc)

    client = await nats.connect(server.url_of("subscriber"), inbox_prefix="_INBOX_subscriber", error_cb=complain)
    durable = await client.jetstream().pull_subscribe_bind("subscriber-billing", "RL_SIGNAL")
    messages = await durable.fetch(10, timeout=0.5)
    for n, message in enumerate(messages):
        await (message.ack() if n < acknowledged else message.nak())
    await client.close()
    assert refused == []
    return [message.data.decode() for message in messages]
