"""Fair dispatch on a real broker: weights, running bounds and queue bounds, for HTTP claims and for workers on NATS."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest_asyncio

from runlane.client import NatsPools, RunContext, Worker
from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.direct import DirectReader
from runlane.kernel.kv import Bucket
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.kernel.work import WorkItem
from runlane_contracts import events, lifecycle
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Actor
from runlane_contracts.subjects import RunAddress
from runlane_contracts.tenants import TenantLimits
from support.write_side import Client, WriteSide, eventually, fact, problem, write_side

SYSTEM = Actor(kind="system", id="runlane")


class Site:
    """A write side with the operator's hand on the limits."""

    def __init__(self, side: WriteSide, limits: Bucket, publisher: WindowedPublisher, run_logs: RunLogs) -> None:
        self.side, self._limits, self._publisher, self._run_logs = side, limits, publisher, run_logs

    async def limit(self, tenant_id: str, **limits: Any) -> None:
        await self._limits.put(tenant_id, msgspec.json.encode(TenantLimits(**limits)))
        await asyncio.sleep(1.1)  # what was known before is no longer fresh

    async def queue(self, tenant_id: str, pool: str, count: int) -> list[str]:
        """Runs that wait, put there without asking anybody: a thousand of them take no time."""
        runs = [f"{tenant_id}-{pool}-{n}" for n in range(count)]
        for at in range(0, count, 50):
            await asyncio.gather(*(self._queue_one(tenant_id, pool, run_id) for run_id in runs[at : at + 50]))
        return runs

    async def _queue_one(self, tenant_id: str, pool: str, run_id: str) -> None:
        created = lifecycle.draft(events.RunCreated(agent="a", pool=pool))
        run_log = self._run_logs.of(RunAddress(tenant_id, run_id))
        await run_log.transact(lambda _: [created], lease_epoch=0, actor=SYSTEM)
        item = WorkItem(tenant_id=tenant_id, run_id=run_id, agent="a")
        await self._publisher.publish(self.side.layout.subjects.work(tenant_id, pool), encode(item))

    def pools(self, connection: Any) -> NatsPools:
        return NatsPools(connection, layout=self.side.layout)


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    async with write_side(claims_at_once=2) as side, AsyncExitStack() as stack:
        operator = await side.connections.of("operator")
        direct = await stack.enter_async_context(DirectReader(operator))
        publisher = WindowedPublisher(operator)
        stack.push_async_callback(publisher.close)
        supervisor = await side.connections.of("run_supervisor")
        work = WindowedPublisher(supervisor)
        stack.push_async_callback(work.close)
        run_logs = RunLogs(await side.log(), now=utc_now, new_id=new_id)
        yield Site(side, Bucket(publisher, direct, side.layout.tenant_bucket), work, run_logs)


async def claim(client: Client, pool: str, *, wait_s: float = 0, ttl_s: float = 30) -> dict[str, Any] | None:
    body = {"worker_id": "w", "ttl_s": ttl_s, "wait_s": wait_s}
    reply = await client.http.post(f"/v1/pools/{pool}/claim", json=body)
    assert reply.status_code in {200, 204}, reply.text
    return reply.json() if reply.status_code == 200 else None


async def end(client: Client, claimed: dict[str, Any]) -> None:
    await client.append(claimed["run_id"], claimed["lease_epoch"], fact("run.started"), fact("run.completed"))


# --- weights -----------------------------------------------------------------------------------------------------


async def test_workers_on_nats_that_serve_two_tenants_take_three_to_one(site: Site):
    """Give `turns.went` the weight 1.0 in `NatsPools._next` to see it fail."""
    await site.limit("demo", weight=3)
    await asyncio.gather(site.queue("demo", "p", 100), site.queue("other", "p", 100))
    connection = await site.side.connections.of("worker")
    pools = [site.pools(connection) for _ in range(3)]
    had = Counter[str]()
    for n in range(90):
        taken = await pools[n % 3].claim_any("p", worker_id="w", ttl_s=30, wait_s=5)
        assert taken is not None
        had[taken[0].tenant_id] += 1
    assert 2.0 < had["demo"] / had["other"] < 5.0, had
    for one in pools:
        await one.aclose()


