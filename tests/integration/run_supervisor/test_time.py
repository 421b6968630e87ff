"""What time does to a run: leases, deadlines, questions; also while no supervisor ran."""

import asyncio
import time
from datetime import timedelta

from runlane.kernel.clock import utc_now
from runlane_contracts.codec import parse_timestamp, timestamp
from support.write_side import WriteSide, a_waiting_run, eventually, fact, problem, resolve, write_side


def in_s(seconds: float) -> str:
    return timestamp(utc_now() + timedelta(seconds=seconds))


async def has(side: WriteSide, run_id: str, type_: str) -> bool:
    return type_ in await side.types(run_id)


async def test_a_lease_that_runs_out_becomes_a_fact_within_half_a_second(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    reply = await me.http.post(f"/v1/runs/{run_id}/lease", json={"worker_id": "w", "ttl_s": 0.5})
    expires_at = parse_timestamp(reply.json()["expires_at"])
    await me.append(run_id, 1, fact("run.started"))
    await eventually(lambda: has(side, run_id, "run.lease_lost"))
    lost = (await side.facts(run_id))[-1]
    assert 0 <= (parse_timestamp(lost.occurred_at) - expires_at).total_seconds() < 0.5
    problem(await me.post_events(run_id, 1, fact("turn.started", turn_id="t")), 409, "lease_fenced")
    assert await me.lease(run_id) == 2


async def test_a_lease_that_is_renewed_is_not_lost(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id, "w", ttl_s=0.6)
    for _ in range(5):
        await asyncio.sleep(0.3)
        reply = await me.http.put(f"/v1/runs/{run_id}/lease", json={"worker_id": "w", "lease_epoch": epoch})
        assert reply.status_code == 200, reply.text
    assert await side.types(run_id) == ["run.created", "run.leased"]


async def test_an_approval_expires_by_itself_and_a_late_answer_says_so(side: WriteSide) -> None:
    me = side.client()
    run_id, _ = await a_waiting_run(me, expires_at=in_s(0.7))
    await eventually(lambda: side.payloads(run_id, "approval.resolved"))
    assert [p["decision"] for p in await side.payloads(run_id, "approval.resolved")] == ["expired"]
    late = problem(await resolve(me, run_id), 409, "already_resolved")
    assert late["recorded"]["decision"] == "expired"


async def test_a_deaf_owner_is_fenced_and_the_run_ended_for_it(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run(limits={"cancel_grace_s": 0.5})
    epoch = await me.lease(run_id)
    await me.append(run_id, epoch, fact("run.started"), fact("task.created", task_id="t1"))
    assert (await me.command(run_id, "run.cancel")).status_code == 200
    await eventually(lambda: has(side, run_id, "run.cancelled"))
    assert (await side.types(run_id))[-4:] == [
        "run.cancel_requested", "run.lease_lost", "task.cancelled", "run.cancelled",
    ]  # fmt: skip
    problem(await me.post_events(run_id, epoch, fact("turn.started", turn_id="t")), 409, "run_terminal")
    held = {"worker_id": "w1", "lease_epoch": epoch}

    async def fenced() -> bool:
        return (await me.http.put(f"/v1/runs/{run_id}/lease", json=held)).status_code == 409

    assert await eventually(fenced), "an ended run leaves no lease behind"


async def test_an_owner_that_stops_in_its_grace_ends_the_run_itself(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    await me.append(run_id, epoch, fact("run.started"))
    assert (await me.command(run_id, "run.cancel")).status_code == 200
    await me.append(run_id, epoch, fact("run.cancelled", reason="as you wish"))
    assert (await side.types(run_id))[-2:] == ["run.cancel_requested", "run.cancelled"]


async def test_a_run_past_its_deadline_fails_by_name(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run(deadline_at=in_s(0.5))
    await eventually(lambda: has(side, run_id, "run.failed"))
    (failed,) = await side.payloads(run_id, "run.failed")
    assert failed["error"]["code"] == "deadline_exceeded"


async def test_a_lost_run_of_a_pool_is_handed_out_again_until_its_attempts_are_used_up(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run(dispatch="pool", limits={"max_attempts": 2})
    ask = {"worker_id": "w", "ttl_s": 0.5, "wait_s": 5}
    for attempt in (1, 2):
        claimed = await me.http.post("/v1/pools/default/claim", json=ask)
        assert claimed.status_code == 200, claimed.text
        assert claimed.json()["attempt"] == attempt
    await eventually(lambda: has(side, run_id, "run.failed"))
    (failed,) = await side.payloads(run_id, "run.failed")
    assert failed["error"]["code"] == "attempts_exhausted"
    assert (await me.http.post("/v1/pools/default/claim", json=ask | {"wait_s": 0})).status_code == 204


async def test_what_came_due_while_no_supervisor_ran_happens_when_one_starts() -> None:
    async with write_side() as side:
        me = side.client()
        lost = await me.start_run()
        await me.lease(lost, ttl_s=0.5)
        asked, _ = await a_waiting_run(me, expires_at=in_s(1.0))
        late = await me.start_run(deadline_at=in_s(1.0))
        cancelled = await me.start_run(limits={"cancel_grace_s": 1})
        await me.lease(cancelled, ttl_s=60)
        assert (await me.command(cancelled, "run.cancel")).status_code == 200
        await side.stop_supervisor()
        await asyncio.sleep(1.2)
        assert await side.payloads(asked, "approval.resolved") == []
        await side.start_supervisor()
        await eventually(lambda: has(side, lost, "run.lease_lost"))
        await eventually(lambda: has(side, asked, "approval.resolved"))
        await eventually(lambda: has(side, late, "run.failed"))
        await eventually(lambda: has(side, cancelled, "run.cancelled"))


async def test_a_command_waits_for_a_supervisor_and_is_applied_when_one_starts() -> None:
    async with write_side(supervisor=False) as side:
        me = side.client()
        reply = await me.http.post("/v1/runs", json={"agent": "a", "dispatch": "external"},
                                   headers={"Prefer": "wait=0", "Idempotency-Key": "k"})  # fmt: skip
        assert reply.status_code == 202
        assert "sequence" not in reply.json()
        run_id = reply.json()["run_id"]
        began = time.monotonic()
        await side.start_supervisor()
        await eventually(lambda: has(side, run_id, "run.created"))
        assert time.monotonic() - began < 5
        again = await me.http.post("/v1/runs", json={"agent": "a", "dispatch": "external"},
                                   headers={"Prefer": "wait=5", "Idempotency-Key": "k"})  # fmt: skip
        assert (again.status_code, again.json()["sequence"]) == (201, 1)


async def test_a_run_that_waits_for_a_person_is_handed_out_once_that_person_has_spoken(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run(dispatch="pool")
    ask = {"worker_id": "w", "ttl_s": 30, "wait_s": 5}
    epoch = (await me.http.post("/v1/pools/default/claim", json=ask)).json()["lease_epoch"]
    question = fact("approval.requested", approval_id="a1", description="d", risk="r", version=1, action_digest="d")
    waiting = fact("run.waiting", on=[{"kind": "approval", "id": "a1"}])
    await me.append(run_id, epoch, fact("run.started"), question, waiting)
    held = {"worker_id": "w", "lease_epoch": epoch}
    assert (await me.http.request("DELETE", f"/v1/runs/{run_id}/lease", json=held)).status_code == 200
    assert (await me.http.post("/v1/pools/default/claim", json=ask | {"wait_s": 2})).status_code == 204
    assert (await resolve(me, run_id)).status_code == 200
    again = await me.http.post("/v1/pools/default/claim", json=ask)
    assert (again.status_code, again.json()["run_id"], again.json()["attempt"]) == (200, run_id, 2)


async def test_a_lost_run_whose_unsafe_call_was_cut_short_is_handed_out_with_the_call_unknown(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run(dispatch="pool")
    ask = {"worker_id": "w", "ttl_s": 0.5, "wait_s": 5}
    epoch = (await me.http.post("/v1/pools/default/claim", json=ask)).json()["lease_epoch"]
    call = fact("tool.requested", tool_call_id="c1", name="pay", arguments={}, side_effect="unsafe")
    await me.append(run_id, epoch, fact("run.started"), call, fact("tool.running", tool_call_id="c1"))
    await eventually(lambda: has(side, run_id, "tool.outcome_unknown"))
    again = await me.http.post("/v1/pools/default/claim", json=ask | {"ttl_s": 30})
    assert (again.json()["run_id"], again.json()["lease_epoch"]) == (run_id, epoch + 1)
    settle = {"tool_call_id": "c1", "outcome": "executed", "note": "looked it up", "result": {"receipt": 7}}
    problem(await me.command(run_id, "tool.reconcile", settle | {"outcome": "not_executed"}), 400, "invalid_request")
    assert (await me.command(run_id, "tool.reconcile", settle)).status_code == 200
    problem(await me.command(run_id, "tool.reconcile", settle), 409, "already_resolved")
    (reconciled,) = await side.payloads(run_id, "tool.reconciled")
    assert reconciled["result"] == {"receipt": 7}


async def test_of_many_workers_that_ask_at_once_one_gets_the_run(side: WriteSide) -> None:
    me = side.client()
    asking = [
        asyncio.create_task(
            me.http.post("/v1/pools/default/claim", json={"worker_id": f"w{n}", "ttl_s": 30, "wait_s": 2})
        )
        for n in range(6)
    ]
    runs = {await me.start_run(dispatch="pool") for _ in range(3)}
    replies = await asyncio.gather(*asking)
    got = [reply.json()["run_id"] for reply in replies if reply.status_code == 200]
    assert sorted(got) == sorted(runs)
    assert sorted(reply.status_code for reply in replies) == [200] * 3 + [204] * 3


async def test_work_of_runs_that_ended_is_passed_over(side: WriteSide) -> None:
    me = side.client()
    over = [await me.start_run(dispatch="pool") for _ in range(5)]
    for run_id in over:
        assert (await me.command(run_id, "run.cancel")).status_code == 200
    alive = await me.start_run(dispatch="pool")
    ask = {"worker_id": "w", "ttl_s": 30, "wait_s": 1}
    assert (await me.http.post("/v1/pools/default/claim", json=ask)).json()["run_id"] == alive
    assert (await me.http.post("/v1/pools/default/claim", json=ask | {"wait_s": 0})).status_code == 204


async def test_pausing_a_lost_run_holds_it_and_resuming_lets_it_go_on(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    await me.append(run_id, epoch, fact("run.started"), fact("run.paused"))
    held = {"worker_id": "w1", "lease_epoch": epoch}
    assert (await me.http.request("DELETE", f"/v1/runs/{run_id}/lease", json=held)).status_code == 200
    assert (await me.command(run_id, "run.resume")).status_code == 200
    epoch = await me.lease(run_id)
    await me.append(run_id, epoch, fact("run.completed"))
    assert (await side.types(run_id))[-4:] == ["run.lease_lost", "run.resumed", "run.leased", "run.completed"]
