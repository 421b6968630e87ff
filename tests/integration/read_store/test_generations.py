"""A second fold beside the live one."""

import pytest

from runlane.kernel.errors import Conflict
from runlane.read_store import ReadStore, RunChange, StreamPosition
from runlane.read_store.generations import Generations
from runlane_contracts import reducer
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.runs import Story, a_short_run, a_waiting_run

STREAM = "RL_VIEW_0"


def change(story: Story) -> RunChange:
    state = reducer.initial_state(story.run.tenant_id, story.run.run_id)
    touched = {reducer.reduce(state, fact) for fact in story.facts} - {None}
    address = RunAddress(story.run.tenant_id, story.run.run_id)
    return RunChange(address, state, Position("e1", 1, len(story.facts)), frozenset(touched))  # type: ignore[arg-type]


async def write(store: ReadStore, changes: list[RunChange], stream_seq: int, generation: int | None = None) -> None:
    before = await store.progress("runs", STREAM, generation=generation)
    await store.write(changes, before=before, position=StreamPosition("e1", stream_seq))


async def test_readers_see_the_live_generation_until_the_switch(store: ReadStore) -> None:
    both = Generations(store)
    await write(store, [change(a_short_run())], 1)
    new = await both.begin()
    await write(store, [change(a_short_run()), change(a_waiting_run())], 2, new)
    assert len((await store.list_runs("acme"))[0]) == 1
    assert await store.load(RunAddress("acme", "run_2")) is None
    await both.switch(new, projection="runs")
    assert len((await store.list_runs("acme"))[0]) == 2
    assert (await store.progress("runs", STREAM)).generation == new
    assert len((await store.list_approvals("acme"))[0]) == 1


async def test_a_generation_that_is_behind_is_not_switched_to(store: ReadStore) -> None:
    both = Generations(store)
    await write(store, [], 7)
    new = await both.begin()
    for behind in (None, 6):
        if behind is not None:
            await write(store, [], behind, new)
        with pytest.raises(Conflict):
            await both.switch(new, projection="runs")
    await write(store, [], 7, new)
    await both.switch(new, projection="runs")


async def test_another_epoch_is_another_history(store: ReadStore) -> None:
    both = Generations(store)
    await write(store, [], 7)
    new = await both.begin()
    before = await store.progress("runs", STREAM, generation=new)
    await store.write([], before=before, position=StreamPosition("e2", 1))
    await both.switch(new, projection="runs")
    assert (await store.progress("runs", STREAM)).position == StreamPosition("e2", 1)


async def test_a_writer_of_a_replaced_generation_has_written_nothing(store: ReadStore) -> None:
    both = Generations(store)
    old = await store.progress("runs", STREAM)
    new = await both.begin()
    await write(store, [], 1, new)
    await both.switch(new, projection="runs")
    with pytest.raises(Conflict):
        await store.write([change(a_short_run())], before=old, position=StreamPosition("e1", 1))
    assert (await store.list_runs("acme"))[0] == []


async def test_a_second_rebuild_ends_the_first(store: ReadStore) -> None:
    both = Generations(store)
    first = await both.begin()
    second = await both.begin()
    with pytest.raises(Conflict):
        await write(store, [], 1, first)
    with pytest.raises(Conflict):
        await both.switch(first, projection="runs")
    await write(store, [], 1, second)
    await both.switch(second, projection="runs")


async def test_a_comparison_names_what_differs(store: ReadStore) -> None:
    both = Generations(store)
    await write(store, [change(a_short_run(f"run_{n}")) for n in range(4)], 1)
    new = await both.begin()
    spoiled = change(a_short_run("run_1"))
    spoiled.state["items"]["tool:c1"]["result"] = "other"
    without = change(a_short_run("run_2"))
    without = RunChange(without.run, without.state, without.position, without.items - {"message:m1"})
    await write(store, [change(a_short_run("run_0")), spoiled, without], 1, new)
    found = await both.compare(new)
    unequal = (RunAddress("acme", "run_1"), RunAddress("acme", "run_2"))
    assert await both.unequal(new) == unequal
    assert await both.unequal(new, limit=1) == unequal[:1]
    assert await both.unequal(new, after=unequal[0]) == unequal[1:]
    assert (found.runs, found.live_runs, found.comparable, found.missing) == (3, 4, 3, 1)
    assert (found.items, found.live_items) == (14, 20)
    assert found.statuses == {"completed": 3}
    assert found.live_statuses == {"completed": 4}


async def test_runs_that_are_folded_further_are_not_compared(store: ReadStore) -> None:
    both = Generations(store)
    story = a_short_run()
    await write(store, [change(story)], 1)
    new = await both.begin()
    del story.facts[-1]
    await write(store, [change(story)], 1, new)
    found = await both.compare(new)
    assert (found.comparable, found.behind) == (0, 1)
    assert await both.unequal(new) == ()
    assert await both.unsettled(new) == (RunAddress("acme", "run_1"),)


async def test_a_way_back_that_broke_off_can_be_taken_again(store: ReadStore) -> None:
    """To see it fail: let `reopen` look for what is kept only."""
    both = Generations(store)
    await write(store, [change(a_short_run())], 1)
    new = await both.begin()
    await write(store, [change(a_short_run())], 1, new)
    await both.switch(new, projection="runs")
    assert await both.reopen() == 1  # and the process died
    kept = await both.kept()
    assert kept is not None
    assert kept.generation == 1
    assert await both.reopen() == 1
    await both.switch(1, projection="runs")
    assert await both.live() == 1
    assert await both.reopen() == new
    await both.give_up(new, keep=True)
    await both.begin()
    kept = await both.kept()
    assert kept is not None
    assert kept.generation == new


async def test_what_was_replaced_is_swept_piece_by_piece(store: ReadStore) -> None:
    both = Generations(store)
    await write(store, [change(a_short_run(f"run_{n}")) for n in range(5)], 1)
    new = await both.begin()
    await write(store, [change(a_short_run("run_0"))], 1, new)
    await both.switch(new, projection="runs")
    assert await both.sweep() == 0  # kept, for a way back
    await both.forget_kept(after_s=0.0)
    swept = []
    while (count := await both.sweep(limit=2)) > 0:
        swept.append(count)
    assert swept == [2, 2, 1, 1]
    assert len((await store.list_runs("acme"))[0]) == 1
    assert await both.live() == new
