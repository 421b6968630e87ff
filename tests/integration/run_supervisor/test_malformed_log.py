"""A worker of the platform may write the log unchecked, and may write nonsense: the run goes on after it."""

from typing import Any

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Actor
from runlane_contracts.events import InputRequested
from runlane_contracts.lifecycle import draft
from runlane_contracts.subjects import RunAddress
from support.write_side import ASK, WriteSide, a_waiting_run, eventually, fact, problem, resolve

NONSENSE = (
    b"nonsense",
    b'{"commit_id": "c", "tenant_id": "demo", "run_id": "elsewhere", "first_sequence": 1, "facts": [{}]}',
    encode({"commit_id": "c", "tenant_id": "demo", "first_sequence": 3, "facts": [{"type": "run.completed"}, {}]}),
)


async def test_appends_and_decisions_go_on_after_what_is_no_commit(side: WriteSide) -> None:
    """To see it fail: let `Sequel._judged` raise what it cannot read; then each answer is `overloaded`, for ever."""
    me = side.client()
    run_id, epoch = await a_waiting_run(me)
    subject = side.layout.subjects.log("demo", run_id)
    before = len(await side.facts(run_id))
    publisher = WindowedPublisher(await side.connections.of("worker"))
    quarantined = 0
    for number, data in enumerate(NONSENSE):
        await publisher.publish(subject, data)
        await me.append(run_id, epoch, fact("turn.started", turn_id=f"t{number}"))
        await publisher.publish(subject, data)
        said = await me.command(run_id, "message.send", {"content": "go on"})
        assert said.status_code == 200, said.text
        quarantined = [one.type for one in await side.facts(run_id)].count("log.quarantined")
        assert quarantined >= 2 * (number + 1)
    assert (await resolve(me, run_id, expected_version=ASK["version"])).status_code == 200
    await me.append(run_id, epoch, fact("run.completed"))
    facts = await side.facts(run_id)
    assert [one.sequence for one in facts] == list(range(1, len(facts) + 1))
    assert len(facts) == before + quarantined + 2 * len(NONSENSE) + 3
    assert [one.type for one in facts[-3:]] == ["approval.resolved", "tool.cancelled", "run.completed"]
    await publisher.close()


async def test_a_question_that_nothing_can_answer_is_taken_back_though_nobody_checked_it(side: WriteSide) -> None:
    """To see it fail: let `moments.apply` take `expires_at` as it is; then the run waits for ever."""
    me = side.client()
    run_id, epoch = await a_waiting_run(me)
    run_log = RunLogs(await side.log(), now=utc_now, new_id=new_id).of(RunAddress("demo", run_id))
    asked = draft(InputRequested(input_id="i1", prompt="?", schema={"type": "no such type"}))
    await run_log.transact(lambda _: [asked], lease_epoch=epoch, actor=Actor(kind="agent", id="a"))

    async def taken_back() -> list[dict[str, Any]]:
        return await side.payloads(run_id, "input.cancelled")

    (payload,) = await eventually(taken_back, within_s=30)
    assert (payload["input_id"], payload["reason"]) == ("i1", "nothing can fit the schema: not a JSON Schema: $.type")
    late = problem(await me.command(run_id, "input.provide", {"input_id": "i1", "value": 1}), 409, "already_resolved")
    assert late["recorded"] == {"input_id": "i1", "decision": "cancelled"}
    assert (await resolve(me, run_id)).status_code == 200, "and the run goes on"
