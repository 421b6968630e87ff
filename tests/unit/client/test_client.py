"""A client of many runs goes on where its predecessor was, whenever that ended."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runlane.client import (
    Applied,
    CheckpointRefused,
    Client,
    Connection,
    Fact,
    MemoryCheckpointStore,
    RequestRefused,
    RunState,
    SnapshotFrame,
    Synced,
    Unknown,
    selectors,
)  # fmt: skip
from runlane.client.checkpoint import opened
from runlane_contracts.lifecycle import RunLifecycle
from runlane_contracts.reducer import checksum
from support.memory_lane import MemoryLane, MemoryRun
from support.runs import a_short_run, a_waiting_run


def lane_with(*stories) -> MemoryLane:
    lane = MemoryLane("acme")
    for story in stories:
        lane.runs[story.run.run_id] = MemoryRun(story.run, list(story.facts))
    return lane


class Crash(Exception):
    """The process is gone."""


class DyingStore(MemoryCheckpointStore):
    """Keeps what was saved when the client dies with an exception: its way out saves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_dead = False
        self.saves = 0
        self.fail_next = 0

    async def save(self, parts: Any) -> None:
        if self.is_dead:
            return
        if self.fail_next:
            self.fail_next -= 1
            raise OSError("disk full")
        self.saves += 1
        await super().save(parts)


async def test_p5_a_client_that_dies_at_any_item_ends_with_the_whole_run_and_repeats_only_what_was_in_hand():
    """Save the cursor of the item in hand in `Client.follow` to see this fail."""
    lane, store, whole, seen = lane_with(a_short_run()), DyingStore(), a_short_run(), list[int]()
    told = lane.runs["run_1"] = MemoryRun(RunLifecycle(tenant_id="acme", run_id="run_1"))
    _tell(told, whole.facts[:1])

    async def live_until(sequence: int) -> None:
        async with Client(lane, store=store, save_every_s=0) as client:
            async for item in client.follow("run_1"):
                if isinstance(item, Fact):
                    seen.append(item.sequence)
                    assert client.state("run_1").sequence >= item.sequence
                    if item.sequence == sequence:
                        await client.flush()
                        store.is_dead = True
                        raise Crash
                elif isinstance(item, Synced):
                    async with told.changed:
                        _tell(told, whole.facts[len(told.facts) : sequence + 1])
                        told.changed.notify_all()

    for sequence in range(2, 12):
        store.is_dead = False
        with pytest.raises(Crash):
            await live_until(sequence)
    store.is_dead = False
    await live_until(99)
    assert seen == [2, *(number for at in range(2, 12) for number in (at, at + 1))]
    kept = opened(store.parts).runs["run_1"]
    assert kept.state is not None
    assert checksum(kept.state) == _checksum_of(whole)
    assert kept.cursor == "c12"


def _tell(run: MemoryRun, facts: Sequence[Fact]) -> None:
    run.life.evolve(facts)
    run.facts += facts


def _checksum_of(story: Any) -> str:
    state = RunState(story.run.run_id)
    for fact in story.facts:
        state.apply(fact)
    return state.checksum()


async def test_a_second_life_resumes_with_its_state_and_needs_no_snapshot():
    lane, store = lane_with(a_waiting_run()), MemoryCheckpointStore()
    async with Client(lane, store=store) as client:
        async for item in client.follow("run_2"):
            if isinstance(item, Synced):
                break
    async with Client(lane, store=store) as client:
        assert client.state("run_2").sequence == 6
        assert selectors.open_approvals(client.state("run_2").data)
        kinds = []
        async for item in client.follow("run_2"):
            kinds.append(type(item))
            if len(kinds) == 2:
                break
        assert SnapshotFrame not in kinds
    assert lane.watches[-1].cursor is not None


