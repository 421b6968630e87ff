"""P13: overload has a named answer, and running runs keep their facts."""

import asyncio
import time
from collections import Counter

import httpx
import pytest

from support.write_side import Client, WriteSide, eventually, fact, write_side

pytestmark = pytest.mark.fault

CAPACITY = {"starts_per_s": 20.0, "starts_burst": 20.0, "max_starting": 30, "max_starting_of_tenant": 20}
LOAD_S = 5.0


async def keep_running(me: Client, run_id: str, until: float) -> list[str]:
    """An owner at work: every append has to succeed. The ids it was told of."""
    epoch = await me.lease(run_id)
    acknowledged, n = [], 0
    while time.monotonic() < until:
        n += 1
        (placed,) = await me.append(run_id, epoch, fact("task.created", task_id=f"t{n}"))
        acknowledged.append(str(placed["event_id"]))
    return acknowledged


async def flood(me: Client, until: float) -> list[tuple[str, httpx.Response]]:
    """Starts without pause, many times what is let in."""
    replies, n = [], 0
    while time.monotonic() < until:
        n += 1
        key = f"{id(replies)}-{n}"
        body = {"agent": "a", "input": "x" * 1000, "pool": "flood", "idempotency_key": key}
        replies.append((key, await me.http.post("/v1/runs", json=body, headers={"Prefer": "wait=1"})))
        await asyncio.sleep(0.01)
    return replies


async def created(side: WriteSide, run_id: str) -> bool:
    return (await side.types(run_id)).count("run.created") == 1


@pytest.mark.timeout(90)
async def test_p13_ten_times_the_capacity_is_refused_by_name_and_running_runs_lose_nothing() -> None:
    """To see it fail: let `Admission._refusal` answer None (everything is let in, nothing is refused), or put the
    events desk behind `Admission.starting` (the appends of running runs are refused with the starts).
    """
    async with write_side(**CAPACITY) as side:
        me, they = side.client(), side.client("other")
        running = [await me.start_run() for _ in range(4)]
        await asyncio.sleep(1)
        until = time.monotonic() + LOAD_S
        owners = [asyncio.ensure_future(keep_running(me, run_id, until)) for run_id in running]
        floods = [asyncio.ensure_future(flood(me, until)) for _ in range(16)]
        quiet = []
        while time.monotonic() < until:  # another tenant, within its quota
            quiet.append(await they.http.post("/v1/runs", json={"agent": "a", "dispatch": "external"}))
            await asyncio.sleep(0.5)
        acknowledged = await asyncio.gather(*owners)
        replies = [one for replies in await asyncio.gather(*floods) for one in replies]

        statuses = Counter(reply.status_code for _, reply in replies)
        let_in = [reply.json()["run_id"] for _, reply in replies if reply.status_code in {201, 202}]
        assert set(statuses) <= {201, 202, 429, 503}, statuses
        assert len(let_in) <= CAPACITY["starts_burst"] + (LOAD_S + 1) * CAPACITY["starts_per_s"] + 1
        assert len(replies) > 3 * len(let_in), statuses
        for _, reply in replies:
            if reply.status_code in {429, 503}:
                assert reply.json()["code"] == {429: "quota_exceeded", 503: "overloaded"}[reply.status_code]
                assert int(reply.headers["retry-after"]) >= 1
        assert {reply.status_code for reply in quiet} == {201}, "one tenant's flood is not another's"

        for run_id, ids in zip(running, acknowledged, strict=True):
            facts = await side.facts(run_id)
            assert [one.sequence for one in facts] == list(range(1, len(facts) + 1))
            assert [one.event_id for one in facts if one.type == "task.created"] == ids
            assert len(ids) > 5 * LOAD_S, "it went on"
        for run_id in let_in:
            await eventually(lambda run_id=run_id: created(side, run_id))


@pytest.mark.timeout(60)
async def test_p13_who_has_enough_runs_waiting_for_a_worker_starts_no_more_of_them() -> None:
    """To see it fail: remove `max_waiting_of_tenant` from `Admission._refusal`."""
    async with write_side(max_waiting_of_tenant=5) as side:
        me, they = side.client(), side.client("other")
        start = {"agent": "a", "pool": "slow"}
        for _ in range(5):
            assert (await me.http.post("/v1/runs", json=start)).status_code == 201
        refused = await me.http.post("/v1/runs", json=start)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert refused.headers["retry-after"] == "5"
        await me.start_run()  # its producer drives it: it waits for nobody
        assert (await they.http.post("/v1/runs", json=start)).status_code == 201
        await asyncio.sleep(1.5)  # counted, not only added up
        assert (await me.http.post("/v1/runs", json=start)).status_code == 429
        claimed = await me.http.post("/v1/pools/slow/claim", json={"worker_id": "w", "ttl_s": 30, "wait_s": 5})
        assert claimed.status_code == 200

        async def let_in_again() -> bool:
            return (await me.http.post("/v1/runs", json=start)).status_code == 201

        await eventually(let_in_again)
