"""P2: every run's log is gapless from 1; a reader notices anything else.

Every reader of commits (read and tail of the log in memory, of LOG and of VIEW on a real server) over runs of
random shape, read after random positions; and with holes cut into the stream.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from runlane.kernel.commit_reader import CommitReader
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Compacted, Gap
from runlane.kernel.event_log import NOTHING, StoredCommit
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.builders import a_commit, a_run
from support.nats import SMALL, nats_server

READERS = ("memory read", "memory tail", "log read", "log tail", "view read", "view tail")


@dataclass
class Lane:
    """Runs written to every place they can be read from."""

    connection: Connection
    memory: MemoryEventLog
    log: NatsEventLog
    view: CommitReader
    publisher: WindowedPublisher

    async def write(self, run: RunAddress, sizes: Sequence[int]) -> dict[str, list[Position]]:
        """The positions of its commits, by where they are."""
        places: dict[str, list[Position]] = {"memory": [], "log": [], "view": []}
        memory = log = NOTHING
        for size in sizes:
            commit = a_commit(run, log, size)
            memory = await self.memory.commit(commit, after=memory)
            log = await self.log.commit(commit, after=log)
            ack = await self.publisher.publish(SMALL.subjects.view(*run), encode(commit))
            places["memory"].append(memory)
            places["log"].append(log)
            places["view"].append(Position("", ack.seq, commit.last_sequence))
        head = await self.view.head(run)
        assert head is not None
        places["view"] = [Position(head.position.epoch, p.stream_seq, p.sequence) for p in places["view"]]
        return places

    def reader(self, name: str, run: RunAddress, after: Position) -> AsyncGenerator[StoredCommit, None]:
        """One of `READERS`."""
        place, verb = name.split()
        subject = {"memory": self.memory, "log": self.log, "view": self.view}[place]
        return subject.read(run, after=after) if verb == "read" else subject.tail(run, after=after)

    async def cut(
        self, run: RunAddress, index: int, places: dict[str, list[Position]], *, forget: bool = False
    ) -> None:
        """Take one commit out of everywhere. `forget`: and out of the places."""
        self.memory.cut(run, index)
        js = self.connection.nc.jetstream()
        await js.delete_msg(SMALL.log_stream(run.run_id), places["log"][index].stream_seq)
        await js.delete_msg(SMALL.view_stream(run.run_id), places["view"][index].stream_seq)
        if forget:
            for some in places.values():
                del some[index]

    async def compact(
        self, run: RunAddress, places: dict[str, list[Position]], *, from_sequence: int
    ) -> dict[str, list[Position]]:
        """State that everything so far was archived; all positions."""
        last = places["log"][-1]
        fact = events.LogCompacted(
            from_sequence=from_sequence, to_sequence=last.sequence, snapshot_ref="s", sha256="0", policy="p",
            reason="retention", status="completed",
        )  # fmt: skip
        commit = a_commit(run, last, 1)
        stated = msgspec.structs.replace(
            commit.facts[0], type=fact.TYPE, payload=msgspec.Raw(encode(fact)), lease_epoch=0
        )
        commit = msgspec.structs.replace(commit, facts=(stated,))
        memory = await self.memory.commit(commit, after=places["memory"][-1])
        log = await self.log.commit(commit, after=last)
        ack = await self.publisher.publish(SMALL.subjects.view(*run), encode(commit))
        view = Position(places["view"][-1].epoch, ack.seq, commit.last_sequence)
        return {
            "memory": [*places["memory"], memory], "log": [*places["log"], log], "view": [*places["view"], view],
        }  # fmt: skip


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    async with nats_server(sync_interval="2m") as server:
        connection = await connect(url=server.url, name="test")
        js = connection.nc.jetstream()
        for name, family in ((SMALL.log_stream_at(0), "log"), (SMALL.view_stream_at(0), "view")):
            # Unlike the real ones these let messages be deleted.
            await js.add_stream(name=name, subjects=[SMALL.subjects.all_of(family)], allow_direct=True)
        async with DirectReader(connection) as direct, WindowedPublisher(connection) as publisher:
            log = NatsEventLog(connection, SMALL)
            view = CommitReader(connection, direct, SMALL, family="view")
            yield Lane(connection, MemoryEventLog(), log, view, publisher)
            await log.close()
        await connection.close()


async def read_until(reader: AsyncGenerator[StoredCommit, None], last: int) -> list[StoredCommit]:
    """What a reader gives up to a sequence. A tail goes on for ever, so it is left there."""
    got: list[StoredCommit] = []
    async with contextlib.aclosing(reader), asyncio.timeout(10):
        async for stored in reader:
            got.append(stored)
            if stored.position.sequence == last:
                break
    return got


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", READERS)
async def test_p2_every_reader_gives_a_run_gapless_from_1_and_after_any_position(
    lane: Lane, name: str, seed: int
) -> None:
    random = Random(seed)
    run = a_run(f"run_{seed}")
    sizes = [random.randint(1, 6) for _ in range(random.randint(1, 25))]
    places = (await lane.write(run, sizes))[name.split(maxsplit=1)[0]]
    last = sum(sizes)

    whole = await read_until(lane.reader(name, run, NOTHING), last)
    assert [f.sequence for s in whole for f in s.commit.facts] == list(range(1, last + 1))
    assert [s.position for s in whole] == places

    for _ in range(4):
        sequence = random.randint(1, last - 1) if last > 1 else 0
        holder = next((p for p in places if p.sequence >= sequence), places[0])
        after = Position(holder.epoch, holder.stream_seq, sequence) if sequence else NOTHING
        rest = await read_until(lane.reader(name, run, after), last)
        new = [f.sequence for s in rest for f in s.commit.facts if f.sequence > sequence]
        assert new == list(range(sequence + 1, last + 1))


@pytest.mark.parametrize("name", READERS)
async def test_p2_a_hole_cut_into_the_stream_is_reported_not_skipped(lane: Lane, name: str) -> None:
    """Take the comparison of `first_sequence` out of `_read` (and `_follow_by_consumer`) and 9 follows 6."""
    run = a_run()
    places = await lane.write(run, [2, 2, 2, 2, 2])
    await lane.cut(run, 3, places)
    with pytest.raises(Gap):
        await read_until(lane.reader(name, run, NOTHING), 10)
    with pytest.raises(Gap):
        await read_until(lane.reader(name, run, places[name.split(maxsplit=1)[0]][1]), 10)


@pytest.mark.parametrize("name", READERS)
async def test_p2_a_hole_at_the_start_is_reported(lane: Lane, name: str) -> None:
    run = a_run()
    places = await lane.write(run, [1, 1, 1])
    await lane.cut(run, 0, places)
    with pytest.raises(Gap):
        await read_until(lane.reader(name, run, NOTHING), 3)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
async def test_p2_a_front_that_is_missing_is_a_hole_unless_the_record_says_so(
    lane: Lane, name: str, declared: bool
) -> None:
    """Let `compaction_in` answer for any fact, or for one that covers less, and the undeclared hole is passed."""
    run = a_run()
    places = await lane.write(run, [2, 2])
    end = await lane.compact(run, places, from_sequence=1 if declared else 2)
    for index in (0, 0):
        await lane.cut(run, index, places, forget=True)
    if not declared:
        with pytest.raises(Gap):
            await read_until(lane.reader(name, run, NOTHING), 5)
        return
    got = await read_until(lane.reader(name, run, NOTHING), 5)
    assert [fact.sequence for stored in got for fact in stored.commit.facts] == [5]
    kept = end[name.split(maxsplit=1)[0]]
    assert [stored.position for stored in await read_until(lane.reader(name, run, kept[1]), 5)] == [kept[2]]
    with pytest.raises(Compacted):
        await read_until(lane.reader(name, run, kept[0]), 5)


@pytest.mark.parametrize("name", READERS)
async def test_p2_a_position_whose_commit_is_gone_is_reported(lane: Lane, name: str) -> None:
    """Start reading one message later, without looking at the position's own, and this is silent."""
    run = a_run()
    places = await lane.write(run, [1, 1, 1])
    await lane.cut(run, 1, places)
    with pytest.raises(Gap):
        await read_until(lane.reader(name, run, places[name.split(maxsplit=1)[0]][1]), 3)


@pytest.mark.parametrize("name", ["log tail", "view tail"])
async def test_p2_a_hole_that_comes_while_a_tail_is_live_is_reported(lane: Lane, name: str) -> None:
    run = a_run()
    await lane.write(run, [1])
    live = asyncio.Event()

    async def follow() -> None:
        async with contextlib.aclosing(lane.reader(name, run, NOTHING)) as commits:
            async for _ in commits:
                live.set()

    following = asyncio.ensure_future(follow())
    await asyncio.wait_for(live.wait(), 5)
    await asyncio.sleep(0.1)
    beyond = a_commit(run, Position("", 1, 5), 1)
    subjects = SMALL.subjects
    for subject in (subjects.log(*run), subjects.view(*run), subjects.live(*run)):
        await lane.connection.nc.publish(subject, encode(beyond), headers={"Rl-Last-Sequence": "6"})
    with pytest.raises(Gap):
        await asyncio.wait_for(following, 10)
