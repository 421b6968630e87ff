"""What an erasure leaves, and that it takes all of it."""

import hashlib
from pathlib import Path

import pytest
import zstandard

from runlane_contracts import events, reducer
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Actor, is_erased
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from support.retained import LIFE, RUN, Shelf, payload_of

LAST = sum(len(commit) for commit in LIFE)
ACTOR = Actor(kind="user", id="operator")
CANARY = b"CANARY"


@pytest.fixture
async def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path / "objects")
    await made.write(*LIFE)
    return made


def plain(files: dict[str, bytes]) -> bytes:
    """Everything that is in some files, unpacked."""
    return b"".join(
        zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 24) if name.endswith(".zst") else data
        for name, data in files.items()
    )


async def test_an_erased_fact_keeps_its_place_its_type_and_a_proof(shelf: Shelf) -> None:
    before = list(shelf.streams()[0])
    await shelf.compactor.erase(RUN, (), "asked to", ACTOR)
    for family in ("log", "view"):
        after = await shelf.archived(LAST, family)
        for was, fact in zip(before, after, strict=True):
            assert (fact.sequence, fact.type, fact.event_id) == (was.sequence, was.type, was.event_id)
            assert bytes(fact.payload) == b"{}"
            assert is_erased(fact)
            assert fact.redactions[0].sha256 == hashlib.sha256(bytes(was.payload)).hexdigest()
    said = payload_of(shelf.streams()[0][0])
    assert (said["reason"], said["policy"], said["erased"]) == ("erasure", "asked to", ["*"])
    assert shelf.streams()[0][0].actor == ACTOR


async def test_nothing_of_the_content_is_left(shelf: Shelf) -> None:
    await shelf.compactor.compact(RUN, "p")
    assert CANARY in plain(shelf.files()), "archived as it was"
    await shelf.compactor.erase(RUN, (), "asked to", ACTOR)
    assert CANARY not in plain(shelf.files())
    assert all(CANARY not in encode(facts) for facts in shelf.streams())
    assert shelf.commands.erased == [RUN]
    known = await shelf.run_logs.of(RUN).load()
    assert CANARY.decode() not in repr(known), "also not in the memory of writers"


async def test_a_state_from_before_and_one_from_after_are_equal(shelf: Shelf) -> None:
    """Take `_erase` out of the reducer and who watched keeps what was erased."""
    live = await shelf.state()
    assert CANARY in encode(live)
    await shelf.compactor.erase(RUN, (), "asked to", ACTOR)
    fact = shelf.streams()[1][0]
    reducer.reduce(live, fact)
    replayed = reducer.initial_state(*RUN)
    for one in [*await shelf.archived(LAST), fact]:
        reducer.reduce(replayed, one)
    base = await shelf.archived_state(LAST)
    reducer.reduce(base, fact)
    assert reducer.checksum(live) == reducer.checksum(replayed) == reducer.checksum(base)
    assert (live["run"]["status"], live["items"]) == ("completed", {})
    assert CANARY not in encode(live)


async def test_of_an_item_goes_what_is_about_it_and_nothing_else(shelf: Shelf) -> None:
    live = await shelf.state()
    report = await shelf.compactor.erase(RUN, ("tool:c1",), "asked to", ACTOR)
    assert report.erased == ("approval:a1", "tool:c1"), "what was asked about the call shows the call"
    archived = await shelf.archived(LAST)
    gone = {fact.type for fact in archived if is_erased(fact)}
    assert gone == {
        "tool.requested", "tool.running", "tool.completed", "approval.requested", "approval.resolved",
    }  # fmt: skip
    kept = {fact.type: payload_of(fact) for fact in archived if not is_erased(fact)}
    assert kept["run.completed"] == {"output": "CANARY output"}
    reducer.reduce(live, shelf.streams()[1][0])
    base = await shelf.archived_state(LAST)
    reducer.reduce(base, shelf.streams()[1][0])
    assert reducer.checksum(live) == reducer.checksum(base)
    assert set(live["items"]) == {"message:m1"}


async def test_one_item_after_the_other_and_then_all(shelf: Shelf) -> None:
    proofs = {fact.sequence: hashlib.sha256(bytes(fact.payload)).hexdigest() for fact in shelf.streams()[0]}
    await shelf.compactor.erase(RUN, ("message:m1",), "first", ACTOR)
    report = await shelf.compactor.erase(RUN, ("tool:c1",), "second", ACTOR)
    assert report.erased == ("approval:a1", "message:m1", "tool:c1")
    assert (await shelf.compactor.erase(RUN, ("message:m1",), "again", ACTOR)).outcome == "already"
    await shelf.compactor.erase(RUN, (), "third", ACTOR)
    assert (await shelf.compactor.erase(RUN, (), "again", ACTOR)).outcome == "already"
    assert (await shelf.compactor.erase(RUN, ("tool:c1",), "again", ACTOR)).outcome == "already"
    archived = await shelf.archived(LAST + 2)
    assert [fact.sequence for fact in archived] == list(range(1, LAST + 3))
    assert {f.sequence: f.redactions[0].sha256 for f in archived if is_erased(f)} == proofs
    assert [fact.type for fact in archived if not is_erased(fact)] == ["log.compacted"] * 2
    assert await shelf.archives.known(RUN) == [LAST + 2]


async def test_an_item_that_is_not_there_is_refused_before_anything_is_done(shelf: Shelf) -> None:
    with pytest.raises(Refused) as refused:
        await shelf.compactor.erase(RUN, ("tool:nobody",), "r", ACTOR)
    assert refused.value.code is Code.NOT_FOUND
    assert shelf.files() == {}
    assert len(shelf.streams()[0]) == LAST


async def test_content_that_facts_point_to_goes_with_them(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "objects")
    ref = events.ContentRef(uri="/v1/content/cnt_00000000000000000000000001", sha256="0", size=1)
    points = (events.ToolCompleted(tool_call_id="c1", content_ref=ref),)
    await shelf.write(*LIFE[:4], points, (events.RunCompleted(),))
    folder = tmp_path / "objects" / "content" / "acme" / "cnt_00000000000000000000000001"
    folder.mkdir(parents=True)
    for name in ("meta.json", "raw", "view"):
        (folder / name).write_bytes(CANARY)
    await shelf.compactor.compact(RUN, "p")
    assert len(list(folder.iterdir())) == 3, "an archive keeps its content"
    await shelf.compactor.erase(RUN, ("tool:c1",), "r", ACTOR)
    assert not list(folder.glob("*"))


async def test_what_is_erased_is_overwritten_also_where_archiving_only_purges(shelf: Shelf) -> None:
    shelf.compactor._overwrite = False
    await shelf.compactor.compact(RUN, "p")
    assert (shelf.record.overwritten, shelf.view.overwritten) == (False, False)
    await shelf.compactor.erase(RUN, (), "r", ACTOR)
    assert (shelf.record.overwritten, shelf.view.overwritten) == (True, True)
