"""Messages in, states out: once, in order, whatever is repeated, lost or broken on the way."""

import asyncio
import random
from collections.abc import Iterable

import pytest
from sqlalchemy import update

from runlane.kernel.errors import Retryable
from runlane.projector.projector import PROJECTION, Projector
from runlane.read_store import ReadStore, StreamPosition
from runlane.read_store.tables import generations
from runlane_contracts import events, reducer
from runlane_contracts.envelope import Fact
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView
from support.runs import a_short_run, a_waiting_run

STREAM = "RL_VIEW_0"


def projector_of(store: ReadStore, *views: MemoryView, cache_bytes: int = 1 << 20) -> Projector:
    return Projector(store=store, views={view.stream: view for view in views}, cache_bytes=cache_bytes, cache_runs=100)


def replayed(facts: Iterable[Fact], run_id: str) -> str:
    state = reducer.initial_state("acme", run_id)
    for fact in facts:
        reducer.reduce(state, fact)
    return reducer.checksum(state)


async def checksum(store: ReadStore, run_id: str) -> str | None:
    found = await store.load(RunAddress("acme", run_id))
    return None if found is None else reducer.checksum(found.state)


async def test_what_is_handled_is_stored_with_its_position(store: ReadStore) -> None:
    view = MemoryView()
    projector = projector_of(store, view)
    story = a_short_run()
    await projector.handle(STREAM, view.put(*story.commits(5)))
    assert await checksum(store, "run_1") == replayed(story.facts, "run_1")
    assert (await store.progress(PROJECTION, STREAM)).position == StreamPosition("e1", 3)
    assert projector.facts == 12


async def test_snapshot_and_tail_equal_replay_at_every_stored_position(store: ReadStore) -> None:
    view = MemoryView()
    projector = projector_of(store, view)
    story = a_short_run()
    for size, message in enumerate(view.put(*story.commits(1)), 1):
        await projector.handle(STREAM, [message])
        found = await store.load(RunAddress("acme", "run_1"))
        assert found is not None
        assert reducer.checksum(found.state) == replayed(story.facts[:size], "run_1")
        for fact in story.facts[found.position.sequence :]:
            reducer.reduce(found.state, fact)
        assert reducer.checksum(found.state) == replayed(story.facts, "run_1")


async def test_runs_that_are_interleaved_and_redelivered_are_each_folded_once(store: ReadStore) -> None:
    chance = random.Random(7)
    stories = [a_short_run(f"run_{n}") for n in range(12)]
    queues = [story.commits(chance.randint(1, 4)) for story in stories]
    view = MemoryView()
    while any(queues):
        queue = chance.choice([one for one in queues if one])
        view.put(queue.pop(0))
    # A cache too small for all of them, so that states are read back from the store.
    projector = projector_of(store, view, cache_bytes=9_000)
    at = 0
    while at < len(view.messages):
        size = chance.randint(1, 9)
        await projector.handle(STREAM, view.messages[max(0, at - chance.randint(0, 4)) : at + size])
        at += size
    for story in stories:
        assert await checksum(store, story.run.run_id) == replayed(story.facts, story.run.run_id)
    assert projector.facts == sum(len(story.facts) for story in stories)


async def test_messages_that_were_never_delivered_are_read_from_the_stream(store: ReadStore) -> None:
    view = MemoryView()
    projector = projector_of(store, view)
    story = a_short_run()
    messages = view.put(*story.commits(1))
    await projector.handle(STREAM, messages[:2])
    await projector.handle(STREAM, messages[9:])
    assert await checksum(store, "run_1") == replayed(story.facts, "run_1")
    assert view.run_reads == 0


async def test_a_lost_store_is_filled_again_though_the_consumer_goes_on(store: ReadStore) -> None:
    view = MemoryView()
    early, late = a_short_run("run_1"), a_waiting_run("run_2")
    view.put(*early.commits(2))
    projector = projector_of(store, view)
    await projector.handle(STREAM, view.put(*late.commits(2)))
    assert await checksum(store, "run_1") == replayed(early.facts, "run_1")
    assert await checksum(store, "run_2") == replayed(late.facts, "run_2")


