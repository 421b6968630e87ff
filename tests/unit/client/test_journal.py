"""What a successor is told from the log, and what happens to an agent that does something else than before."""

import asyncio
from typing import Any

import pytest

from runlane.client import AlreadyRan, NonDeterministic, RunActions, RunContext, ToolInProgress
from runlane.client.transports.ports import NewRun, StartedRun
from runlane_contracts import events
from runlane_contracts.checkpoint import CHECKPOINT_TYPE, checkpoint_artifact_id
from support.eventually import eventually
from support.mortal_lane import RUN, Death, MortalLane


async def nothing(_call: ToolInProgress) -> None:
    """Does nothing."""


async def call(ctx: RunContext, name: str, arguments: Any = None) -> None:
    await ctx.call(name, arguments, nothing)


async def fault_of(lane: MortalLane, *steps: Any) -> str:
    """Play an agent whose n-th attempt takes the n-th steps; why its run failed."""

    async def agent(ctx: RunContext) -> None:
        await steps[min(ctx.attempt, len(steps)) - 1](ctx)

    assert await lane.play(agent) == "failed"
    error = lane.payloads(RUN, "run.failed")[0]["error"]
    assert error["code"] == "nondeterministic"
    return str(error["message"])


async def test_other_work_at_a_step_than_before_fails_the_run_by_name():
    """Fails without `require_same_call`: then the second call is answered with the result of the first."""

    async def first(ctx: RunContext) -> None:
        await call(ctx, "weigh", {"item": "apple"})
        await call(ctx, "weigh", {"item": "pear"})

    async def another_name(ctx: RunContext) -> None:
        await call(ctx, "count", {"item": "apple"})

    async def other_arguments(ctx: RunContext) -> None:
        await call(ctx, "weigh", {"item": "plum"})

    for other in (another_name, other_arguments):
        assert "was a call of 'weigh' before" in await fault_of(MortalLane(Death(4, written=True)), first, other)


async def test_another_kind_of_step_than_before_fails_the_run():
    """Fails without the loop in `Journal._numbered`: then it writes beside what the log has."""

    async def first(ctx: RunContext) -> None:
        await call(ctx, "weigh")
        await call(ctx, "weigh")

    async def message(ctx: RunContext) -> None:
        async with ctx.message() as said:
            said.complete("hello")

    async def append(ctx: RunContext) -> None:
        await ctx.append(events.TurnStarted(turn_id="t1"))

    lanes = [MortalLane(Death(4, written=True)) for _ in range(3)]
    assert await fault_of(lanes[0], first, message) == "step 0 was a tool before, and is a message now"
    assert await fault_of(lanes[1], first, append) == "step 0 was a tool before, and is an append now"
    assert "message.started" not in lanes[0].types(RUN)
    assert await fault_of(lanes[2], append_and_call, first) == "step 0 was an append before, and is a tool now"


async def append_and_call(ctx: RunContext) -> None:
    await ctx.append(events.TurnStarted(turn_id="t1"))
    await call(ctx, "weigh")


async def test_returning_earlier_than_before_fails_the_run():
    """Fails without `require_finished`."""

    async def first(ctx: RunContext) -> None:
        await call(ctx, "weigh")
        await call(ctx, "weigh")

    async def less(ctx: RunContext) -> None:
        await call(ctx, "weigh")

    lane = MortalLane(Death(5, written=True))
    assert "returned before a tool, step 1" in await fault_of(lane, first, less)


async def test_an_agent_that_swallows_the_error_goes_no_step_further():
    """Fails without `require_sound`."""

    async def first(ctx: RunContext) -> None:
        await call(ctx, "weigh")
        await call(ctx, "weigh")

    async def stubborn(ctx: RunContext) -> None:
        with pytest.raises(NonDeterministic):
            await call(ctx, "count")
        with pytest.raises(NonDeterministic):
            await ctx.boundary()
        with pytest.raises(NonDeterministic):
            ctx.message()
        raise RuntimeError("whatever")

    lane = MortalLane(Death(4, written=True))

    async def agent(ctx: RunContext) -> None:
        await (first if ctx.attempt == 1 else stubborn)(ctx)

    assert await lane.play(agent) == "failed"


