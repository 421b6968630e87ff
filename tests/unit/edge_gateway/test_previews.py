"""The preview lane: order, gaps, fates and what is counted."""

import msgspec

from runlane.edge_gateway.frames import SSE, Chunk
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.preview_lane import PreviewBudget, PreviewLanes
from runlane.edge_gateway.preview_reader import PreviewReader, PreviewTotals
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.previews import Coalesced, Preview, PreviewBatch, PreviewSubject
from runlane_contracts.subjects import RunAddress
from support.edge import FrameParser, edge
from support.eventually import eventually
from support.runs import Story

RUN = RunAddress("acme", "run_1")
PLENTY = PreviewBudget(10_000_000)


def fragment(seq: int, preview_id: str = "p1", data: str = "x", first: int | None = None) -> Preview:
    coalesced = None if first is None else Coalesced(first_seq=first, last_seq=seq, source_count=seq - first + 1)
    subject = PreviewSubject(kind="message", id="m1")
    return Preview(preview_id=preview_id, subject=subject, preview_seq=seq, data=data, coalesced=coalesced)


def batch(*fragments: Preview) -> bytes:
    return encode(PreviewBatch(tenant_id="acme", run_id="run_1", previews=fragments))


def shown(chunk: Chunk | None) -> list[tuple[str, int, int]]:
    out = []
    for frame in FrameParser().feed(b"" if chunk is None else chunk.data):
        if frame.event == "preview_gap":
            out.append(("gap", frame.data["from"], frame.data["to"]))
        else:
            first = frame.data.get("coalesced", {}).get("first_seq", frame.data["preview_seq"])
            out.append(("shown", first, frame.data["preview_seq"]))
    return out


def test_a_skipped_fragment_becomes_a_gap_in_its_place() -> None:
    lane = PreviewLanes(20_000, PLENTY)
    reader = PreviewReader(lane.previews, PreviewTotals())
    lane.append_batch(batch(fragment(1), fragment(2), fragment(6, first=4)))
    assert shown(reader.take(10_000, SSE)) == [("shown", 1, 1), ("shown", 2, 2), ("gap", 3, 3), ("shown", 4, 6)]


def test_a_repeated_or_late_fragment_is_not_shown() -> None:
    lane = PreviewLanes(20_000, PLENTY)
    reader = PreviewReader(lane.previews, PreviewTotals())
    lane.append_batch(batch(fragment(1), fragment(3), fragment(2), fragment(3), fragment(4, first=3), fragment(5)))
    assert shown(reader.take(10_000, SSE)) == [
        ("shown", 1, 1), ("gap", 2, 2), ("shown", 3, 3), ("gap", 4, 4), ("shown", 5, 5),
    ]  # fmt: skip
    assert lane.counts.repeated == 3


def test_one_who_joins_late_is_told_no_gap() -> None:
    lane = PreviewLanes(20_000, PLENTY)
    lane.append_batch(batch(fragment(1), fragment(2)))
    reader = PreviewReader(lane.previews, PreviewTotals())
    lane.append_batch(batch(fragment(3)))
    assert shown(reader.take(10_000, SSE)) == [("shown", 3, 3)]


def test_a_reader_that_fell_behind_is_told_exactly_what_it_lost() -> None:
    lane = PreviewLanes(1_333, PLENTY)
    reader = PreviewReader(lane.previews, PreviewTotals())
    lane.append_batch(batch(fragment(1), fragment(1, "p2")))
    reader.take(10_000, SSE)
    for seq in range(2, 40):
        lane.append_batch(batch(fragment(seq), fragment(seq, "p2", "y" * 10)))
    frames = shown(reader.take(100_000, SSE))
    kept = [frame for frame in frames if frame[0] == "shown"]
    gaps = [frame for frame in frames if frame[0] == "gap"]
    assert [(name, first) for name, first, _ in gaps] == [("gap", 2), ("gap", 2)]
    assert kept[0][1] in {gaps[0][2] + 1, gaps[1][2] + 1}
    assert reader.sent + reader.dropped == 2 * 39
    assert lane.previews.size_bytes <= 1_000