async def test_claims_over_http_take_turns_by_weight(site: Site):
    """Take `async with self._slots.of(…)` out of `ClaimsDesk` to see it fail: one to one then."""
    await site.limit("demo", weight=3)
    await asyncio.gather(site.queue("demo", "p", 120), site.queue("other", "p", 120))
    order: list[str] = []

    async def work(client: Client) -> None:
        while len(order) < 100:
            if await claim(client, "p") is not None:
                order.append(client.tenant_id)

    clients = [site.side.client("demo") for _ in range(12)] + [site.side.client("other") for _ in range(12)]
    await asyncio.gather(*map(work, clients))
    had = Counter(order[:100])
    assert 2.0 < had["demo"] / had["other"] < 4.5, had


async def test_a_thousand_queued_runs_of_one_tenant_do_not_delay_the_one_of_another(site: Site):
    """Put `sorted(waiting)` in place of `turns.order(…)` in `NatsPools._next` to see it fail."""
    await site.queue("demo", "p", 1_000)
    pools = site.pools(await site.side.connections.of("worker"))
    for _ in range(20):
        taken = await pools.claim_any("p", worker_id="w", ttl_s=30, wait_s=5)
        assert taken is not None
        assert taken[0].tenant_id == "demo"
    await site.queue("other", "p", 1)
    next_ones = [await pools.claim_any("p", worker_id="w", ttl_s=30, wait_s=5) for _ in range(8)]
    assert "other" in [taken[0].tenant_id for taken in next_ones if taken is not None]
    over_http = await claim(site.side.client("demo"), "p")
    assert over_http is not None
    await pools.aclose()


# --- how many run ------------------------------------------------------------------------------------------------


async def test_a_tenant_at_its_bound_waits_while_others_go_on_and_goes_on_itself_when_a_run_ends(site: Site):
    """Let `Seats.has_room` and `Seats.keeps` answer True to see it fail."""
    await site.limit("demo", max_running=2)
    await asyncio.gather(site.queue("demo", "p", 6), site.queue("other", "p", 3))
    demo, other = site.side.client("demo"), site.side.client("other")
    claimed = [one for one in await asyncio.gather(*(claim(demo, "p") for _ in range(5))) if one is not None]
    assert len(claimed) == 2
    assert await claim(other, "p") is not None
    pools = site.pools(await site.side.connections.of("worker"))
    taken = await pools.claim_any("p", worker_id="w", ttl_s=30, wait_s=5)
    assert taken is not None
    assert taken[0].tenant_id == "other"  # it passes over the one that is at its bound
    waits = asyncio.create_task(claim(demo, "p", wait_s=20))
    await asyncio.sleep(0.3)
    assert not waits.done()
    await end(demo, claimed[0])
    assert await waits is not None
    assert await claim(demo, "p") is None
    await end(demo, claimed[1])
    taken = await pools.claim_any("p", worker_id="w", ttl_s=30, wait_s=20)
    assert taken is not None
    await pools.aclose()


async def test_a_killed_workers_seat_comes_back_with_its_lease_and_its_run_is_handed_out_again(site: Site):
    await site.limit("demo", max_running=1)
    demo = site.side.client("demo")
    run_ids = [(await demo.start_run(dispatch="pool", pool="p")) for _ in range(2)]
    first = await claim(demo, "p", ttl_s=0.6, wait_s=5)
    assert first is not None  # … and is never heard of again
    again = {(await claim_and_end(demo))["run_id"] for _ in range(2)}
    assert again == set(run_ids)


async def claim_and_end(client: Client) -> dict[str, Any]:
    claimed = await claim(client, "p", wait_s=30)
    assert claimed is not None
    await end(client, claimed)
    return claimed


