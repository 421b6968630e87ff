"""Lanes, reserved bytes, and what happens to a reader that is too slow: pure parts, and over the view in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runlane.edge_gateway.burst import Piece
from runlane.edge_gateway.frames import SSE, Chunk, FactFrames
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.lanes import Gate, Lane, LaneBytes, is_critical
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.outgoing import Outgoing, OutgoingLimits, Plan, Want
from runlane.edge_gateway.pressure import Pressure, PressureLimits
from runlane.edge_gateway.preview_lane import PreviewBudget, PreviewLanes
from runlane.edge_gateway.preview_reader import PreviewReader, PreviewTotals
from runlane.edge_gateway.type_filter import EVERYTHING
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.cursor import Position
from runlane_contracts.previews import Preview, PreviewBatch, PreviewSubject
from runlane_contracts.resume import Outcome
from runlane_contracts.subjects import RunAddress
from support.edge import KEYS, Edge, FrameParser, edge
from support.eventually import eventually
from support.runs import Story

RUN = RunAddress("acme", "run_1")
PLENTY = PreviewBudget(10_000_000)
BYTES = LaneBytes(low=4, previews=10, status=20, facts=30, critical=40)
QUICK = OutgoingLimits(pressure=PressureLimits(high_bytes=2_000, low_bytes=600, coalesce_s=0.05))


def batch(*previews: Preview) -> bytes:
    return encode(PreviewBatch(tenant_id="acme", run_id="run_1", previews=previews))


def fragment(seq: int, data: str = "x", preview_id: str = "p1", operation: str = "append", **more: object) -> Preview:
    return Preview(
        preview_id=preview_id, subject=PreviewSubject(kind="message", id="m1"), preview_seq=seq, data=data,
        operation=operation, **more,
    )  # fmt: skip


def shown(chunk: Chunk | None) -> list[dict[str, object]]:
    return [frame.data for frame in FrameParser().feed(b"" if chunk is None else chunk.data)]


# --- the gate ---------------------------------------------------------------------------------------------


def test_the_more_urgent_a_lane_the_more_may_be_unsent() -> None:
    gate = Gate(BYTES)
    assert [gate.lowest(unsent) for unsent in (19, 29, 39, 40)] == [Lane.STATUS, Lane.FACTS, Lane.CRITICAL, None]


def test_a_lane_that_was_closed_stays_closed_until_the_connection_has_emptied() -> None:
    gate = Gate(BYTES)
    gate.lowest(31)
    assert gate.lowest(5) is Lane.CRITICAL
    assert gate.open() is Lane.PREVIEWS
    assert gate.lowest(5) is Lane.STATUS


def test_facts_that_somebody_waits_for_are_critical() -> None:
    assert all(map(is_critical, ["approval.requested", "input.provided", "run.completed", "tool.failed"]))
    assert not any(map(is_critical, ["message.completed", "tool.completed", "task.created", "log.compacted"]))


# --- pressure ---------------------------------------------------------------------------------------------


def test_previews_of_a_slow_reader_gather_and_flow_again_when_little_waits() -> None:
    pressure = Pressure(PressureLimits(high_bytes=50, low_bytes=10, coalesce_s=1.0, closed_s=0.1))
    assert pressure.wait_s(99, now=0.0) == 0.0
    assert not pressure.closed(99, now=0.0)
    assert pressure.closed(99, now=0.1)
    assert not pressure.closed(99, now=0.2), "it is counted once"
    assert not pressure.opened(99, now=0.4)
    assert pressure.wait_s(99, now=0.4) == 0.0, "enough has gathered"
    assert pressure.merges
    pressure.emptied(0.5)
    assert pressure.coalescing
    assert pressure.wait_s(11, now=1.0) == 0.5
    assert pressure.wait_s(11, now=1.5) == 0.0
    assert pressure.wait_s(11, now=1.6) == 0.0, "a round goes on until everything was taken"
    pressure.emptied(1.6)
    assert pressure.wait_s(10, now=2.6) == 0.0
    pressure.emptied(2.6)
    assert not pressure.coalescing
    assert pressure.wait_s(5, now=2.7) == 0.0


def test_a_connection_that_was_closed_for_a_moment_is_not_slow() -> None:
    """A large frame closes a connection until the loop has come round; that is nobody's fault."""
    pressure = Pressure(PressureLimits(high_bytes=50, closed_s=0.1))
    for now in (0.0, 1.0, 2.0):
        assert not pressure.closed(99, now=now)
        assert not pressure.opened(99, now=now + 0.05)
    assert not pressure.closed(49, now=3.0)
    assert not pressure.opened(49, now=9.0), "little waits: there is nothing to gain"
    assert not pressure.merges


