"""Archiving a finished run: what lies where afterwards, and what becomes of it when somebody dies in between."""

import asyncio
from pathlib import Path

import pytest

from runlane.kernel.errors import Gap
from runlane.kernel.event_log import NOTHING
from runlane.object_store.archives import ArchiveBroken
from runlane.retention.compactor import Behind
from runlane_contracts import reducer
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from support.retained import LIFE, RUN, Fuse, Killed, Shelf, payload_of

LAST = sum(len(commit) for commit in LIFE)
ACTOR = Actor(kind="user", id="operator")


@pytest.fixture
async def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path / "objects")
    await made.write(*LIFE)
    return made


async def test_a_finished_run_lies_in_the_archive_and_its_fact_in_the_log(shelf: Shelf) -> None:
    before = [list(facts) for facts in shelf.streams()]
    state = await shelf.state()
    report = await shelf.compactor.compact(RUN, "default=30d")
    assert (report.outcome, report.from_sequence, report.to_sequence) == ("compacted", 1, LAST)
    for facts in shelf.streams():
        assert [fact.type for fact in facts] == ["log.compacted"]
        assert facts[0].sequence == LAST + 1
    said = payload_of(shelf.streams()[0][0])
    assert (said["reason"], said["status"]) == ("retention", "completed")
    assert said["policy"] == "default=30d"
    assert "erased" not in said
    assert await shelf.archived(LAST, "log") == before[0]
    assert await shelf.archived(LAST, "view") == before[1]
    assert reducer.checksum(await shelf.archived_state(LAST)) == reducer.checksum(state)


async def test_the_state_is_the_same_before_and_after(shelf: Shelf) -> None:
    """P6 on an archived run: the snapshot in the archive and the tail are the state of who was there all the time."""
    live = await shelf.state()
    await shelf.compactor.compact(RUN, "p")
    fact = shelf.streams()[1][0]
    reducer.reduce(live, fact)
    base = await shelf.archived_state(LAST)
    reducer.reduce(base, fact)
    assert reducer.checksum(base) == reducer.checksum(live)


async def test_again_there_is_nothing_to_do(shelf: Shelf) -> None:
    await shelf.compactor.compact(RUN, "p")
    files = shelf.files()
    report = await shelf.compactor.compact(RUN, "p")
    assert (report.outcome, report.commits_purged) == ("already", 0)
    assert shelf.files() == files
    assert len(shelf.streams()[0]) == 1


@pytest.mark.parametrize("commits", range(1, len(LIFE)))
async def test_a_run_that_is_not_over_is_refused_by_name(tmp_path: Path, commits: int) -> None:
    shelf = Shelf(tmp_path)
    await shelf.write(*LIFE[:commits])
    for work in (shelf.compactor.compact(RUN, "p"), shelf.compactor.erase(RUN, (), "r", ACTOR)):
        with pytest.raises(Refused) as refused:
            await work
        assert refused.value.code is Code.RUN_NOT_TERMINAL
    assert shelf.files() == {}


async def test_a_run_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with pytest.raises(Refused) as refused:
        await shelf.compactor.compact(RUN, "p")
    assert refused.value.code is Code.RUN_NOT_FOUND


async def test_what_an_archived_run_is_told_to_do_it_refuses_and_its_id_stays_used(shelf: Shelf) -> None:
    await shelf.compactor.compact(RUN, "p")
    shelf.restart()
    known = await shelf.run_logs.of(RUN).load()
    assert (known.exists, known.is_terminal, known.status, known.sequence) == (True, True, "completed", LAST + 1)


async def test_who_had_the_run_open_goes_on_after_it_was_archived(shelf: Shelf) -> None:
    """Another process holds the run as it was: the message its position names is gone."""
    behind = Shelf(shelf.folder)
    behind.log, behind.view_log = shelf.log, shelf.view_log
    behind.restart()
    open_run = behind.run_logs.of(RUN)
    await open_run.load()
    await shelf.compactor.compact(RUN, "p")
    known = await open_run.load()
    assert (known.sequence, known.status, len(known.tools)) == (LAST + 1, "completed", 1)
    half = behind.run_logs.__class__(shelf.log, now=behind.run_logs._now, new_id=behind.run_logs._new_id).of(RUN)
    half.position, half.lifecycle.sequence = Position("log", 2, 2), 2
    known = await half.load()
    assert (known.sequence, known.status) == (LAST + 1, "completed")


# --- nothing is lost ----------------------------------------------------------------------------------------


async def calls_of(folder: Path, erase: bool) -> int:
    shelf = Shelf(folder)
    await shelf.write(*LIFE)
    shelf.restart()
    await _work(shelf, erase)
    return shelf.fuse.calls


async def _work(shelf: Shelf, erase: bool) -> None:
    if erase:
        await shelf.compactor.erase(RUN, (), "asked to", ACTOR)
    else:
        await shelf.compactor.compact(RUN, "p")


