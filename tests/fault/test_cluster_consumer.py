"""Three nodes: provisioning, ordered batches, and a leader that dies (P14)."""

import asyncio

import msgspec
import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.consumer import BatchConsumer
from runlane.kernel.errors import KernelError
from runlane.kernel.jetstream import api
from runlane.kernel.provision import provision
from runlane.kernel.publisher import WindowedPublisher
from support.eventually import eventually
from support.nats import SMALL, nats_cluster

LAYOUT = msgspec.structs.replace(SMALL, replicas=3)
SPEC = next(spec for spec in LAYOUT.consumers() if spec.service == "redaction_filter")

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180)]


async def test_a_cluster_is_provisioned_and_its_order_survives_the_leader():
    async with nats_cluster(layout=LAYOUT) as servers:
        connection = await connect(url=",".join(one.url for one in servers), name="test")

        async def provisioned():
            try:
                return await provision(connection, LAYOUT, now=utc_now)
            except KernelError:
                return None

        await eventually(provisioned, within_s=60, every_s=0.5)
        assert (await provision(connection, LAYOUT, now=utc_now)).changes == ()
        seen: list[int] = []

        async def handle(batch):
            seen.extend(one.stream_seq for one in batch)
            return batch[-1].stream_seq

        consumer = BatchConsumer(connection, SPEC, LAYOUT, handle)
        running = asyncio.create_task(consumer.run())
        async with WindowedPublisher(connection) as publisher:
            await write(publisher, 0, 200)
            await eventually(lambda: len(seen) == 200, within_s=20)
            leader = (await api(connection, f"STREAM.INFO.{SPEC.stream}", answer=dict))["cluster"]["leader"]
            next(one for one in servers if one.server_name == leader).kill9()
            await write(publisher, 200, 200)
            await eventually(lambda: len(set(seen)) == 400, within_s=60)
        first_times = list(dict.fromkeys(seen))
        assert first_times == list(range(1, 401))

        async def acknowledged():
            info = await api(connection, f"CONSUMER.INFO.{SPEC.stream}.{SPEC.durable}", answer=dict)
            return info["ack_floor"]["stream_seq"] == 400

        await eventually(acknowledged, within_s=30)
        consumer.stop()
        await running
        await connection.close()


async def write(publisher, start, count):
    for n in range(start, start + count):
        while True:
            try:
                await publisher.publish("rl.log.00.acme.r1", b"%d" % n, {"Nats-Msg-Id": f"m{n}"}, timeout_s=2)
                break
            except KernelError:
                await asyncio.sleep(0.1)
