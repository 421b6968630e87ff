"""What an agent does to the world: the intent before, the outcome after, and what a successor makes of either."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runlane.client import (
    Executed,
    LeaseLost,
    NotExecuted,
    RunActions,
    RunCancelled,
    RunContext,
    ToolCallFailed,
    ToolInProgress,
    UnknownCall,
)  # fmt: skip
from runlane_contracts import events
from support.eventually import eventually
from support.mortal_lane import RUN, Death, MortalLane

INTENT, OUTCOME = 2, 3
"""Commits of an agent that makes one call: `run.started`, the intent, the outcome."""


class Till:
    """Something in the world that must not be opened twice."""

    def __init__(self, lane: MortalLane) -> None:
        self.lane = lane
        self.opened: list[str] = []
        self.statuses: list[str] = []

    async def open(self, call: ToolInProgress) -> dict[str, int]:
        self.opened.append(call.operation_id)
        self.statuses.append(self.lane.runs[RUN].life.tools[call.id].status)
        return {"coins": len(self.opened)}


def one_call(till: Till, side_effect: events.SideEffect) -> Callable[[RunContext], Any]:
    async def agent(ctx: RunContext) -> object:
        return await ctx.call("open", {"till": 1}, till.open, side_effect=side_effect)

    return agent


async def test_the_intent_is_durable_before_the_effect_and_the_outcome_after_it():
    """Fails when `Calls._run` runs the effect before entering the call."""
    lane = MortalLane()
    till = Till(lane)
    assert await lane.play(one_call(till, "unsafe")) == "completed"
    assert till.statuses == ["running"]
    (asked,) = lane.payloads(RUN, "tool.requested")
    assert (asked["operation_id"], asked["side_effect"]) == (asked["tool_call_id"], "unsafe")
    assert lane.payloads(RUN, "tool.completed")[0]["result"] == {"coins": 1}
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"coins": 1}


@pytest.mark.parametrize("side_effect", ["none", "idempotent"])
async def test_a_call_that_was_cut_short_runs_again_under_the_same_operation_id(side_effect: events.SideEffect):
    """Fails when a call's id, and with it the operation's, is a fresh one (`Journal._id_of`)."""
    lane = MortalLane(Death(OUTCOME, written=False))
    till = Till(lane)
    assert await lane.play(one_call(till, side_effect)) == "completed"
    assert len(till.opened) == 2
    assert len(set(till.opened)) == 1
    assert lane.types(RUN).count("tool.requested") == 1
    assert lane.types(RUN).count("tool.running") == 2
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"coins": 2}


@pytest.mark.parametrize("side_effect", ["none", "idempotent", "unsafe"])
async def test_a_call_that_has_an_outcome_is_not_run_again(side_effect: events.SideEffect):
    """Fails without the case "completed" of `Calls.answer`."""
    lane = MortalLane(Death(OUTCOME, written=True))
    till = Till(lane)
    assert await lane.play(one_call(till, side_effect)) == "completed"
    assert len(till.opened) == 1
    assert lane.types(RUN).count("tool.running") == 1
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"coins": 1}


@pytest.mark.parametrize("death", [Death(INTENT, written=True), Death(OUTCOME, written=False)])
async def test_an_unsafe_call_that_was_cut_short_waits_visibly_until_a_person_says_what_it_did(death: Death):
    """Fails without the case "unknown" of `Calls.answer`: then the till is opened again."""
    lane = MortalLane(death)
    till = Till(lane)

    async def person() -> None:
        life = lane.runs[RUN].life
        await eventually(lambda: life.status == "waiting" and life.attempt == 2)
        (tool,) = life.tools.values()
        assert tool.status == "outcome_unknown"
        assert lane.payloads(RUN, "run.waiting") == [{"on": []}]
        await asyncio.sleep(0.05)
        assert len(till.opened) == (death.commit == OUTCOME)
        await RunActions(lane, RUN).reconcile_tool(
            tool.request.tool_call_id, "executed", "counted", result={"coins": 7}
        )

    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(lane.play(one_call(till, "unsafe")))
        await eventually(lambda: RUN in lane.runs)
        tasks.create_task(person())
    assert playing.result() == "completed"
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"coins": 7}
    assert len(till.opened) == (death.commit == OUTCOME)
    assert lane.types(RUN)[-2:] == ["run.resumed", "run.completed"]


@pytest.mark.parametrize("retried_by_a_person", [False, True])
async def test_an_unsafe_call_that_was_not_executed_runs_once_as_a_new_call_of_the_same_operation(
    retried_by_a_person: bool,
):
    """Fails without `_repetition_of`: then the person's call and our own both run."""
    lane = MortalLane(Death(INTENT, written=True))
    till = Till(lane)

    async def person() -> None:
        life = lane.runs[RUN].life
        await eventually(lambda: any(tool.status == "outcome_unknown" for tool in life.tools.values()))
        (id_,) = life.tools
        actions = RunActions(lane, RUN)
        await actions.reconcile_tool(id_, "not_executed", "the till is shut")
        if retried_by_a_person:
            await actions.retry_tool(id_)

    async def agent(ctx: RunContext) -> object:
        answer = await ctx.call("open", {"till": 1}, till.open, side_effect="unsafe")
        assert ctx.retries() == []
        return answer

    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(lane.play(agent))
        await eventually(lambda: RUN in lane.runs)
        tasks.create_task(person())
    assert playing.result() == "completed"
    first, second = lane.payloads(RUN, "tool.requested")
    assert till.opened == [first["operation_id"]] == [second["operation_id"]]
    assert (second["retry_of"], second["attempt"]) == (first["tool_call_id"], 2)