async def test_taking_the_lease_of_a_pools_run_by_hand_goes_by_the_same_bound(site: Site):
    await site.limit("demo", max_running=1)
    runs = await site.queue("demo", "p", 2)
    demo = site.side.client("demo")
    await demo.lease(runs[0])
    refused = await demo.http.post(f"/v1/runs/{runs[1]}/lease", json={"worker_id": "w", "ttl_s": 5})
    problem(refused, 429, "quota_exceeded")
    assert int(refused.headers["Retry-After"]) >= 1
    assert await demo.lease(await demo.start_run(dispatch="external")) == 1  # nobody of ours drives that one


# --- how many wait ----------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_the_next_run_by_name_and_lets_it_in_when_there_is_room(site: Site):
    await site.limit("demo", max_waiting=3)
    demo = site.side.client("demo")
    body = {"agent": "a", "pool": "p"}
    replies = [await demo.http.post("/v1/runs", json=body) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [201, 201, 201, 429]
    problem(replies[3], 429, "quota_exceeded")
    assert int(replies[3].headers["Retry-After"]) >= 1
    assert (await demo.http.post("/v1/runs", json=body | {"dispatch": "external"})).status_code == 201
    assert (await site.side.client("other").http.post("/v1/runs", json=body)).status_code == 201
    assert await claim(demo, "p", wait_s=5) is not None

    async def let_in() -> bool:
        return (await demo.http.post("/v1/runs", json=body)).status_code == 201

    await eventually(let_in)


# --- a worker for several tenants --------------------------------------------------------------------------------


async def test_a_worker_for_several_tenants_drives_the_runs_of_each(site: Site):
    clients = [site.side.client("demo"), site.side.client("other")]
    for client in clients:
        await client.start_run(dispatch="pool", pool="p", run_id="the-same-id")

    async def agent(ctx: RunContext) -> str:
        return f"done {ctx.run_id}"

    pools = site.pools(await site.side.connections.of("worker"))
    worker = Worker(pools, pool="p", agent=agent, claim_wait_s=0.2)
    working = asyncio.create_task(worker.run())
    for client in clients:
        tenant_id = client.tenant_id

        async def is_over(tenant_id: str = tenant_id) -> bool:
            return "run.completed" in await site.side.types("the-same-id", tenant_id)

        await eventually(is_over, within_s=30)
    worker.stop()
    await working
    await pools.aclose()


async def test_a_worker_for_some_tenants_leaves_the_others_alone(site: Site):
    await asyncio.gather(site.queue("demo", "p", 2), site.queue("other", "p", 2))
    pools = NatsPools(await site.side.connections.of("worker"), ["other"], layout=site.side.layout)
    taken = [await pools.claim_any("p", worker_id="w", ttl_s=30, wait_s=0) for _ in range(3)]
    assert [one and one[0].tenant_id for one in taken] == ["other", "other", None]
    await pools.aclose()


async def test_a_worker_that_died_with_an_open_claim_is_given_nothing(site: Site):
    """Take the question `is_disconnected` out of `ClaimsDesk._within` to see it fail."""
    gone = asyncio.Event()
    body = [{"type": "http.request", "body": b'{"worker_id": "dead", "ttl_s": 30, "wait_s": 20}', "more_body": False}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        return None

    token = site.side.client("demo").http.headers["Authorization"].encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/pools/p/claim", "raw_path": b"/v1/pools/p/claim", "query_string": b"", "root_path": "",
        "headers": [(b"authorization", token), (b"content-type", b"application/json")],
    }  # fmt: skip
    assert site.side.app is not None
    claiming = asyncio.ensure_future(site.side.app(scope, receive, send))
    await asyncio.sleep(0.3)
    assert not claiming.done()
    gone.set()
    await asyncio.wait_for(claiming, 10)
    await site.queue("demo", "p", 1)
    claimed = await claim(site.side.client("demo"), "p", wait_s=5)
    assert claimed is not None
    assert claimed["attempt"] == 1