async def test_a_command_is_kept_before_it_leaves_and_settled_by_the_next_life():
    lane, store = lane_with(a_waiting_run()), MemoryCheckpointStore()
    async with Client(lane, store=store) as client:
        actions = client.actions("run_2")
        actions.give_up_after_s = 0.1
        lane.lose_answers.extend(["submit"] * 50)
        assert isinstance(await actions.cancel("enough"), Unknown)
        (key,) = client.pending
    lane.lose_answers.clear()
    async with Client(lane, store=store) as client:
        assert list(client.pending) == [key]
        assert isinstance((await client.recover())[key], Applied)
        assert client.pending == {}
    assert lane.types("run_2").count("run.cancel_requested") == 1
    assert opened(store.parts).pending == ()


async def test_a_command_does_not_leave_when_it_cannot_be_kept():
    lane, store = lane_with(a_waiting_run()), DyingStore()
    async with Client(lane, store=store) as client:
        store.fail_next = 1
        with pytest.raises(OSError, match="disk full"):
            await client.actions("run_2").cancel()
        assert ("submit", "run_2") not in lane.calls


async def test_the_input_is_kept_before_the_run_is_started():
    lane, store = lane_with(), MemoryCheckpointStore()
    async with Client(lane, store=store) as client:
        lane.refuse_for_good["start_run"] = "forbidden"
        with pytest.raises(RequestRefused):
            await client.start_run(agent="a", input={"q": 1}, run_id="run_9")
    lane.refuse_for_good.clear()
    async with Client(lane, store=store) as client:
        assert client.input("run_9") == {"q": 1}
        started = [await client.start_run(agent="a", input={"q": 1}, run_id="run_9") for _ in range(2)]
        assert started[0].run_id == started[1].run_id == "run_9"
        client.forget("run_9")
    assert "run_9" not in opened(store.parts).runs


async def test_a_broken_checkpoint_is_refused_whole_or_set_aside():
    lane, store = lane_with(a_short_run(), a_waiting_run()), MemoryCheckpointStore()
    async with Client(lane, store=store) as client:
        async for _ in client.follow("run_1"):
            pass
    store.parts["run/run_1"] = store.parts["run/run_1"][:-9]
    turns: list[Connection] = []
    client = Client(lane, store=store, on_connection=lambda _run, turn, _why: turns.append(turn))
    with pytest.raises(CheckpointRefused, match="run/run_1 is damaged"):
        await client.__aenter__()
    assert client.runs == {}
    assert turns == [Connection.RESTORING, Connection.FAILED]
    async with Client(lane, store=store, on_broken="set_aside") as client:
        assert "damaged" in (client.refused or "")
        assert client.runs == {}
        async for _ in client.follow("run_1"):
            pass
        assert client.state("run_1").status == "completed"


async def test_saves_are_throttled_and_a_failed_one_is_made_up_for():
    lane, store = lane_with(a_waiting_run()), DyingStore()
    async with Client(lane, store=store, save_every_s=30) as client:
        async for _ in client.follow("run_2"):
            if client.state("run_2").sequence == 6:
                break
        await asyncio.sleep(0)
        assert store.saves <= 1
        store.fail_next = 1
        client._note("run_2")
        with pytest.raises(OSError, match="disk full"):
            await client.flush()
        await client.flush()
        assert opened(store.parts).runs["run_2"].state["through_sequence"] == 6


async def test_a_run_that_ends_is_saved_at_once():
    lane, store = lane_with(a_short_run()), DyingStore()
    async with Client(lane, store=store, save_every_s=3600) as client:
        async for _ in client.follow("run_1"):
            pass
        assert opened(store.parts).runs["run_1"].cursor == "c12"
        assert client.connection("run_1") is Connection.IDLE


async def test_one_run_is_followed_once_at_a_time():
    async with Client(lane_with(a_waiting_run())) as client:
        first = client.follow("run_2")
        await anext(first)
        with pytest.raises(ValueError, match="being followed"):
            await anext(client.follow("run_2"))
        with pytest.raises(ValueError, match="being followed"):
            client.forget("run_2")
        await first.aclose()
        assert await anext(client.follow("run_2"))
