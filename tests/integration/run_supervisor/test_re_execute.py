"""Executing a run again: a new run, once, for whoever may, from what the old one was given."""

import asyncio
from typing import Any

import httpx

from runlane_contracts.checkpoint import CHECKPOINT_TYPE, checkpoint_artifact_id
from support.write_side import Client, WriteSide, fact, problem

PAY = fact("tool.requested", tool_call_id="c1", name="pay", arguments={"amount": 5}, side_effect="unsafe")


async def a_finished_run(me: Client, *then: dict[str, Any], **start: Any) -> str:
    run_id = await me.start_run(**start)
    epoch = await me.lease(run_id)
    await me.append(run_id, epoch, fact("run.started"), *then, fact("run.completed", output="done"))
    return run_id


async def again(me: Client, old: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await me.http.post(f"/v1/runs/{old}/re-execute", json=body, headers=headers)


async def test_a_run_is_executed_again_as_a_new_one_from_its_input(side: WriteSide) -> None:
    me = side.client()
    old = await a_finished_run(me, input={"text": "hello"}, session_id="ses_1")
    before = await side.types(old)
    reply = await again(me, old)
    assert reply.status_code == 201, reply.text
    new = reply.json()
    assert new["parent_run_id"] == old != new["run_id"]
    assert reply.headers["location"] == f"/v1/runs/{new['run_id']}"
    (created,) = await side.payloads(new["run_id"], "run.created")
    assert created == {"agent": "a", "input": {"text": "hello"}, "pool": "default", "dispatch": "external",
                       "parent_run_id": old}  # fmt: skip
    assert (await side.facts(new["run_id"]))[0].session_id == "ses_1"
    assert await side.types(old) == before
    assert await me.lease(new["run_id"]) == 1


async def test_the_same_key_executes_once_however_often_it_is_asked(side: WriteSide) -> None:
    """Also after it was refused: the first answer is given again."""
    me = side.client()
    old = await a_finished_run(me)
    replies = await asyncio.gather(*(again(me, old, "once") for _ in range(4)))
    assert {reply.status_code for reply in replies} == {201}
    (new,) = {reply.json()["run_id"] for reply in replies}
    assert await side.types(new) == ["run.created"]
    problem(await again(me, old, "once", allow_unsafe=True), 409, "idempotency_conflict")
    assert (await again(me, old, "another")).json()["run_id"] != new
    problem(await again(me, old, run_id=new), 409, "already_exists")


async def test_from_a_checkpoint_the_new_run_begins_with_it(side: WriteSide) -> None:
    me = side.client()
    kept = fact("artifact.completed", artifact_id="kept", media_type=CHECKPOINT_TYPE, content={"page": 3})
    old = await a_finished_run(me, kept)
    reply = await again(me, old, **{"from": "checkpoint"})
    assert reply.status_code == 201, reply.text
    new = reply.json()["run_id"]
    facts = await side.facts(new)
    assert [one.type for one in facts] == ["run.created", "artifact.completed"]
    assert reply.json()["sequence"] == 2
    (payload,) = await side.payloads(new, "artifact.completed")
    assert payload["content"] == {"page": 3}
    assert payload["artifact_id"] == checkpoint_artifact_id(new)
    problem(await again(me, await a_finished_run(me), **{"from": "checkpoint"}), 409, "invalid_state")


async def test_what_is_not_safe_twice_is_refused_by_name_unless_asked(side: WriteSide) -> None:
    me = side.client()
    ran = (PAY, fact("tool.running", tool_call_id="c1"), fact("tool.completed", tool_call_id="c1", result=1))
    old = await a_finished_run(me, *ran)
    refused = problem(await again(me, old, run_id="run_again"), 409, "unsafe_tools")
    assert refused["recorded"] == {"tool_calls": [{"tool_call_id": "c1", "name": "pay"}]}
    assert await side.types("run_again") == []
    assert (await again(me, old, allow_unsafe=True)).status_code == 201


async def test_a_run_that_goes_on_is_not_executed_beside_itself(side: WriteSide) -> None:
    me = side.client()
    problem(await again(me, await me.start_run()), 409, "invalid_state")


async def test_of_another_tenant_there_is_no_such_run(side: WriteSide) -> None:
    old = await a_finished_run(side.client())
    they = side.client("other")
    first, second = await again(they, old), await again(they, "run_never")
    problem(first, 404, "run_not_found")
    assert first.text == second.text


async def test_what_does_not_fit_is_refused(side: WriteSide) -> None:
    me = side.client()
    old = await a_finished_run(me)
    for body in ({"from": "the middle"}, {"origin": "input"}, {"allow_unsafe": "yes"}, {"deadline_at": "soon"},
                 {"run_id": "a.b"}):  # fmt: skip
        problem(await again(me, old, **body), 400, "invalid_request")


async def test_it_is_no_command_of_a_run_that_exists(side: WriteSide) -> None:
    me = side.client()
    old, other = await a_finished_run(me), await me.start_run()
    reply = await me.command(other, "run.re_execute", {"parent_run_id": old})
    problem(reply, 409, "already_exists")