@pytest.mark.parametrize("verdict", ["executed", "not executed", "cannot tell", "raises"])
async def test_the_worker_is_asked_first_what_became_of_an_unsafe_call(verdict: str):
    """Fails without `_ask_worker`."""
    lane = MortalLane(Death(OUTCOME, written=False))
    till = Till(lane)
    asked: list[UnknownCall] = []

    async def reconcile(_ctx: RunContext, call: UnknownCall) -> Executed | NotExecuted | None:
        asked.append(call)
        if verdict == "raises":
            raise ConnectionError("the till does not answer")
        return {"executed": Executed({"coins": 5}), "not executed": NotExecuted("empty")}.get(verdict)

    async def person() -> None:
        life = lane.runs[RUN].life
        await eventually(lambda: life.status == "waiting")
        (id_,) = life.tools
        await RunActions(lane, RUN).reconcile_tool(id_, "executed", "saw it", result={"coins": 6})

    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(lane.play(one_call(till, "unsafe"), reconcile=reconcile))
        await eventually(lambda: RUN in lane.runs)
        if verdict in {"cannot tell", "raises"}:
            tasks.create_task(person())
    assert playing.result() == "completed"
    (call,) = asked
    assert (call.name, call.arguments, call.operation_id) == ("open", {"till": 1}, till.opened[0])
    wanted = {"executed": 5, "not executed": 2}.get(verdict, 6)
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"coins": wanted}
    assert ("run.waiting" in lane.types(RUN)) == (verdict in {"cannot tell", "raises"})


async def test_an_unsafe_effect_that_gets_no_answer_is_not_taken_for_failed():
    """Fails without `_NO_ANSWER`."""
    lane = MortalLane()
    ran: list[str] = []

    async def effect(call: ToolInProgress) -> None:
        ran.append(call.operation_id)
        if len(ran) == 1:
            raise TimeoutError

    async def reconcile(_ctx: RunContext, _call: UnknownCall) -> NotExecuted:
        return NotExecuted()

    async def agent(ctx: RunContext) -> None:
        await ctx.call("pay", {}, effect, side_effect="unsafe")

    assert await lane.play(agent, reconcile=reconcile) == "completed"
    assert len(ran) == 2
    assert len(set(ran)) == 1


@pytest.mark.parametrize("deaths", [(), (Death(OUTCOME, written=True),)])
async def test_a_failure_is_the_same_whether_it_happens_now_or_is_remembered(deaths: tuple[Death, ...]):
    """Fails when `Calls.answer` runs failed calls again."""
    lane = MortalLane(*deaths)
    ran = 0

    async def effect(_call: ToolInProgress) -> None:
        nonlocal ran
        ran += 1
        raise ValueError("no such till")

    async def agent(ctx: RunContext) -> list[object]:
        with pytest.raises(ToolCallFailed) as failed:
            await ctx.call("open", {}, effect)
        return [failed.value.code, failed.value.message, failed.value.retryable]

    assert await lane.play(agent) == "completed"
    assert lane.payloads(RUN, "run.completed")[0]["output"] == ["ValueError", "no such till", False]
    assert ran == 1