async def test_another_question_under_the_same_id_is_not_answered_with_the_decision_of_the_first():
    """Fails without `require_same_question`: then 5000 is paid because 5 was approved."""

    async def first(ctx: RunContext) -> None:
        await ctx.approval("pay", data={"amount": 5}, approval_id="pay")
        await call(ctx, "weigh")

    async def more(ctx: RunContext) -> None:
        await ctx.approval("pay", data={"amount": 5000}, approval_id="pay")

    assert "was another question before" in await fault_of(MortalLane(Death(4, written=True)), first, more)


async def test_a_decision_with_edits_is_found_again():
    lane = MortalLane(Death(4, written=True))

    async def agent(ctx: RunContext) -> Any:
        decided = await ctx.approval("pay", data={"amount": 5}, approval_id="pay", editable=True)
        await call(ctx, "pay", decided.data)
        return decided.data

    async def person() -> None:
        await eventually(lambda: "pay" in lane.runs[RUN].life.approvals)
        await RunActions(lane, RUN).resolve_approval("pay", "modified", data={"amount": 3})

    lane._people = person  # type: ignore[method-assign]
    assert await lane.play(agent) == "completed"
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"amount": 3}
    assert lane.types(RUN).count("approval.requested") == 1


async def test_messages_are_heard_again_where_they_were_heard():
    """Fails without `causation_ids` in `_Desk.append`: then the second attempt hears both at its first boundary."""
    lane = MortalLane(Death(6, written=True))

    async def agent(ctx: RunContext) -> list[list[object]]:
        heard = []
        for number in range(3):
            if ctx.attempt == 1:
                await RunActions(lane, RUN).send(f"message {number}")
                await eventually(lambda: ctx.state.sequence >= lane.runs[RUN].life.sequence)
            said = [one.content for one in await ctx.boundary()]
            heard.append(said)
            await call(ctx, "answer", said)
        return heard

    assert await lane.play(agent) == "completed"
    assert lane.runs[RUN].life.attempt == 2
    assert lane.payloads(RUN, "run.completed")[0]["output"] == [["message 0"], ["message 1"], ["message 2"]]


async def test_a_message_that_was_sent_and_not_heard_is_heard_by_the_successor():
    lane = MortalLane(Death(3, written=True))

    async def agent(ctx: RunContext) -> list[object]:
        await call(ctx, "weigh")
        while not (said := await ctx.boundary()):
            await asyncio.sleep(0.01)
        return [one.content for one in said]

    async def person() -> None:
        await eventually(lambda: lane.runs[RUN].life.attempt == 2)
        await RunActions(lane, RUN).send("hello")

    lane._people = person  # type: ignore[method-assign]
    assert await lane.play(agent) == "completed"
    assert lane.payloads(RUN, "run.completed")[0]["output"] == ["hello"]


async def test_a_call_that_people_had_tried_again_is_tried_again_once():
    lane = MortalLane(Death(5, written=True))
    ran: list[int] = []

    async def effect(call: ToolInProgress) -> str:
        ran.append(1)
        return f"fetched {call.arguments}"

    async def agent(ctx: RunContext) -> object:
        async with ctx.tool("fetch", "u", tool_call_id="c1") as first:
            await first.failed("timeout", retryable=True)
        while not (asked := ctx.retries()):
            await ctx.boundary()
            await asyncio.sleep(0.01)
        return await ctx.call_again(asked[0], effect)

    async def person() -> None:
        await eventually(lambda: RUN in lane.runs and "tool.failed" in lane.types(RUN))
        await RunActions(lane, RUN).retry_tool("c1")

    lane._people = person  # type: ignore[method-assign]
    assert await lane.play(agent) == "completed"
    assert lane.payloads(RUN, "run.completed")[0]["output"] == "fetched u"
    assert len(ran) == 1
    assert lane.types(RUN).count("tool.failed") == 1


