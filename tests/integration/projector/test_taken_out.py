"""Runs whose beginning was archived, and runs that were erased: what is stored is what a reader holds."""

import msgspec

from runlane.projector.projector import Projector
from runlane.read_store import ReadStore
from runlane_contracts import events, reducer
from runlane_contracts.codec import encode
from runlane_contracts.events import LogCompacted
from runlane_contracts.reducer import State
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView
from support.runs import Story, a_short_run

STREAM = "RL_VIEW_0"
RUN = RunAddress("acme", "run_1")
LAST = len(a_short_run().facts)


class Archive:
    """The state after what was taken out, or nothing."""

    def __init__(self, story: Story | None) -> None:
        self.story = story

    async def state(self, run: RunAddress, compaction: LogCompacted) -> State | None:
        if self.story is None:
            return None
        state = reducer.initial_state(*run)
        for fact in self.story.facts[: compaction.to_sequence]:
            reducer.reduce(state, fact)
        return state


def compacted(story: Story, *erased: str) -> Story:
    story.then(
        LogCompacted(
            from_sequence=1, to_sequence=len(story.facts), snapshot_ref="s", sha256="0", policy="p",
            reason="erasure" if erased else "retention", status="completed", erased=erased,
        )
    )  # fmt: skip
    story.facts[-1] = msgspec.structs.replace(story.facts[-1], lease_epoch=0)
    return story


def projector_of(store: ReadStore, view: MemoryView, archive: Archive) -> Projector:
    return Projector(store=store, views={STREAM: view}, cache_bytes=1 << 20, cache_runs=9, bases=archive)


def folded(story: Story) -> State:
    state = reducer.initial_state(*RUN)
    for fact in story.facts:
        reducer.reduce(state, fact)
    return state


async def stored(store: ReadStore) -> State:
    found = await store.load(RUN)
    assert found is not None
    return found.state


async def test_what_is_left_of_an_archived_run_is_folded_on_from_its_archive(store: ReadStore) -> None:
    """A rebuild, or an empty database, after the beginning was taken out of the view."""
    story = compacted(a_short_run())
    view = MemoryView()
    projector = projector_of(store, view, Archive(story))
    await projector.handle(STREAM, view.put(story.commits(1)[-1]))
    assert await stored(store) == folded(story)
    assert projector.folders[STREAM].holes == {}


async def test_without_its_archive_the_run_is_a_hole_and_is_reported(store: ReadStore) -> None:
    story = compacted(a_short_run())
    view = MemoryView()
    projector = projector_of(store, view, Archive(None))
    await projector.handle(STREAM, view.put(story.commits(1)[-1]))
    assert await store.load(RUN) is None
    assert projector.folders[STREAM].holes == {RUN: 1}


async def test_a_front_that_is_missing_without_a_word_is_a_hole(store: ReadStore) -> None:
    story = a_short_run().then(events.LogQuarantined(reason="late"))
    view = MemoryView()
    projector = projector_of(store, view, Archive(story))
    await projector.handle(STREAM, view.put(story.commits(1)[-1]))
    assert projector.folders[STREAM].holes == {RUN: 1}


async def test_what_is_erased_goes_from_the_store(store: ReadStore) -> None:
    """Leave `replaced` out of the write and the items stay in their table."""
    story = a_short_run()
    view = MemoryView()
    projector = projector_of(store, view, Archive(None))
    await projector.handle(STREAM, view.put(*story.commits(3)))
    items = sorted((await stored(store))["items"])
    compacted(story, items[0])
    await projector.handle(STREAM, view.put(story.commits(1)[-1]))
    assert sorted((await stored(store))["items"]) == items[1:]
    assert await stored(store) == folded(story)
    compacted(story, "*")
    await projector.handle(STREAM, view.put(story.commits(1)[-1]))
    assert await stored(store) == folded(story)
    assert (await stored(store))["items"] == {}
    approvals, _ = await store.list_approvals("acme", status=None)
    assert approvals == []
    assert b"agent" not in encode((await stored(store))["run"])