async def test_a_result_that_cannot_be_kept_is_said_to_have_happened():
    lane = MortalLane()

    async def effect(_call: ToolInProgress) -> object:
        return object()

    async def agent(ctx: RunContext) -> str:
        with pytest.raises(ToolCallFailed) as failed:
            await ctx.call("open", {}, effect)
        return failed.value.code

    assert await lane.play(agent) == "completed"
    assert lane.payloads(RUN, "tool.failed")[0]["error"]["code"] == "result_unfit"


async def test_an_effect_is_cancelled_when_the_lease_is_lost_and_no_other_begins():
    """Fails without `_guard` of the worker: then the effect goes on."""
    lane = MortalLane()
    seen: list[str] = []

    async def effect(_call: ToolInProgress) -> None:
        try:
            await lane.take_over(RUN)
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def agent(ctx: RunContext) -> None:
        try:
            await ctx.call("open", {}, effect)
        finally:
            for step in (ctx.call("open", {}, effect), ctx.boundary(), ctx.append(events.RunResumed())):
                with pytest.raises(LeaseLost):
                    await step
            seen.append("stopped")
            await lane.state(RUN, events.RunCompleted())

    assert await lane.play(agent) == "completed"
    assert seen == ["cancelled", "stopped"]
    assert lane.types(RUN)[-3:] == ["run.lease_lost", "run.leased", "run.completed"]


async def test_an_effect_is_cancelled_before_a_lease_runs_out_that_cannot_be_confirmed():
    """Fails without the margin of `LeaseKeeper`: then the effect goes on while another may begin it."""
    lane = MortalLane()
    loop = asyncio.get_running_loop()
    took_s: list[float] = []

    async def effect(_call: ToolInProgress) -> None:
        lane.unreachable = True
        began_s = loop.time()
        try:
            await asyncio.sleep(30)
        finally:
            took_s.append(loop.time() - began_s)
            lane.unreachable = False

    async def agent(ctx: RunContext) -> None:
        try:
            await ctx.call("open", {}, effect)
        finally:
            with pytest.raises(LeaseLost):
                await ctx.call("open", {}, effect)
            await lane.state(RUN, events.RunCompleted())

    assert await lane.play(agent, ttl_s=1.0) == "completed"
    (one,) = took_s
    assert one < 1.0


async def test_an_agent_that_is_cancelled_may_clean_up_within_its_grace():
    """Fails without `may_clean_up`: then what the agent reserved stays reserved."""
    lane = MortalLane()
    lane.cancel_deadline_at = "2099-01-01T00:00:00.000000Z"
    till = Till(lane)

    async def agent(ctx: RunContext) -> None:
        await RunActions(lane, RUN).cancel()
        try:
            while True:
                await ctx.boundary()
                await asyncio.sleep(0.01)
        except RunCancelled:
            await ctx.call("shut", {}, till.open)
            await ctx.append(events.TurnStarted(turn_id="t1"))
            raise

    assert await lane.play(agent) == "cancelled"
    assert len(till.opened) == 1
    assert lane.types(RUN)[-3:] == ["tool.completed", "turn.started", "run.cancelled"]


async def test_an_unsafe_effect_that_a_cancel_interrupts_is_not_said_to_be_cancelled():
    """Fails when `closers` take a running unsafe call for cancelled."""
    lane = MortalLane()

    async def effect(_call: ToolInProgress) -> None:
        await RunActions(lane, RUN).cancel()  # its deadline is in the past
        await asyncio.sleep(30)

    async def agent(ctx: RunContext) -> None:
        await ctx.call("pay", {}, effect, side_effect="unsafe")

    assert await lane.play(agent) == "cancelled"
    assert lane.payloads(RUN, "tool.failed")[0]["error"]["code"] == "outcome_unknown"


async def test_an_unsafe_call_that_nobody_declared_unknown_is_declared_so_and_not_run():
    """Fails without the case `"running" if …` of `_standing`: then the call cannot be entered, and the run fails."""
    lane = MortalLane(Death(OUTCOME, written=False))
    till = Till(lane)

    async def kill(run_id: str) -> None:
        await lane.state(run_id, events.RunLeaseLost(lease_epoch=lane.runs[run_id].life.lease_epoch))
        lane.work["default"].put_nowait(run_id)

    async def reconcile(_ctx: RunContext, _call: UnknownCall) -> Executed:
        return Executed({"coins": 5})

    lane.kill = kill  # type: ignore[method-assign, assignment]
    assert await lane.play(one_call(till, "unsafe"), reconcile=reconcile) == "completed"
    assert len(till.opened) == 1
    assert lane.types(RUN).count("tool.outcome_unknown") == 1
    assert lane.payloads(RUN, "run.completed")[0]["output"] == {"coins": 5}
