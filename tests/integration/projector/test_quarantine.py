"""A fact that the fold fails on: the view of its run stands still and says so, and nobody else is stopped."""

import pytest

from runlane.projector.projector import PROJECTION
from runlane.read_store import ReadStore
from runlane_contracts import reducer
from runlane_contracts.envelope import Fact
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView
from support.projection import loaded, projector_of, replayed
from support.runs import a_short_run, a_waiting_run

STREAM = "RL_VIEW_0"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A fold that fails on the seventh fact of run_1, half-way; `undo` mends it."""
    whole = reducer.reduce

    def fails(state: reducer.State, fact: Fact) -> str | None:
        if (fact.run_id, fact.sequence) == ("run_1", 7):
            state["run"]["half"] = "done"
            raise ZeroDivisionError
        return whole(state, fact)

    monkeypatch.setattr(reducer, "reduce", fails)
    return monkeypatch


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("cache_bytes", [1 << 20, 0])
@pytest.mark.parametrize("size", [1, 4, 100])
async def test_the_run_stands_still_before_the_commit_and_the_others_go_on(
    store: ReadStore, cache_bytes: int, size: int
) -> None:
    """To see it fail: apply the facts before the bad one of its commit, or let `Poison` out of `_fold_run`."""
    view = MemoryView()
    projector = projector_of(store, view, cache_bytes=cache_bytes)
    story, other = a_short_run("run_1"), a_short_run("run_2")
    commits = story.commits(4)  # the seventh fact is in the second
    messages = view.put(commits[0], *other.commits(4)[:1], *commits[1:], *other.commits(4)[1:])
    for start in range(0, len(messages), size):
        await projector.handle(STREAM, messages[start : start + size])
    found = await loaded(store)
    assert found.position.sequence == 4
    assert reducer.checksum(found.state) == replayed(story.facts[:4], "run_1")
    assert found.quarantined == reducer.Quarantine(sequence=7, event_id=story.facts[6].event_id, type="tool.requested")
    assert reducer.checksum((await loaded(store, RunAddress("acme", "run_2"))).state) == replayed(other.facts, "run_2")
    assert (await store.progress(PROJECTION, STREAM)).position.stream_seq == len(messages)
    assert (await projector.detail())["quarantined_runs"] == 1
    assert projector.quarantined == 1


@pytest.mark.usefixtures("broken")
async def test_the_list_says_so(store: ReadStore) -> None:
    view = MemoryView()
    await projector_of(store, view).handle(
        STREAM, view.put(*a_short_run("run_1").commits(4), *a_waiting_run("run_2").commits(4))
    )
    rows, _ = await store.list_runs("acme")
    assert {row.run_id: row.quarantined and row.quarantined.sequence for row in rows} == {"run_1": 7, "run_2": None}


async def test_a_first_fact_that_cannot_be_folded_is_a_run_all_the_same(
    store: ReadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer, "reduce", lambda _state, _fact: 1 / 0)
    view = MemoryView()
    await projector_of(store, view).handle(STREAM, view.put(*a_short_run("run_1").commits(4)))
    (row,), _ = await store.list_runs("acme")
    assert (row.run_id, row.through_sequence) == ("run_1", 0)
    assert row.quarantined is not None
    assert row.quarantined.sequence == 1


async def test_a_rebuild_with_a_mended_fold_lifts_it(store: ReadStore, broken: pytest.MonkeyPatch) -> None:
    """To see it fail: carry `quarantined` over, or take a lifted run for a difference."""
    view = MemoryView()
    projector = projector_of(store, view)
    story = a_short_run("run_1")
    await projector.handle(STREAM, view.put(*story.commits(4), *a_waiting_run("run_2").commits(4)))
    broken.undo()
    report = await projector.rebuild()
    assert (report.switched, report.reason) == (True, None)
    assert (report.quarantined, report.live_quarantined) == (0, 1)
    found = await loaded(store)
    assert found.quarantined is None
    assert reducer.checksum(found.state) == replayed(story.facts, "run_1")


async def test_a_rebuild_with_a_worse_fold_is_not_switched_to(store: ReadStore, broken: pytest.MonkeyPatch) -> None:
    view = MemoryView()
    broken.undo()
    projector = projector_of(store, view)
    await projector.handle(STREAM, view.put(*a_short_run("run_1").commits(4)))
    broken.setattr(reducer, "reduce", lambda _state, _fact: 1 / 0)
    report = await projector.rebuild()
    assert (report.switched, report.newly_quarantined) == (False, 1)
    assert "cannot be folded any more" in str(report.reason)
    assert (await loaded(store)).quarantined is None


@pytest.mark.usefixtures("broken")
async def test_a_run_that_has_to_be_read_again_stands_still_at_the_same_place(store: ReadStore) -> None:
    view = MemoryView()
    story = a_short_run("run_1")
    messages = view.put(*story.commits(4))
    projector = projector_of(store, view)
    await projector.handle(STREAM, messages[:1])
    await store.write(
        (),
        before=await store.progress(PROJECTION, STREAM),
        position=(await store.progress(PROJECTION, STREAM)).position.__class__("e1", 2),
    )
    await projector_of(store, view).handle(STREAM, messages[2:])
    found = await loaded(store)
    assert (found.position.sequence, found.quarantined and found.quarantined.sequence) == (4, 7)
