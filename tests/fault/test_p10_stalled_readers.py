"""P10 · Memory is bounded by bytes under any reader; critical frames are never dropped; facts overtake previews."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE, LOG_POSITION
from runlane_contracts.previews import Preview, PreviewBatch, PreviewSubject
from runlane_contracts.streams import GIB, MIB, Layout
from support.edge import FrameParser
from support.edge_process import EdgeProcess, edge_process
from support.eventually import eventually
from support.runs import Story

STALLED = 1000
FLOOD_BYTES = 100 * MIB
STEP_BYTES = 60 * 1024
BOUND_BYTES = 64 * MIB
"""Above what the gateway holds before. Each connection may hold 32 KiB; most of it is the same frames."""
LAYOUT = Layout(max_bytes=GIB)

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]


async def put(edge: EdgeProcess, facts: Sequence[Fact]) -> None:
    first, last = facts[0], facts[-1]
    commit = Commit(
        commit_id=f"c{first.sequence}", tenant_id=first.tenant_id, run_id=first.run_id,
        first_sequence=first.sequence, facts=tuple(facts),
    )  # fmt: skip
    await edge.filter.request(
        edge.layout.subjects.view(first.tenant_id, first.run_id), encode(commit),
        headers={FIRST_SEQUENCE: str(first.sequence), LAST_SEQUENCE: str(last.sequence), LOG_POSITION: "e:1"},
    )  # fmt: skip


async def stalled_watches(edge: EdgeProcess, count: int, query: str) -> list[Any]:
    """Watches that read `hello` and then nothing more."""
    watches: list[Any] = []
    greeted = 0

    def greet(data: bytes) -> None:
        nonlocal greeted
        greeted += data.count(b"event: synced")

    while len(watches) < count:
        watches += await asyncio.gather(*(edge.watch("run_1", greet, query) for _ in range(50)))
    await eventually(lambda: greeted >= count, within_s=60)
    for watch in watches:
        watch.pause()
    return watches


async def test_a_thousand_stalled_readers_cost_a_bounded_amount_and_a_reader_gets_everything(tmp_path: Path) -> None:
    async with edge_process(tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="600") as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        await put(edge, story.facts)
        watches = await stalled_watches(edge, STALLED, "from=now")
        before, highest = edge.rss_bytes, 0
        got = 0

        def read(data: bytes) -> None:
            nonlocal got
            got += data.count(b"event: fact")

        reader = await edge.watch("run_1", read)
        for step in range(FLOOD_BYTES // STEP_BYTES):
            story.then(events.MessageCompleted(message_id=f"m{step}", role="assistant", content="x" * STEP_BYTES))
            await put(edge, story.facts[-1:])
            highest = max(highest, edge.rss_bytes)
        await eventually(lambda: got == len(story.facts), within_s=60)
        assert highest - before < BOUND_BYTES, f"{(highest - before) // MIB} MiB"
        reader.close()
        for watch in watches:
            watch.close()


async def test_a_stalled_reader_that_reads_again_has_lost_nothing(tmp_path: Path) -> None:
    async with edge_process(
        tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="600", RUNLANE_EDGE_RING_BYTES="65536"
    ) as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        await put(edge, story.facts)
        body = bytearray()
        watch = await edge.watch("run_1", body.extend)
        await eventually(lambda: b"event: synced" in body)
        watch.pause()
        for step in range(300):
            story.then(events.MessageCompleted(message_id=f"m{step}", role="assistant", content="x" * STEP_BYTES))
            await put(edge, story.facts[-1:])
        watch.resume()
        story.then(events.RunCompleted())
        await put(edge, story.facts[-1:])
        await eventually(lambda: b"event: end" in body, within_s=30)
        frames = FrameParser().feed(dechunked(bytes(body)))
        assert [frame.data["sequence"] for frame in frames if frame.event == "fact"] == list(
            range(1, len(story.facts) + 1)
        )


async def test_a_reader_that_takes_nothing_is_closed_with_its_cursor(tmp_path: Path) -> None:
    async with edge_process(tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="2") as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        await put(edge, story.facts)
        body = bytearray()
        watch = await edge.watch("run_1", body.extend)
        await eventually(lambda: b"event: synced" in body)
        watch.pause()
        for step in range(100):
            story.then(events.MessageCompleted(message_id=f"m{step}", role="assistant", content="x" * STEP_BYTES))
            await put(edge, story.facts[-1:])
        await asyncio.sleep(4)
        watch.resume()
        await asyncio.wait_for(watch.closed, 15)
        frames = FrameParser().feed(dechunked(bytes(body)))
        seen = [frame for frame in frames if frame.event == "fact"]
        assert frames[-1].event == "end"
        assert frames[-1].data["reason"] == "slow_reader"
        assert [frame.data["sequence"] for frame in seen] == list(range(1, len(seen) + 1))
        assert len(seen) < len(story.facts)
        rest = bytearray()
        await edge.watch("run_1", rest.extend, f"cursor={frames[-1].data['cursor']}")
        await eventually(lambda: b"event: synced" in rest)
        facts = [frame for frame in FrameParser().feed(dechunked(bytes(rest))) if frame.event == "fact"]
        assert facts[0].data["sequence"] == len(seen) + 1


async def test_an_approval_overtakes_a_flood_of_previews(tmp_path: Path) -> None:
    async with edge_process(tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="600") as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        await put(edge, story.facts)
        body = bytearray()
        watch = await edge.watch("run_1", body.extend, "previews=true")
        await eventually(lambda: b"event: synced" in body)
        watch.pause()
        before = edge.rss_bytes
        subject = PreviewSubject(kind="message", id="m1")
        for seq in range(1, 1601):
            one = Preview(preview_id="p1", subject=subject, preview_seq=seq, data="y" * STEP_BYTES)
            batch = PreviewBatch(tenant_id="acme", run_id="run_1", previews=(one,))
            await edge.filter.nc.publish(edge.layout.subjects.preview_view("acme", "run_1"), encode(batch))
            if seq % 20 == 0:
                await edge.filter.nc.flush()
        story.then(
            events.ApprovalRequested(
                approval_id="a1", description="send it", risk="high", version=1, action_digest="d", data=None
            )
        )
        await put(edge, story.facts[-1:])
        await asyncio.sleep(0.5)
        assert edge.rss_bytes - before < 40 * MIB
        watch.resume()
        await eventually(lambda: b"preview_gap" in body and b"approval.requested" in body)
        assert bytes(body).index(b"approval.requested") < 8 * MIB
        frames = FrameParser().feed(dechunked(bytes(body)))
        shown = [frame for frame in frames if frame.event.startswith("preview")]
        reached = 0
        for frame in shown:
            first = frame.data.get("from", frame.data.get("preview_seq"))
            assert first == reached + 1
            reached = frame.data.get("to", frame.data.get("preview_seq"))
        assert any(frame.event == "preview_gap" for frame in shown)


def dechunked(raw: bytes) -> bytes:
    """The body of a chunked response, as far as it came."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    out = bytearray()
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        out += rest[:length]
        rest = rest[length + 2 :]
    return bytes(out)
