"""The moments in their bucket: mirrored, written by compare-and-set, gone when nothing is waited for."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.errors import Retryable
from runlane.run_supervisor.follower import LogFollower, relevant
from runlane.run_supervisor.moment_book import LOOK, MomentBook
from runlane.run_supervisor.moments import Moments
from runlane.run_supervisor.timetable import Key, Timetable
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.subjects import RunAddress
from support.buckets import MemoryBucket
from support.eventually import eventually
from support.runs import Story

RUN = RunAddress("acme", "run_1")
AT = "2099-01-01T00:00:00Z"


class World:
    def __init__(self, bucket: MemoryBucket) -> None:
        self.table = Timetable({}, now=utc_now)
        self.book = MomentBook(bucket, self.table)


def wait_until(name: str, at: str):
    def change(found: Moments) -> None:
        found.due[name] = at

    return change


def forget(found: Moments) -> None:
    found.due.clear()


@asynccontextmanager
async def mirroring(world: World):
    caught_up = asyncio.Event()
    task = asyncio.get_running_loop().create_task(world.book.mirror(caught_up))
    await caught_up.wait()
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_entry_is_made_changed_and_gone() -> None:
    bucket = MemoryBucket()
    world = World(bucket)
    await world.book.change(RUN, wait_until("deadline", AT))
    await world.book.change(RUN, wait_until("deadline", AT))
    assert bucket.writes == 1, "nothing changed the second time"
    assert bucket.keys() == ["acme.run_1"]
    assert world.book.next_at(RUN) == datetime(2099, 1, 1, tzinfo=UTC)
    assert world.table._due == {Key(LOOK, RUN): datetime(2099, 1, 1, tzinfo=UTC)}
    await world.book.change(RUN, forget)
    assert (bucket.keys(), len(world.book), len(world.table)) == ([], 0, 0)


async def test_a_new_supervisor_knows_what_the_last_one_knew() -> None:
    bucket = MemoryBucket()
    await World(bucket).book.change(RUN, wait_until("deadline", AT))
    fresh = World(bucket)
    async with mirroring(fresh):
        assert fresh.book.due(RUN) == {"deadline": AT}
        assert len(fresh.table) == 1


async def test_a_standby_follows_and_its_own_change_keeps_what_it_had_not_seen() -> None:
    bucket = MemoryBucket()
    active, standby, blind = World(bucket), World(bucket), World(bucket)
    async with mirroring(standby):
        await active.book.change(RUN, wait_until("approval:a1", AT))
        await eventually(lambda: standby.book.due(RUN) == {"approval:a1": AT})
        await blind.book.change(RUN, wait_until("approval:a2", AT))
        assert blind.book.due(RUN) == {"approval:a1": AT, "approval:a2": AT}
        await active.book.change(RUN, forget)
        await eventually(lambda: len(standby.table) == 0)


async def test_an_entry_that_cannot_be_read_is_replaced_not_fatal() -> None:
    bucket = MemoryBucket()
    await bucket.create("acme.run_1", b'{"due": 7}')
    world = World(bucket)
    async with mirroring(world):
        await world.book.change(RUN, wait_until("deadline", AT))
        assert world.book.due(RUN) == {"deadline": AT}


class Message:
    def __init__(self, data: bytes, stream_seq: int) -> None:
        self.data, self.stream_seq = data, stream_seq


def messages(story: Story, size: int = 2) -> list[Message]:
    return [Message(encode(commit), n) for n, commit in enumerate(story.commits(size), start=1)]


async def test_the_follower_keeps_what_the_facts_of_a_batch_leave() -> None:
    bucket = MemoryBucket()
    world = World(bucket)
    ended: list[RunAddress] = []

    async def on_end(run: RunAddress) -> None:
        ended.append(run)

    follower = LogFollower(world.book, on_end, now=utc_now)
    story = Story().then(events.RunCreated(agent="a", deadline_at=AT), events.RunLeased(lease_epoch=1, worker_id="w"))
    plain = Story(run_id="run_2").then(events.RunCreated(agent="a"), events.RunStarted())
    assert await follower.handle([*messages(story), *messages(plain)]) == 1
    assert bucket.keys() == ["acme.run_1"]
    story.then(events.RunStarted(), events.RunCompleted())
    assert await follower.handle(messages(story)) == 2
    assert (bucket.keys(), ended) == ([], [RUN])


async def test_a_batch_whose_moments_could_not_be_kept_is_not_done() -> None:
    bucket = MemoryBucket()
    bucket.refuse_next = 1
    follower = LogFollower(World(bucket).book, on_end=lambda _: asyncio.sleep(0), now=utc_now)
    story = Story().then(events.RunCreated(agent="a", deadline_at=AT))
    with pytest.raises(Retryable):
        await follower.handle(messages(story))
    assert await follower.handle(messages(story)) == 1
    assert bucket.keys() == ["acme.run_1"]


def test_what_is_no_commit_and_what_does_not_fit_is_passed_over() -> None:
    assert relevant(b"nonsense") == (RunAddress("", ""), [])
    story = Story().raw("run.created", b'{"agent": 7}').raw("run.of_tomorrow").raw("approval.requested", b"[]")
    assert [known for message in messages(story) for known in relevant(message.data)[1]] == []
