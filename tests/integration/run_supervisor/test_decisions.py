"""Commands through the real broker: each is decided once, and its answer is kept."""

import asyncio

from support.write_side import ASK, WriteSide, a_waiting_run, fact, problem, resolve


async def test_a_decision_is_applied_once_and_a_late_one_learns_the_first(side: WriteSide) -> None:
    me = side.client()
    run_id, _ = await a_waiting_run(me)
    reply = await resolve(me, run_id, expected_version=1, action_digest="sha256:abc")
    assert reply.status_code == 200, reply.text
    assert reply.json()["status"] == "applied"
    late = problem(await resolve(me, run_id, "rejected"), 409, "already_resolved")
    assert late["recorded"]["decision"] == "approved"
    assert [p["decision"] for p in await side.payloads(run_id, "approval.resolved")] == ["approved"]


async def test_of_four_who_decide_at_once_one_wins(side: WriteSide) -> None:
    me = side.client()
    run_id, _ = await a_waiting_run(me)
    replies = await asyncio.gather(*(resolve(me, run_id, d) for d in ("approved", "rejected") * 2))
    assert sorted(reply.status_code for reply in replies) == [200, 409, 409, 409]
    assert len(await side.payloads(run_id, "approval.resolved")) == 1


async def test_the_same_command_twice_has_one_effect_and_one_answer(side: WriteSide) -> None:
    me = side.client()
    run_id, _ = await a_waiting_run(me)
    replies = await asyncio.gather(*(resolve(me, run_id, key="once") for _ in range(5)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["applied_sequence"] for reply in replies}) == 1
    assert len(await side.payloads(run_id, "approval.resolved")) == 1
    problem(await resolve(me, run_id, "rejected", key="once"), 409, "idempotency_conflict")
    by_key = await me.http.get("/v1/commands", params={"idempotency_key": "once"})
    assert by_key.json()["status"] == "applied"


async def test_a_rejected_command_stays_rejected_for_its_key(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    first = problem(await me.command(run_id, "run.resume", key="early"), 409, "invalid_state")
    epoch = await me.lease(run_id)
    await me.append(run_id, epoch, fact("run.started"), fact("run.paused"))
    assert problem(await me.command(run_id, "run.resume", key="early"), 409, "invalid_state") == first
    assert (await me.command(run_id, "run.resume", key="later")).status_code == 200


async def test_cancel_ends_a_run_that_nobody_owns(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    assert (await me.command(run_id, "run.cancel", {"reason": "enough"})).status_code == 200
    assert await side.types(run_id) == ["run.created", "run.cancelled"]
    problem(await me.command(run_id, "run.cancel"), 409, "run_terminal")


async def test_a_run_of_a_pool_is_handed_out_once_and_claimed_with_its_lease(side: WriteSide) -> None:
    me, they = side.client(), side.client("other")
    reply = await me.http.post("/v1/runs", json={"agent": "a", "input": {"q": 1}, "pool": "gpu"},
                               headers={"Idempotency-Key": "start"})  # fmt: skip
    run_id = reply.json()["run_id"]
    ask = {"worker_id": "w", "ttl_s": 30, "wait_s": 1}
    assert (await they.http.post("/v1/pools/gpu/claim", json=ask)).status_code == 204
    assert (await me.http.post("/v1/pools/cpu/claim", json=ask | {"wait_s": 0})).status_code == 204
    claimed = (await me.http.post("/v1/pools/gpu/claim", json=ask)).json()
    assert (claimed["run_id"], claimed["agent"], claimed["input"]) == (run_id, "a", {"q": 1})
    assert (await me.http.post("/v1/pools/gpu/claim", json=ask | {"wait_s": 0})).status_code == 204
    assert await side.types(run_id) == ["run.created", "run.leased"]
    await me.append(run_id, claimed["lease_epoch"], fact("run.started"))


async def test_p11_a_question_that_was_revised_is_void_visibly_and_the_next_version_is_decided(side: WriteSide) -> None:
    """To see it fail: take `old.approval_id == asked_now.approval_id` out of `lifecycle._outdated_by`."""
    me = side.client()
    run_id, epoch = await a_waiting_run(me)
    revised = ASK | {"version": 2, "description": "send the mail to nobody else"}
    placed = await me.append(run_id, epoch, {"type": "approval.requested", "payload": revised})
    voided, asked = (await side.facts(run_id))[-2:]
    assert [one["sequence"] for one in placed] == [asked.sequence]
    assert (voided.type, asked.type) == ("approval.resolved", "approval.requested")
    said = (await side.payloads(run_id, "approval.resolved"))[0]
    assert (said["decision"], said["version"], said["action_digest"]) == ("revoked", 1, "sha256:abc")
    late = problem(await resolve(me, run_id, expected_version=1), 409, "version_conflict")
    assert late["recorded"]["version"] == 2
    assert (await resolve(me, run_id, expected_version=2, action_digest="sha256:abc")).status_code == 200
    last = (await side.payloads(run_id, "approval.resolved"))[-1]
    assert (last["decision"], last["version"]) == ("approved", 2)