async def test_a_stored_run_that_lacks_facts_is_read_again_from_the_view(store: ReadStore) -> None:
    view = MemoryView()
    story = a_short_run()
    messages = view.put(*story.commits(3))
    await projector_of(store, view).handle(STREAM, messages[:1])
    # As if a write had been lost with its position: the next message does not follow what is stored.
    before = await store.progress(PROJECTION, STREAM)
    await store.write((), before=before, position=StreamPosition("e1", 2))
    await projector_of(store, view).handle(STREAM, messages[2:3])
    assert view.run_reads == 1
    assert await checksum(store, "run_1") == replayed(story.facts[:9], "run_1")


async def test_a_hole_in_the_record_stops_that_run_and_no_other(store: ReadStore) -> None:
    view = MemoryView()
    broken, sound = a_short_run("run_1"), a_short_run("run_2")
    view.put(*broken.commits(2)[:3], *sound.commits(2)[:3])
    view.cut(2)
    view.put(*broken.commits(2)[3:], *sound.commits(2)[3:])
    projector = projector_of(store, view)
    for message in view.messages:
        await projector.handle(STREAM, [message])
    assert await checksum(store, "run_1") == replayed(broken.facts[:2], "run_1")
    assert await checksum(store, "run_2") == replayed(sound.facts, "run_2")
    assert projector.folders[STREAM].holes == {RunAddress("acme", "run_1"): 3}
    assert view.run_reads == 1, "a known hole is not looked for with every message"


async def test_a_message_nobody_can_read_marks_its_run_and_stops_nobody(store: ReadStore) -> None:
    view = MemoryView()
    broken, sound = a_short_run("run_1"), a_short_run("run_2")
    commits = broken.commits(3)
    view.put(commits[0])
    view.put_raw(RunAddress("acme", "run_1"), b"\x00garbage", first=4, last=6)
    view.put(*commits[2:], *sound.commits(3))
    await projector_of(store, view).handle(STREAM, view.messages)
    found = await store.load(RunAddress("acme", "run_1"))
    assert found is not None
    assert [mark["sequence"] for mark in found.state["marks"]] == [4, 5, 6]
    assert found.state["run"]["status"] == "completed"
    assert await checksum(store, "run_2") == replayed(sound.facts, "run_2")


async def test_a_message_without_facts_is_passed_over(store: ReadStore) -> None:
    view = MemoryView()
    story = a_short_run()
    commits = story.commits(3)
    view.put(*commits[:2])
    view.put_raw(RunAddress("acme", "run_1"), b'{"facts":[]}', first=1, last=0)
    view.put_raw(RunAddress("x", "y"), b"", first=1, last=0)
    view.put(*commits[2:])
    view.put_raw(RunAddress("acme", "run_1"), b"", first=13, last=12)
    projector = projector_of(store, view)
    for message in view.messages:
        await projector.handle(STREAM, [message])
    assert await checksum(store, "run_1") == replayed(story.facts, "run_1")
    assert view.run_reads == 0
    assert (await store.progress(PROJECTION, STREAM)).position.stream_seq == 7


async def test_two_projectors_on_one_stream_fold_each_fact_once(store: ReadStore) -> None:
    view = MemoryView()
    stories = [a_short_run(f"run_{n}") for n in range(6)]
    messages = view.put(*(commit for story in stories for commit in story.commits(2)))
    one, two = projector_of(store, view), projector_of(store, view)

    async def drive(projector: Projector, step: int) -> None:
        for start in range(0, len(messages), step):
            for _ in range(20):
                try:
                    await projector.handle(STREAM, messages[start : start + step])
                    break
                except Retryable:
                    await asyncio.sleep(0.001)

    await asyncio.gather(drive(one, 4), drive(two, 3))
    for story in stories:
        assert await checksum(store, story.run.run_id) == replayed(story.facts, story.run.run_id)
    assert one.facts + two.facts == sum(len(story.facts) for story in stories)


