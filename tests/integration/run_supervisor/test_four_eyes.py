"""Approvals that take several people, through the real broker; and asking again."""

from support.write_side import WriteSide, a_waiting_run, fact, problem, resolve


async def test_p11_two_people_decide_what_two_people_have_to(side: WriteSide) -> None:
    """To see it fail: let `machine._resolve` write no `ApprovalVoted`."""
    ada, bob = side.client(), side.client(subject="bob")
    run_id, _ = await a_waiting_run(ada, quorum=2)
    assert (await resolve(ada, run_id, key="ada")).status_code == 200
    assert (await resolve(ada, run_id, key="ada")).status_code == 200, "a repeat of the same command is no second vote"
    again = problem(await resolve(ada, run_id), 409, "already_resolved")
    assert again["recorded"]["decision"] == "approved"
    assert await side.payloads(run_id, "approval.resolved") == []
    assert (await resolve(bob, run_id)).status_code == 200
    (resolved,) = await side.payloads(run_id, "approval.resolved")
    assert len(set(resolved["approved_by"])) == 2
    assert len(await side.payloads(run_id, "approval.voted")) == 1


async def test_p11_who_asked_for_the_action_does_not_approve_it(side: WriteSide) -> None:
    """To see it fail: remove the look at `not_by` from `machine._resolve`."""
    ada, bob = side.client(), side.client(subject="bob")
    run_id, _ = await a_waiting_run(ada, not_by=["bob"])
    problem(await resolve(bob, run_id), 403, "forbidden")
    assert (await resolve(ada, run_id)).status_code == 200


async def test_p11_asking_again_after_a_no_needs_a_reason_and_a_changed_action_voids_the_question(
    side: WriteSide,
) -> None:
    """To see it fail: let `lifecycle.admit` leave out `_with_voided`."""
    me = side.client()
    run_id, epoch = await a_waiting_run(me)
    assert (await resolve(me, run_id, "rejected")).status_code == 200
    ask = {"approval_id": "a2", "tool_call_id": "c1", "description": "d", "risk": "r", "version": 1,
           "action_digest": "sha256:abc"}  # fmt: skip
    refused = problem(await me.post_events(run_id, epoch, fact("task.created", task_id="t"),
                                           fact("approval.requested", **ask)), 400, "invalid_request")  # fmt: skip
    assert refused["index"] == 1
    assert "reason_again" in refused["detail"]
    await me.append(run_id, epoch, fact("approval.requested", **ask, reason_again="they said yes by phone"))
    changed = fact("tool.requested", tool_call_id="c1", name="send_mail", arguments={"to": "y"},
                   action_digest="sha256:new")  # fmt: skip
    (placed,) = await me.append(run_id, epoch, changed)
    assert (await side.types(run_id))[-2:] == ["approval.resolved", "tool.requested"]
    assert placed["sequence"] == len(await side.types(run_id))
    late = problem(await me.command(run_id, "approval.resolve", {"approval_id": "a2", "decision": "approved"}), 409,
                   "already_resolved")  # fmt: skip
    assert late["recorded"]["decision"] == "revoked"
