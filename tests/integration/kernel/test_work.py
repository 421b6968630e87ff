import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.errors import Retryable
from runlane.kernel.jetstream import api
from runlane.kernel.provision import provision
from runlane.kernel.work import WorkItem, WorkQueue
from runlane_contracts.codec import encode
from support.eventually import eventually
from support.nats import SMALL, nats_server


@pytest.fixture
async def connection():
    async with nats_server(sync_interval="2m") as server:
        one = await connect(url=server.url, name="test")
        await provision(one, SMALL, now=utc_now)
        yield one
        await one.close()


async def offer(connection, run_id, tenant="acme"):
    item = WorkItem(tenant_id=tenant, run_id=run_id, agent="demo")
    await connection.request(f"rl.work.{tenant}.default", encode(item))


async def test_an_invitation_is_given_once_and_again_when_put_off(connection):
    queue = WorkQueue(connection, SMALL)
    assert await queue.pull("acme", "default", wait_s=0.1) is None
    await offer(connection, "r1")
    invitation = await queue.pull("acme", "default", wait_s=1)
    assert invitation.item.run_id == "r1"
    await invitation.later(0.01)
    again = await queue.pull("acme", "default", wait_s=2)
    await again.taken()
    assert await queue.pull("acme", "default", wait_s=0.1) is None


async def test_a_tenant_gets_its_own_work_only(connection):
    queue = WorkQueue(connection, SMALL)
    await offer(connection, "r1", tenant="other")
    assert await queue.pull("acme", "default", wait_s=0.2) is None
    assert (await queue.pull("other", "default", wait_s=1)).item.run_id == "r1"


async def test_what_nobody_can_read_does_not_come_again(connection):
    queue = WorkQueue(connection, SMALL)
    await connection.request("rl.work.acme.default", b"?")
    assert await queue.pull("acme", "default", wait_s=1) is None

    async def empty():
        return (await api(connection, "STREAM.INFO.RL_WORK", answer=dict))["state"]["messages"] == 0

    await eventually(empty)


async def test_a_durable_that_vanished_is_made_again(connection):
    queue = WorkQueue(connection, SMALL)
    await queue.pull("acme", "default", wait_s=0.1)
    await api(connection, f"CONSUMER.DELETE.RL_WORK.{SMALL.pool_consumer('acme', 'default').durable}", answer=dict)
    await offer(connection, "r1")

    async def found():
        try:
            return await queue.pull("acme", "default", wait_s=0.5)
        except Retryable:
            return None

    assert (await eventually(found)).item.run_id == "r1"