async def test_a_secret_in_a_result_is_masked_in_the_log_and_may_be_handed_on_all_the_same():
    """Fails without `_look_alike`: then the successor's call has other arguments than the one before.

    What it was handed on to is recorded as it is: whoever tries that call again needs the secret.
    """
    secret = "sk-ant-a1b2c3d4e5f6g7h8i9j0k1l2"
    lane = MortalLane(Death(5, written=True))

    async def find(_call: ToolInProgress) -> str:
        return secret

    async def agent(ctx: RunContext) -> None:
        found = await ctx.call("find", None, find)
        await call(ctx, "use", {"key": found})
        await call(ctx, "weigh")

    assert await lane.play(agent) == "completed"
    held = [fact.type for fact in lane.runs[RUN].facts if secret.encode() in bytes(fact.payload)]
    assert held == ["tool.requested"]


async def test_a_block_runs_again_and_says_that_it_is_done():
    """Fails when `done` is not asked before the opening and the end are written."""
    lane = MortalLane(Death(6, written=True))
    done: list[tuple[bool, bool]] = []

    async def agent(ctx: RunContext) -> list[object]:
        async with ctx.message() as said:
            said.complete(f"attempt {ctx.attempt}")
        async with ctx.tool("weigh", {}) as weighed:
            weighed.complete({"attempt": ctx.attempt})
        done.append((said.done, weighed.done))
        await call(ctx, "weigh")
        return [said.content, weighed.result]

    assert await lane.play(agent) == "completed"
    assert done == [(False, False), (True, True)]
    assert lane.payloads(RUN, "run.completed")[0]["output"] == ["attempt 1", {"attempt": 1}]
    assert lane.types(RUN).count("message.completed") == 1


async def test_an_unsafe_block_that_began_before_is_not_entered_again():
    """Fails without `ToolInProgress.__aenter__`."""
    lane = MortalLane(Death(2, written=True))
    entered = 0

    async def agent(ctx: RunContext) -> str:
        nonlocal entered
        try:
            async with ctx.tool("pay", {}, side_effect="unsafe"):
                entered += 1
        except AlreadyRan:
            return "already ran"
        return "paid"

    assert await lane.play(agent) == "completed"
    assert entered == 0
    assert lane.payloads(RUN, "run.completed")[0]["output"] == "already ran"


async def test_a_checkpoint_is_found_by_the_successor_who_goes_on_behind_it():
    """Fails without `restore` counting the steps anew: then they are not those of the first attempt."""
    lane = MortalLane(Death(6, written=True))
    ran: list[Any] = []

    async def effect(call: ToolInProgress) -> int:
        ran.append(call.arguments)
        return len(ran)

    async def agent(ctx: RunContext) -> dict[str, Any]:
        done: dict[str, Any] = ctx.checkpointed or {"page": 0, "notes": []}
        while done["page"] < 4:
            note = await ctx.call("read", done["page"], effect)
            done = {"page": done["page"] + 1, "notes": [*done["notes"], note]}
            await ctx.checkpoint(done)
        return done

    assert await lane.play(agent) == "completed"
    assert ran == [0, 1, 2, 3]
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"page": 4, "notes": [1, 2, 3, 4]}
    assert lane.types(RUN).count("artifact.completed") == 4
    assert not lane.runs[RUN].life.open_items


class BegunFrom(MortalLane):
    """Its run begins with a checkpoint of another one."""

    async def start_run(self, new: NewRun) -> StartedRun:
        started = await super().start_run(new)
        kept = {"page": 2, "notes": ["a", "b"]}
        await self.state(
            RUN,
            events.ArtifactCompleted(
                artifact_id=checkpoint_artifact_id(RUN), media_type=CHECKPOINT_TYPE, content=kept
            ),
        )  # fmt: skip
        return started