@pytest.mark.parametrize("erase", [False, True], ids=["retention", "erasure"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_any_step_the_next_one_finishes_and_nothing_is_lost(
    tmp_path: Path, erase: bool, after: bool
) -> None:
    """Purge before the fact is written, or write the fact before the archive is whole, and a record is lost here."""
    steps = await calls_of(tmp_path / "count", erase)
    assert steps > 5
    for step in range(1, steps + 1):
        shelf = Shelf(tmp_path / str(step))
        await shelf.write(*LIFE)
        whole = list(shelf.streams()[1])
        shelf.restart(Fuse(at=step, after=after))
        with pytest.raises(Killed):
            await _work(shelf, erase)
        await _is_whole(shelf, whole, erase)
        shelf.restart()
        await shelf.compactor.resume(RUN)
        await _is_whole(shelf, whole, erase)
        shelf.restart()
        await _work(shelf, erase)
        await _is_whole(shelf, whole, erase)
        assert [[fact.type for fact in facts] for facts in shelf.streams()] == [["log.compacted"]] * 2
        assert await shelf.archives.known(RUN) == [LAST]


async def _is_whole(shelf: Shelf, whole: list, erase: bool) -> None:
    """Each fact is in the view, or in an archive that the log speaks of and that is what it was."""
    for family, facts in zip(("log", "view"), shelf.streams(), strict=True):
        held = [fact for fact in facts if fact.type != "log.compacted"]
        if not held:
            fact = shelf.streams()[0][0]
            manifest = await shelf.archives.manifest(RUN, LAST, sha256=payload_of(fact)["sha256"])
            assert manifest is not None
            await shelf.archives.verify(manifest)
            held = await shelf.archived(LAST, family)
        assert [(fact.sequence, fact.type) for fact in held] == [(fact.sequence, fact.type) for fact in whole]
        if not erase:
            assert [fact.payload for fact in held] == [fact.payload for fact in whole]


async def test_two_at_once_do_no_harm(shelf: Shelf) -> None:
    other = Shelf(shelf.folder)
    other.log, other.view_log = shelf.log, shelf.view_log
    other.restart()
    whole = list(shelf.streams()[1])
    await asyncio.gather(shelf.compactor.compact(RUN, "p"), other.compactor.compact(RUN, "q"), return_exceptions=True)
    shelf.restart()
    await shelf.compactor.compact(RUN, "p")
    await _is_whole(shelf, whole, erase=False)
    assert len(shelf.streams()[0]) == 1


async def test_nothing_is_taken_out_for_an_archive_that_was_changed(shelf: Shelf) -> None:
    """Leave out `verify` before the purge and the record is gone."""
    shelf.record.lags = "projector-v1-0"
    with pytest.raises(Behind):
        await shelf.compactor.compact(RUN, "p")
    part = next(path for path in shelf.folder.rglob("view-*.zst"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    shelf.restart()
    with pytest.raises(ArchiveBroken):
        await shelf.compactor.compact(RUN, "p")
    assert len(shelf.streams()[1]) == LAST + 1


@pytest.mark.parametrize("lacking", ["manifest.json", "snapshot.json", "log-00001.jsonl.zst"])
async def test_nothing_is_taken_out_for_an_archive_that_is_not_whole(shelf: Shelf, lacking: str) -> None:
    shelf.record.lags = "somebody"
    with pytest.raises(Behind):
        await shelf.compactor.compact(RUN, "p")
    next(shelf.folder.rglob(lacking)).unlink()
    shelf.restart()
    with pytest.raises(ArchiveBroken):
        await shelf.compactor.compact(RUN, "p")
    assert len(shelf.streams()[0]) == LAST + 1


async def test_nothing_is_taken_out_that_somebody_has_yet_to_read(shelf: Shelf) -> None:
    for record in (shelf.record, shelf.view):
        record.lags = "audit-sink-log-v1-0"
        with pytest.raises(Behind, match="audit-sink"):
            await shelf.compactor.compact(RUN, "p")
        assert [len(facts) for facts in shelf.streams()] == [LAST + 1, LAST + 1]
        record.lags = ""
    assert (await shelf.compactor.compact(RUN, "p")).outcome == "compacted"


async def test_nothing_is_archived_that_the_view_does_not_have_yet(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await shelf.write(*LIFE[:4])
    shelf.view.stands = True
    await shelf.write(*LIFE[4:])
    with pytest.raises(Behind):
        await shelf.compactor.compact(RUN, "p")
    assert shelf.files() == {}


@pytest.mark.parametrize("index", range(len(LIFE)))
async def test_a_run_with_a_hole_is_reported_and_left_as_it_is(shelf: Shelf, index: int) -> None:
    """P2: only what `log.compacted` declares may be missing."""
    shelf.view_log.cut(RUN, index)
    shelf.view.stands = True
    kept = [list(facts) for facts in shelf.streams()]
    with pytest.raises((Gap, Behind)):
        await shelf.compactor.compact(RUN, "p")
    assert shelf.streams() == kept
    assert not [name for name in shelf.files() if name.endswith("manifest.json")]


async def test_an_archive_that_no_fact_speaks_of_is_forgotten(shelf: Shelf) -> None:
    shelf.restart(Fuse(at=2))
    with pytest.raises(Killed):
        await shelf.compactor.compact(RUN, "p")
    assert shelf.files()
    shelf.restart()
    assert await shelf.compactor.resume(RUN) is None
    assert shelf.files() == {}
    assert [stored async for stored in shelf.log.read(RUN, after=NOTHING)]
