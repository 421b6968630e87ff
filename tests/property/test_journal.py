"""The journal: an agent that is killed at any commit and begun anew comes to the same, and does nothing twice."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from runlane.client import Executed, NotExecuted, RunContext, ToolCallFailed, ToolInProgress, UnknownCall
from runlane_contracts import events
from support.mortal_lane import RUN, Death, MortalLane, folded

STEPS = ("none", "idempotent", "unsafe", "failing", "message", "reasoning", "append", "approval", "input", "gather")


@dataclass
class World:
    """What effects did, by operation id; and what may not happen."""

    lane: MortalLane
    done: Counter[str] = field(default_factory=Counter)

    async def effect(self, call: ToolInProgress) -> Any:
        tool = self.lane.runs[RUN].life.tools[call.id]
        assert tool.status == "running", "the intent is in the log before the effect, and the outcome is not"
        self.done[call.operation_id] += 1
        await asyncio.sleep(0)
        if call.name == "failing":
            raise ToolCallFailed("no_luck", f"at {call.arguments}")
        return {"of": call.arguments}

    async def tell(self, _ctx: RunContext, call: UnknownCall) -> Executed | NotExecuted:
        return Executed({"of": call.arguments}) if self.done[call.operation_id] else NotExecuted()

    async def step(self, ctx: RunContext, kind: str, number: int) -> Any:
        match kind:
            case "message":
                async with ctx.message() as said:
                    said.preview(f"message {number}")
                return said.content
            case "reasoning":
                async with ctx.reasoning() as thought:
                    thought.complete(f"thought {number}")
                return None
            case "append":
                await ctx.append(
                    events.TurnStarted(turn_id=f"t{number}"), ("plan.updated", {"version": 1, "steps": []})
                )
                return None
            case "approval":
                return (await ctx.approval("may I?", data={"step": number})).decision
            case "input":
                answer = await ctx.ask(f"question {number}")
                return answer.value if isinstance(answer, events.InputProvided) else None
            case "gather":
                calls = (ctx.call("both", [number, n], self.effect, tool_call_id=f"g{number}_{n}") for n in range(2))
                return await asyncio.gather(*calls)
            case _:
                return await self.call(ctx, kind, number)

    async def call(self, ctx: RunContext, kind: str, number: int) -> Any:
        side_effect = kind if kind in {"none", "idempotent", "unsafe"} else "none"
        try:
            return await ctx.call(kind, number, self.effect, side_effect=side_effect)
        except ToolCallFailed as failed:
            return [failed.code, failed.message]


async def played(steps: list[str], *deaths: Death, checkpoint_after: int | None = None) -> tuple[World, dict[str, Any]]:
    lane = MortalLane(*deaths)
    world = World(lane)

    async def agent(ctx: RunContext) -> list[Any]:
        results = list(ctx.checkpointed or []) if checkpoint_after is not None else []
        for number, kind in enumerate(steps[len(results) :], len(results)):
            results.append(await world.step(ctx, kind, number))
            if number == checkpoint_after:
                await ctx.checkpoint(results)
        return results

    await lane.play(agent, reconcile=world.tell)
    return world, folded(lane)


def without_repeats(state: dict[str, Any]) -> dict[str, Any]:
    """Unsafe calls that were cut short are told apart in the log; what they came to is not."""
    items = {key: item for key, item in state["items"].items() if item.get("side_effect") != "unsafe"}
    return state | {"items": items}


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=5),
    checkpoint_after=st.one_of(st.none(), st.integers(0, 4)),
)
@pytest.mark.timeout(240)
def test_an_agent_killed_at_any_commit_comes_to_the_same_and_does_nothing_twice(
    steps: list[str], checkpoint_after: int | None
) -> None:
    """Fails without `known = self._journal.item(…)` in `Calls.answer`: then calls that have an outcome run again."""

    async def check() -> None:
        world, wanted = await played(steps, checkpoint_after=checkpoint_after)
        assert wanted["status"] == "completed"
        assert set(world.done.values()) <= {1}
        for commit in range(1, world.lane.commits + 1):
            for written in (False, True):
                death = Death(commit, written)
                again, state = await played(steps, death, checkpoint_after=checkpoint_after)
                assert without_repeats(state) == without_repeats(wanted), death
                assert again.done.keys() == world.done.keys(), "the same operations under the same ids"
                unsafe = {
                    item["operation_id"] for item in state["items"].values() if item.get("side_effect") == "unsafe"
                }
                assert all(again.done[id_] == 1 for id_ in unsafe), death
                assert sum(again.done.values()) <= sum(world.done.values()) + 2, "only what was cut short ran again"

    asyncio.run(check())


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=5),
    deaths=st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=2, max_size=4),
)
def test_an_agent_killed_again_and_again_comes_to_the_same(steps: list[str], deaths: list[tuple[int, bool]]) -> None:
    """Fails without `self._pass(…)` or with ids that differ between attempts (`Journal._id_of`)."""

    async def check() -> None:
        _, wanted = await played(steps)
        at, dying = 0, []
        for after, written in deaths:
            at += after
            dying.append(Death(at, written))
        _, state = await played(steps, *dying)
        assert without_repeats(state) == without_repeats(wanted)

    asyncio.run(check())