async def test_a_stream_made_anew_is_folded_from_its_beginning(store: ReadStore) -> None:
    view = MemoryView()
    await projector_of(store, view).handle(STREAM, view.put(*a_short_run("run_old").commits(1)))
    projector = projector_of(store, view)
    view.make_anew("e2")
    story = a_waiting_run("run_new")
    await projector.handle(STREAM, view.put(*story.commits(3)))
    assert await checksum(store, "run_new") == replayed(story.facts, "run_new")
    assert await checksum(store, "run_old") is None
    progress = await store.progress(PROJECTION, STREAM)
    assert (progress.generation, progress.position) == (2, StreamPosition("e2", 2))


async def test_a_stream_made_anew_under_a_running_projector_is_noticed(store: ReadStore) -> None:
    view = MemoryView()
    projector = projector_of(store, view)
    await projector.handle(STREAM, view.put(*a_short_run("run_old").commits(1)))
    view.make_anew("e2")
    story = a_waiting_run("run_new")
    await projector.handle(STREAM, view.put(*story.commits(3)))
    assert await checksum(store, "run_new") == replayed(story.facts, "run_new")
    assert await checksum(store, "run_old") is None


async def test_what_another_reducer_folded_is_folded_again(store: ReadStore) -> None:
    view = MemoryView()
    story = a_waiting_run("run_1")
    await projector_of(store, view).handle(STREAM, view.put(*story.commits(3)))
    async with store.writing() as connection:
        await connection.execute(update(generations).values(reducer_version=0))
    assert await checksum(store, "run_1") is None
    story.then(events.RunResumed())
    await projector_of(store, view).handle(STREAM, view.put(story.commits(1)[-1]))
    assert await checksum(store, "run_1") == replayed(story.facts, "run_1")


async def test_nothing_is_stored_while_the_broker_does_not_answer(store: ReadStore) -> None:
    view = MemoryView()
    messages = view.put(*a_short_run().commits(3))
    view.is_reachable = False
    projector = projector_of(store, view)
    with pytest.raises(Retryable):
        await projector.handle(STREAM, messages)
    assert await checksum(store, "run_1") is None
    view.is_reachable = True
    await projector.handle(STREAM, messages)
    assert await checksum(store, "run_1") == replayed(a_short_run().facts, "run_1")


async def test_a_state_that_could_not_be_stored_is_not_folded_on(
    store: ReadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = MemoryView()
    story = a_short_run()
    messages = view.put(*story.commits(3))
    projector = projector_of(store, view)
    await projector.handle(STREAM, messages[:1])
    write = store.write

    async def fails(*_args: object, **_options: object) -> None:
        raise Retryable("the disk is full")

    monkeypatch.setattr(store, "write", fails)
    with pytest.raises(Retryable):
        await projector.handle(STREAM, messages[1:2])
    monkeypatch.setattr(store, "write", write)
    await projector.handle(STREAM, messages[1:])
    assert await checksum(store, "run_1") == replayed(story.facts, "run_1")
    found = await store.load(RunAddress("acme", "run_1"))
    assert found is not None
    assert len(found.state["items"]) == 5


async def test_streams_are_folded_side_by_side(store: ReadStore) -> None:
    views = [MemoryView(f"RL_VIEW_{n}") for n in range(3)]
    projector = projector_of(store, *views)
    stories = [a_short_run(f"run_{n}") for n in range(3)]
    await asyncio.gather(
        *(
            projector.handle(view.stream, view.put(*story.commits(2)))
            for view, story in zip(views, stories, strict=True)
        )
    )
    for story in stories:
        assert await checksum(store, story.run.run_id) == replayed(story.facts, story.run.run_id)
    detail = await projector.detail()
    assert {stream: one["lag"] for stream, one in detail["streams"].items()} == dict.fromkeys(
        (view.stream for view in views), 0
    )