def test_all_runs_together_hold_no_more_than_they_may() -> None:
    """Without the budget each run fills its own bound, however many there are."""
    budget = PreviewBudget(40_000)
    lanes = [PreviewLanes(8_000, budget) for _ in range(50)]
    for seq in range(1, 200):
        for lane in lanes:
            lane.append_batch(batch(fragment(seq, data="y" * 50)))
    held = [lane.previews.size_bytes for lane in lanes]
    assert budget.used_bytes == sum(held)
    assert sum(held) < 40_000 + 50 * 1_000
    assert min(held) > 0
    for lane in lanes:
        lane.close()
    assert budget.used_bytes == 0


def test_what_a_fact_has_replaced_is_shown_no_more() -> None:
    lane = PreviewLanes(20_000, PLENTY)
    reader = PreviewReader(lane.previews, PreviewTotals())
    lane.append_batch(batch(fragment(1), fragment(1, "p2")))
    lane.retire("p1")
    assert not lane.append_batch(batch(fragment(2)))
    lane.append_batch(batch(fragment(2), fragment(2, "p2")))
    assert shown(reader.take(10_000, SSE)) == [("shown", 1, 1), ("shown", 2, 2)]
    assert reader.superseded == 1
    assert lane.counts.retired == 2


def test_what_is_no_preview_is_counted_not_raised() -> None:
    lane = PreviewLanes(20_000, PLENTY)
    assert not lane.append_batch(b"nonsense")
    assert not lane.append_batch(msgspec.json.encode({"previews": [{"preview_id": 7}]}))
    assert lane.counts.malformed == lane.counts.received == 2


async def test_previews_are_shown_live_without_an_id_and_only_to_those_who_want_them() -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    view = MemoryView()
    view.store(RUN, story.facts)
    async with edge(view) as gateway:
        without = gateway.watch(RUN, from_="start")
        watching = gateway.watch(RUN, from_="start", previews="true")
        for one in (without, watching):
            await one.until("synced")
        view.preview(RUN, batch(fragment(1, data="An "), fragment(2, data="apple")))
        await watching.until("preview")
        assert [frame.data["data"] for frame in watching.of("preview")] == ["An ", "apple"]
        assert all(frame.id is None for frame in watching.of("preview"))
        story.then(events.MessageCompleted(message_id="m1", role="assistant", content="x", preview_id="p1"))
        view.store(RUN, story.facts[-1:])
        await watching.facts(3)
        view.preview(RUN, batch(fragment(3)))
        view.preview(RUN, batch(fragment(1, "p2")))
        await eventually(lambda: len(watching.of("preview")) >= 3)
        assert watching.of("preview")[-1].data["preview_id"] == "p2"
        assert without.of("preview") == []


async def test_previews_wait_for_a_reader_that_still_reads_history_and_never_hold_back_a_fact() -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    view = MemoryView()
    view.store(RUN, story.facts)
    async with edge(view, hub_limits=HubLimits(preview_bytes=2_000)) as gateway:
        watching = gateway.watch(RUN, from_="start", previews="true")
        await watching.until("synced")
        watching.hold()
        for seq in range(1, 200):
            view.preview(RUN, batch(fragment(seq, data="y" * 100)))
        story.then(events.TurnStarted(turn_id="t1"))
        view.store(RUN, story.facts[-1:])
        watching.flow()
        await watching.until("preview_gap")
        kinds = [frame.event for frame in watching.frames]
        gap = watching.of("preview_gap")[0]
        assert gap.data["reason"] == "slow_reader"
        assert gap.data["dropped"] == gap.data["to"] - gap.data["from"] + 1
        assert kinds.index("preview_gap") > len(kinds) - 1 - kinds[::-1].index("fact")
