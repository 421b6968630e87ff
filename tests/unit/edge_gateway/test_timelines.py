"""Rows kept between requests are those of the record as it is now."""

import asyncio
import gc

import msgspec

from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.timelines import Timelines
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Fact
from runlane_contracts.subjects import RunAddress
from runlane_contracts.timeline import timeline_of
from support.runs import Story, a_short_run

RUN = RunAddress("acme", "run_1")


def stored(view: MemoryView, facts: list[Fact], size: int = 3) -> Position:
    commit = None
    for start in range(0, len(facts), size):
        commit = view.store(RUN, facts[start : start + size])
    assert commit is not None
    return commit.position


async def test_rows_are_those_of_the_whole_record_however_often_it_was_asked() -> None:
    facts, view = a_short_run().facts, MemoryView()
    timelines = Timelines(view)
    for start in range(0, len(facts), 2):
        head = stored(view, facts[start : start + 2], size=1)
        assert (await timelines.at_least(RUN, head)).rows() == timeline_of(facts[: start + 2])


async def test_what_was_folded_is_not_read_again() -> None:
    """Take the `_keep` out: the view is read from the beginning each time."""
    facts, view = a_short_run().facts, MemoryView()
    timelines = Timelines(view)
    head = stored(view, facts)
    await timelines.at_least(RUN, head)
    read = view.pages_read
    assert (await timelines.at_least(RUN, head)).rows() == timeline_of(facts)
    assert view.pages_read == read


async def test_many_who_ask_as_the_run_goes_on_are_each_told_the_rows_of_then_or_later() -> None:
    """To see it fail: let go of the lock while somebody waits for it."""
    facts, view = a_short_run().facts, MemoryView()
    timelines = Timelines(view)
    asking = []
    for start in range(len(facts)):
        head = stored(view, facts[start : start + 1], size=1)
        asking += [asyncio.create_task(timelines.at_least(RUN, head)) for _ in range(5)]
        await asyncio.sleep(0)
    for task in asking[::3]:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert (await timelines.at_least(RUN, head)).rows() == timeline_of(facts)
    assert timelines._facts == sum(one.timeline.through_sequence for one in timelines._kept.values()) == len(facts)
    del asking, task
    await asyncio.sleep(0)
    gc.collect()
    assert not timelines._locks


async def test_little_is_kept_where_little_may_be_kept() -> None:
    facts, view = a_short_run().facts, MemoryView()
    timelines = Timelines(view, kept_facts=3)
    head = stored(view, facts)
    assert (await timelines.at_least(RUN, head)).rows() == timeline_of(facts)
    read = view.pages_read
    assert (await timelines.at_least(RUN, head)).rows() == timeline_of(facts)
    assert view.pages_read > read


async def test_a_moment_in_the_past_shows_the_rows_of_then() -> None:
    facts, view = a_short_run().facts, MemoryView()
    timelines = Timelines(view)
    await timelines.at_least(RUN, stored(view, facts))
    for sequence in range(1, len(facts) + 1):
        assert (await timelines.at(RUN, sequence)).rows() == timeline_of(facts[:sequence])


async def test_a_stream_that_was_made_anew_is_read_anew() -> None:
    facts, view = a_short_run().facts, MemoryView()
    timelines = Timelines(view)
    head = stored(view, facts)
    await timelines.at_least(RUN, head)
    view.rebuild("e2")
    again = Position("e2", head.stream_seq + 7, head.sequence)
    assert (await timelines.at_least(RUN, again)).rows() == timeline_of(facts)


async def test_what_was_taken_out_of_the_record_is_told_no_more() -> None:
    """Take the second `_fold` out: the rows still show what the record no longer holds."""
    story = Story().then(
        events.RunCreated(agent="a", input=None),
        events.MessageCompleted(message_id="m1", role="user", content="my address"),
        events.RunCompleted(),
    )
    view = MemoryView()
    timelines = Timelines(view)
    await timelines.at_least(RUN, stored(view, story.facts))
    view = MemoryView()
    timelines._view = view
    erased = msgspec.structs.replace(
        story.facts[1], payload=msgspec.Raw(b'{"message_id":"m1","role":"user","content":null}')
    )
    story.then(
        events.LogCompacted(
            from_sequence=2, to_sequence=2, snapshot_ref="-", sha256="-", policy="-", reason="erasure"
        )
    )  # fmt: skip
    head = stored(view, [story.facts[0], erased, *story.facts[2:]])
    rows = (await timelines.at_least(RUN, head)).rows()
    assert all(row.text != "my address" for row in rows)