# --- merging ----------------------------------------------------------------------------------------------


def test_fragments_that_gather_become_one_that_says_what_it_stands_for() -> None:
    lanes = PreviewLanes(20_000, PLENTY)
    reader = PreviewReader(lanes.previews, PreviewTotals())
    lanes.append_batch(batch(fragment(1, "An "), fragment(1, "y", "p2"), fragment(2, "apple"), fragment(3, ".")))
    first, second = shown(reader.take(10_000, SSE, merge=True))
    assert (first["data"], first["preview_seq"]) == ("An apple.", 3)
    assert first["coalesced"] == {"first_seq": 1, "last_seq": 3, "source_count": 3, "truncated": False}
    assert (second["preview_id"], second["data"]) == ("p2", "y")
    assert (reader.sent, reader.merged) == (2, 2)


def test_nothing_is_merged_across_a_gap_a_fate_or_another_operation() -> None:
    lanes = PreviewLanes(20_000, PLENTY)
    reader = PreviewReader(lanes.previews, PreviewTotals())
    lanes.append_batch(batch(
        fragment(1), fragment(3), fragment(4, "{}", operation="patch"), fragment(5), fragment(6, fate="abandoned"),
    ))  # fmt: skip
    frames = shown(reader.take(10_000, SSE, merge=True))
    assert [frame.get("preview_seq", frame.get("reason")) for frame in frames] == [1, "lost", 3, 4, 5, 6]


def test_base64_is_joined_only_where_it_can_be_read_joined() -> None:
    lanes = PreviewLanes(20_000, PLENTY)
    reader = PreviewReader(lanes.previews, PreviewTotals())
    lanes.append_batch(
        batch(*(fragment(seq, text, encoding="base64") for seq, text in ((1, "YWJj"), (2, "ZA=="), (3, "ZQ=="))))
    )
    assert [frame["data"] for frame in shown(reader.take(10_000, SSE, merge=True))] == ["YWJjZA==", "ZQ=="]


def test_of_a_status_only_the_newest_is_shown_and_it_names_what_it_stands_for() -> None:
    lanes = PreviewLanes(80_000, PLENTY)
    reader = PreviewReader(lanes.status, PreviewTotals())
    lanes.append_batch(batch(*(fragment(seq, f"{seq} %", operation="latest_value") for seq in range(1, 90))))
    (only,) = shown(reader.take(500, SSE, merge=True))
    assert (only["data"], only["coalesced"]["source_count"]) == ("89 %", 89)


def test_readers_at_the_same_place_are_given_the_same_bytes() -> None:
    lanes = PreviewLanes(20_000, PLENTY)
    first, second = (PreviewReader(lanes.previews, PreviewTotals()) for _ in range(2))
    lanes.append_batch(batch(fragment(1), fragment(2)))
    assert first.take(10_000, SSE) is second.take(10_000, SSE)


# --- what goes out next -----------------------------------------------------------------------------------


class Reader:
    """Takes what goes out next, without a connection."""

    def __init__(self, gateway, hub, lanes) -> None:
        plan = Plan(
            outcome=Outcome.RESUMED, after=Position("", 0, 0), encoder=FactFrames(KEYS, RUN, EVERYTHING), previews=lanes
        )
        self.told = 0
        self.out = Outgoing(
            hub, plan, notify=self._notify, start=gateway.hubs.start, limits=QUICK, meters=gateway.meters
        )
        self.out.open()

    def _notify(self) -> None:
        self.told += 1

    def take(self, lowest: Lane = Lane.PREVIEWS, **bounds: int) -> Piece | None:
        return self.out.take(lowest, **bounds)

    def all(self, lowest: Lane = Lane.PREVIEWS) -> list[tuple[Lane, str]]:
        found = []
        while (piece := self.take(lowest)) is not None:
            found += [(piece.lane, frame.event) for frame in FrameParser().feed(piece.chunk.data)]
        return found


@asynccontextmanager
async def reading(**limits: int) -> AsyncIterator[tuple[Story, MemoryView, Reader, Edge]]:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    view = MemoryView()
    view.store(RUN, story.facts)
    async with (
        edge(view, hub_limits=HubLimits(**limits)) as gateway,
        gateway.presence.hub(RUN) as hub,
        hub.with_previews() as lanes,
    ):
        reader = Reader(gateway, hub, lanes)
        yield story, view, reader, gateway
        reader.out.close()