@pytest.mark.parametrize("deaths", [(), (Death(3, written=True),), (Death(6, written=False),)])
async def test_a_run_that_executes_another_again_goes_on_where_that_one_stood(deaths: tuple[Death, ...]):
    """Fails without `_begun_from`: then it begins at page 0."""
    lane = BegunFrom(*deaths)
    pages: list[Any] = []

    async def effect(call: ToolInProgress) -> str:
        pages.append(call.arguments)
        return f"p{call.arguments}"

    async def agent(ctx: RunContext) -> dict[str, Any]:
        done: dict[str, Any] = ctx.checkpointed or {"page": 0, "notes": []}
        while done["page"] < 4:
            note = await ctx.call("read", done["page"], effect)
            done = {"page": done["page"] + 1, "notes": [*done["notes"], note]}
            await ctx.checkpoint(done)
        return done

    assert await lane.play(agent) == "completed"
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"page": 4, "notes": ["a", "b", "p2", "p3"]}
    assert set(pages) == {2, 3}


async def test_an_agent_that_asks_for_no_checkpoint_begins_at_the_beginning():
    lane = BegunFrom()

    async def agent(ctx: RunContext) -> str:
        await call(ctx, "weigh")
        await ctx.checkpoint("weighed")
        return "done"

    assert await lane.play(agent) == "completed"
    assert [one["content"] for one in lane.payloads(RUN, "artifact.completed")][1:] == ["weighed"]


async def test_a_question_that_was_decided_while_nobody_drove_the_run_lets_it_go_on_visibly():
    """Fails without `_go_on`: then the run works, and is shown as waiting."""
    lane = MortalLane(Death(2, written=True))
    statuses: list[str] = []

    async def agent(ctx: RunContext) -> None:
        await ctx.approval("pay", data={})
        await eventually(lambda: ctx.state.sequence >= lane.runs[RUN].life.sequence)
        statuses.append(ctx.state.status)

    async def person() -> None:
        await eventually(lambda: RUN in lane.runs and lane.runs[RUN].life.approvals)
        (id_,) = lane.runs[RUN].life.approvals
        await RunActions(lane, RUN).resolve_approval(id_, "approved")

    kill = lane.kill

    async def kill_and_decide(run_id: str = RUN) -> None:
        work = lane.work["default"]
        await kill(run_id)
        work.get_nowait()
        await person()
        work.put_nowait(run_id)

    lane.kill = kill_and_decide  # type: ignore[method-assign]
    assert await lane.play(agent) == "completed"
    assert statuses == ["running"]


async def test_a_rejected_action_is_asked_again_with_a_reason_and_each_answer_is_found_again():
    """Fails when approvals without a name share one: then the second question is answered with the first's no."""
    lane = MortalLane(Death(6, written=True))

    async def agent(ctx: RunContext) -> list[str]:
        first = await ctx.approval("pay", data={"amount": 5})
        again = await ctx.approval("pay", data={"amount": 5}, reason_again="the invoice was corrected")
        await call(ctx, "pay")
        return [first.decision, again.decision]

    async def person() -> None:
        for number, decision in enumerate(("rejected", "approved")):
            await eventually(lambda number=number: len(lane.runs[RUN].life.approvals) > number)
            await RunActions(lane, RUN).resolve_approval(list(lane.runs[RUN].life.approvals)[number], decision)

    lane._people = person  # type: ignore[method-assign]
    assert await lane.play(agent) == "completed"
    assert lane.runs[RUN].life.attempt == 2
    assert lane.payloads(RUN, "run.completed")[0]["output"] == ["rejected", "approved"]
    assert lane.types(RUN).count("approval.requested") == 2
