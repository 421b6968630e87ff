"""P14 on three nodes: what was answered holds for the next request at once, and a leader may die."""

import asyncio
import uuid
from typing import Any

import pytest

from runlane.kernel.jetstream import api
from support.write_side import Client, WriteSide, clustered_side, fact

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]


async def whole_life(me: Client) -> str:
    """A run from its start to its end, each step right after the last one's answer."""
    run_id = await patiently(me, "POST", "/v1/runs", {"agent": "a", "dispatch": "external"}, {201})
    run_id = run_id["run_id"]
    epoch = (await patiently(me, "POST", f"/v1/runs/{run_id}/lease", {"worker_id": "w"}, {201}))["lease_epoch"]
    asks = [fact("run.started") | {"event_id": "e1"}, fact("approval.requested", approval_id="a1", description="d",
            risk="r", version=1, action_digest="d") | {"event_id": "e2"}]  # fmt: skip
    await patiently(me, "POST", f"/v1/runs/{run_id}/events", {"lease_epoch": epoch, "events": asks}, {200})
    decide = {"type": "approval.resolve", "payload": {"approval_id": "a1", "decision": "approved"}}
    await patiently(me, "POST", f"/v1/runs/{run_id}/commands", decide | {"idempotency_key": f"k-{run_id}"}, {200})
    ends = [fact("run.completed") | {"event_id": "e3"}]
    await patiently(me, "POST", f"/v1/runs/{run_id}/events", {"lease_epoch": epoch, "events": ends}, {200})
    return str(run_id)


async def patiently(me: Client, verb: str, path: str, body: Any, expected: set[int]) -> Any:
    """Only what says that it may succeed later is asked again, with the same key."""
    headers = {"Prefer": "wait=10", "Idempotency-Key": body.pop("idempotency_key", uuid.uuid4().hex)}
    for _ in range(60):
        reply = await me.http.request(verb, path, json=body, headers=headers)
        if reply.status_code in expected:
            return reply.json()
        if reply.status_code == 409 and reply.json()["code"] == "lease_held":
            pytest.fail(f"a lease was taken and not told: {reply.text}")
        assert reply.status_code in {202, 503}, f"{path}: {reply.text}"
        await asyncio.sleep(0.25)
    raise AssertionError(f"{path}: never")


async def test_p14_every_answer_holds_at_once_on_three_nodes() -> None:
    async with clustered_side() as (side, _):
        me = side.client()
        for _ in range(8):
            runs = await asyncio.gather(*(whole_life(me) for _ in range(5)))
            for run_id in runs:
                assert await side.types(run_id) == TYPES


async def test_p14_a_broker_node_dies_and_nobody_has_to_act() -> None:
    async with clustered_side() as (side, servers):
        me = side.client()
        before = [await whole_life(me) for _ in range(3)]
        leader = await leader_of(side, side.layout.log_stream_at(0))
        next(one for one in servers if one.server_name == leader).kill9()
        after = await asyncio.gather(*(whole_life(me) for _ in range(6)))
        for run_id in [*before, *after]:
            assert await side.types(run_id) == TYPES


TYPES = ["run.created", "run.leased", "run.started", "approval.requested", "approval.resolved", "run.completed"]


async def leader_of(side: WriteSide, stream: str) -> str:
    info: dict[str, Any] = await api(await side.connections.of("operator"), f"STREAM.INFO.{stream}", answer=dict)
    return str(info["cluster"]["leader"])