async def test_facts_come_before_status_and_status_before_previews() -> None:
    async with reading() as (story, view, reader, _):
        assert [event for _, event in reader.all()] == ["fact", "fact", "synced"]
        view.preview(RUN, batch(fragment(1), fragment(1, "9 %", "s1", "latest_value")))
        story.then(events.TurnStarted(turn_id="t1"))
        view.store(RUN, story.facts[-1:])
        assert reader.all() == [(Lane.FACTS, "fact"), (Lane.STATUS, "preview"), (Lane.PREVIEWS, "preview")]


async def test_what_somebody_waits_for_pulls_what_is_before_it_into_the_critical_lane() -> None:
    async with reading() as (story, view, reader, _):
        reader.all()
        story.then(events.TurnStarted(turn_id="t1"))
        view.store(RUN, story.facts[-1:])
        assert reader.take(Lane.CRITICAL) is None
        assert reader.out.want is Want.ROOM
        story.then(events.InputRequested(input_id="i1", prompt="?"))
        view.store(RUN, story.facts[-1:])
        piece = reader.take(Lane.CRITICAL)
        assert piece is not None
        assert (piece.lane, piece.facts) == (Lane.CRITICAL, 2)


async def test_while_there_are_facts_that_are_not_allowed_there_is_no_preview() -> None:
    async with reading() as (story, view, reader, _):
        reader.all()
        view.preview(RUN, batch(fragment(1)))
        story.then(events.TurnStarted(turn_id="t1"))
        view.store(RUN, story.facts[-1:])
        assert reader.take(max_facts=0) is None
        assert reader.all() == [(Lane.FACTS, "fact"), (Lane.PREVIEWS, "preview")]


async def test_no_more_facts_are_taken_than_there_is_credit_for() -> None:
    async with reading() as (story, view, reader, _):
        reader.all()
        for index in range(5):
            story.then(events.TurnStarted(turn_id=f"t{index}"))
        view.store(RUN, story.facts[2:])
        sizes = []
        while (piece := reader.take(max_facts=2)) is not None:
            sizes.append(piece.facts)
            cursor = FrameParser().feed(piece.chunk.data)[-1].id
            assert FactFrames(KEYS, RUN, EVERYTHING).position(str(cursor)) == reader.out.position
        assert sizes == [2, 2, 1]


async def test_a_connection_that_stays_closed_to_previews_makes_them_gather() -> None:
    async with reading() as (_, view, reader, gateway):
        reader.all()
        for seq in range(1, 20):
            view.preview(RUN, batch(fragment(seq, "abc")))
        assert reader.take(Lane.FACTS) is None
        assert reader.out.want is Want.ROOM
        await asyncio.sleep(0.1)
        assert gateway.meters.coalescings == 0
        piece = reader.take()
        assert piece is not None
        assert [frame["data"] for frame in shown(piece.chunk)] == ["abc" * 19]
        assert gateway.meters.coalescings == 1
        view.preview(RUN, batch(*(fragment(seq, "d") for seq in range(20, 30))))
        assert reader.take() is None, "the next round comes later"
        assert reader.out.want is Want.NEWS
        await eventually(lambda: reader.out.lane is Lane.PREVIEWS)
        assert reader.told
        assert [len(shown(piece.chunk)) for piece in [reader.take()] if piece] == [1]
        await asyncio.sleep(0.1)
        view.preview(RUN, batch(fragment(30, "e")))
        assert reader.take() is not None
        view.preview(RUN, batch(fragment(31, "f")))
        assert reader.take() is not None, "little waited: they flow again"


async def test_beyond_the_bound_the_oldest_are_dropped_told_and_counted() -> None:
    async with reading(preview_bytes=10_000) as (_, view, reader, gateway):
        reader.all()
        for seq in range(1, 200):
            view.preview(RUN, batch(fragment(seq, "y" * 100)))
        frames = []
        while (piece := reader.take()) is not None:
            frames += FrameParser().feed(piece.chunk.data)
        assert (frames[0].event, frames[0].data["reason"]) == ("preview_gap", "slow_reader")
        assert frames[0].data["dropped"] == frames[1].data["preview_seq"] - 1
        assert frames[-1].data["preview_seq"] == 199
        assert gateway.meters.previews.losses == 1
