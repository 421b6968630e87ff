"""Reading a run whose beginning was archived: from 1 on, from inside, from before, and with the archive away."""

from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from runlane.edge_gateway.archived_view import ArchivedView
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.run_state import RunStates, StateAt
from runlane.kernel.errors import Retryable
from runlane.object_store import archives as writing
from runlane.object_store.archives import Archives
from runlane.object_store.store import Objects
from runlane_contracts import events
from runlane_contracts.archives import ArchiveLine
from runlane_contracts.codec import encode
from runlane_contracts.cursor import Position
from runlane_contracts.reducer import checksum, initial_state, reduce
from runlane_contracts.subjects import RunAddress
from support.runs import a_short_run

RUN = RunAddress(a_short_run().run.tenant_id, a_short_run().run.run_id)
LAST = len(a_short_run().facts)


class Away(Objects):
    """An object store that can stop answering."""

    away = False
    reads = 0

    async def get(self, path: str) -> bytes | None:
        self.reads += 1
        if self.away:
            raise Retryable("the object store does not answer")
        return await super().get(path)


class Archived:
    """A run of which the stream holds `log.compacted` only."""

    def __init__(self, folder: Path) -> None:
        self.story = a_short_run()
        self.objects = Away(Objects.at(str(folder))._open_store)
        self.stream = MemoryView()
        self.view = ArchivedView(self.stream, Archives(self.objects))

    async def archive(self, size: int = 2) -> "Archived":
        writer = Archives(self.objects).writer(RUN, LAST)
        state = initial_state(*RUN)
        for family in ("log", "view"):
            for commit in self.story.commits(size):
                await writer.add(family, ArchiveLine(recorded_at="", commit=Raw(encode(commit))))
        for fact in self.story.facts:
            reduce(state, fact)
        sha256 = await writer.finish(state, "completed")
        for commit in self.story.commits(size):
            self.stream.store(RUN, commit.facts)
        self.old = await self.stream.head(RUN)
        compacted = events.LogCompacted(
            from_sequence=1, to_sequence=LAST, snapshot_ref="s", sha256=sha256, policy="p", reason="retention",
            status="completed",
        )  # fmt: skip
        self.story.then(compacted)
        self.story.facts[-1] = msgspec.structs.replace(self.story.facts[-1], lease_epoch=0)
        self.stream.store(RUN, self.story.facts[-1:])
        for commit in self.story.commits(size):
            if commit.last_sequence <= LAST:
                self.stream.cut(RUN, first_sequence=commit.first_sequence)
        self.stream._runs[RUN] = self.stream._runs[RUN][-1:]
        return self

    async def read(self, after: Position, max_bytes: int = 100) -> list[tuple[int, Position]]:
        history = History(self.view, RUN, after)
        found: list[tuple[int, Position]] = []
        while commits := await history.next(max_bytes):
            for commit in commits:
                found += [
                    (fact.sequence, Position(commit.epoch, commit.stream_seq, fact.sequence))
                    for fact in commit.facts()
                    if fact.sequence > after.sequence
                ]
        return found


@pytest.fixture
async def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archived:
    monkeypatch.setattr(writing, "PART_COMMITS", 2)
    return await Archived(tmp_path).archive()


async def test_from_the_beginning_everything_is_read(archived: Archived) -> None:
    read = await archived.read(Position("", 0, 0))
    assert [sequence for sequence, _ in read] == list(range(1, LAST + 2))


async def test_a_position_that_was_given_in_the_archive_continues_there(archived: Archived) -> None:
    """P5: at every cut, also between two parts and from the archive into the stream."""
    everything = await archived.read(Position("", 0, 0))
    for cut, (_, position) in enumerate(everything[:-1], 1):
        assert await archived.read(position) == everything[cut:]


async def test_a_position_from_before_is_told_that_it_is_gone(archived: Archived) -> None:
    for sequence in range(1, LAST):
        with pytest.raises(Hole) as hole:
            await archived.read(Position(archived.stream.epoch, 1 + sequence // 2, sequence))
        assert hole.value.is_declared
    last = Position(archived.stream.epoch, 99, LAST)
    assert [sequence for sequence, _ in await archived.read(last)] == [LAST + 1], "nothing is missing after the last"


async def test_a_position_in_an_archive_that_was_replaced_is_told_that_it_is_gone(archived: Archived) -> None:
    """An erasure leaves another archive: what was read of the first one must not be continued."""
    with pytest.raises(Hole):
        await archived.read(Position(f"archive-{LAST - 1}", 2, 3))


async def test_the_state_is_had_without_the_archive(archived: Archived) -> None:
    archived.objects.away = True
    with pytest.raises(Retryable):
        await archived.read(Position("", 0, 0))

    class Folded:
        async def load(self, run: object) -> StateAt:
            state = initial_state(*RUN)
            for fact in archived.story.facts:
                reduce(state, fact)
            return StateAt(state, Position(archived.stream.epoch, 99, LAST + 1))

        load_run = load

    at = await RunStates(archived.view, Folded()).at_least(RUN, LAST + 1)
    assert at.state["through_sequence"] == LAST + 1


async def test_the_state_at_every_sequence_comes_from_the_archive(archived: Archived) -> None:
    """P6: with nothing folded at all."""

    class Nothing:
        async def load(self, run: object) -> None:
            return None

        load_run = load

    states = RunStates(archived.view, Nothing())  # type: ignore[arg-type]
    expected = initial_state(*RUN)
    for fact in archived.story.facts:
        reduce(expected, fact)
        assert checksum((await states.at(RUN, fact.sequence)).state) == checksum(expected)


async def test_an_archive_that_was_changed_is_a_hole_and_serves_nothing(archived: Archived, tmp_path: Path) -> None:
    for part in tmp_path.rglob("view-*.zst"):
        part.write_bytes(part.read_bytes()[::-1])
    with pytest.raises(Hole) as hole:
        await archived.read(Position("", 0, 0))
    assert hole.value.is_declared


async def test_parts_that_were_read_are_kept_within_bounds(archived: Archived) -> None:
    await archived.read(Position("", 0, 0))
    reads = archived.objects.reads
    await archived.read(Position("", 0, 0))
    again = archived.objects.reads - reads
    assert again < reads, "the manifest is looked at again, the parts are not"
    small = ArchivedView(archived.stream, Archives(archived.objects), kept_bytes=1)
    archived.view = small
    assert len(await archived.read(Position("", 0, 0))) == LAST + 1
    assert small._bytes <= 1
