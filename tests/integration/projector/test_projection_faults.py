"""What goes wrong in the field with projections, each impossible here.

A snapshot's position that counts handled events; a batch that shows in pieces; an old snapshot over a newer one; a
frontier of timestamps that hides what came late.
"""

import asyncio
import random

import msgspec
import pytest

from runlane.projector.fold import ViewMessage
from runlane.read_store import ReadStore
from runlane_contracts import events, reducer
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView
from support.projection import RUN, loaded, projector_of, replayed
from support.runs import Story, a_short_run, commits_of

STREAM = "RL_VIEW_0"


@pytest.mark.parametrize("seed", range(3))
async def test_the_position_of_a_state_is_a_place_in_the_record_and_counts_nothing(store: ReadStore, seed: int) -> None:
    """Repeats, messages without facts and other runs in between move no position but by where they lie.

    To see it fail: let `apply` set the position from what it was plus one.
    """
    chance = random.Random(seed)
    story = a_short_run("run_1")
    view = MemoryView()
    last: dict[int, ViewMessage] = {}
    for number, commit in enumerate(story.commits(3)):
        view.put(*a_short_run(f"other_{number}").commits(4))
        view.put_raw(RUN, b"", first=commit.first_sequence, last=commit.first_sequence - 1)
        (last[commit.last_sequence],) = view.put(commit)
    projector = projector_of(store, view, cache_bytes=chance.choice([0, 1 << 20]))
    at = 0
    while at < len(view.messages):
        await projector.handle(STREAM, view.messages[max(0, at - chance.randint(0, 6)) : at + 1])
        at += chance.randint(1, 3)
        found = await store.load(RUN)
        if found is None:
            continue
        through = found.position.sequence
        assert found.position == Position("e1", last[through].stream_seq, found.state["through_sequence"])
        assert reducer.checksum(found.state) == replayed(story.facts[:through], "run_1")
        rest = [message for message in view.messages if message.stream_seq > found.position.stream_seq]
        assert sum(message.run == RUN and not message.is_empty for message in rest) == sum(
            through < one for one in last
        )


async def test_a_batch_shows_whole_or_not_at_all_and_in_all_its_runs_at_once(store: ReadStore) -> None:
    """Readers look all the time while commits of five facts, two runs a transaction, are folded.

    To see it fail: write the runs and the items of a batch in two transactions.
    """
    mine, theirs = a_long_run("run_1"), a_long_run("run_2")
    view = MemoryView()
    pairs = [view.put(one, other) for one, other in zip(mine.commits(5), theirs.commits(5), strict=True)]
    projector = projector_of(store, view)
    sums = {size: (replayed(mine.facts[:size], "run_1"), replayed(theirs.facts[:size], "run_2"))
            for size in range(5, len(mine.facts) + 1, 5)}  # fmt: skip
    over = asyncio.Event()
    seen: set[int] = set()

    async def look() -> None:
        while not over.is_set():
            both = await store.load_many([RUN, RunAddress("acme", "run_2")])
            if both:
                through = both[RUN].position.sequence
                assert {one.position.sequence for one in both.values()} == {through}
                assert tuple(reducer.checksum(one.state) for one in both.values()) == sums[through]
                seen.add(through)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(look())
        for pair in pairs:
            await projector.handle(STREAM, pair)
            await asyncio.sleep(0.002)
        over.set()
    assert len(seen) > 1


def a_long_run(run_id: str) -> Story:
    story = Story(run_id=run_id).then(events.RunCreated(agent="a", input=None))
    for number in range(99):
        story.then(events.MessageCompleted(message_id=f"m{number % 7}", role="assistant", content=f"{number}"))
    return story


async def test_an_older_state_never_takes_the_place_of_a_newer_one(store: ReadStore) -> None:
    """Two projectors; the one that was held up goes on with what it was given long ago.

    To see it fail: let `write` not ask where it goes on from.
    """
    story = a_short_run("run_1")
    view = MemoryView()
    messages = view.put(*story.commits(1))
    slow, quick = projector_of(store, view), projector_of(store, view)
    await slow.handle(STREAM, messages[:3])
    await quick.handle(STREAM, messages[:9])
    for late in (messages[3:5], messages[:2], messages[4:7]):
        await slow.handle(STREAM, late)
        found = await loaded(store)
        assert found.position.sequence == 9
        assert reducer.checksum(found.state) == replayed(story.facts[:9], "run_1")
    await asyncio.gather(slow.handle(STREAM, messages[6:]), quick.handle(STREAM, messages[8:]))
    assert reducer.checksum((await loaded(store)).state) == replayed(story.facts, "run_1")


async def test_no_time_hides_a_fact_or_a_run(store: ReadStore) -> None:
    """Clocks that stand still, jump and run backwards: every fact is in its state, every run in the list, once.

    To see it fail: order pages by time alone, or pass over a fact that is older than the last.
    """
    times = ["2026-03-01T00:00:05.000000Z", "2026-03-01T00:00:05.000000Z", "2026-03-01T00:00:01.000000Z",
             "2026-02-01T00:00:00.000000Z", "2026-03-01T00:00:09.000000Z"]  # fmt: skip
    view = MemoryView()
    stories = [a_short_run(f"run_{number}") for number in range(25)]
    for story in stories:
        story.facts[:] = [
            msgspec.structs.replace(fact, occurred_at=times[at % 5], recorded_at=times[-at % 5])
            for at, fact in enumerate(story.facts)
        ]
        view.put(*commits_of(story.facts, 5))
    await projector_of(store, view).handle(STREAM, view.messages)
    for story in stories:
        found = await loaded(store, RunAddress("acme", story.run.run_id))
        assert found.position.sequence == len(story.facts)
        assert reducer.checksum(found.state) == replayed(story.facts, story.run.run_id)
    for limit in (1, 4, 100):
        listed, token = await store.list_runs("acme", limit=limit)
        while token is not None:
            page, token = await store.list_runs("acme", limit=limit, page_token=token)
            listed += page
        assert sorted(row.run_id for row in listed) == sorted(story.run.run_id for story in stories)
