"""P10 · Memory is bounded by bytes under any reader; critical frames are never dropped; facts overtake previews."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runlane.kernel.connection import Connection, connect
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.previews import Preview, PreviewBatch, PreviewSubject
from runlane_contracts.streams import GIB, MIB, Layout
from support.edge import FrameParser
from support.edge_process import EdgeProcess, edge_process
from support.eventually import eventually
from support.runs import Story
from support.view_writer import put

STALLED = 1000
FLOOD_BYTES = 100 * MIB
STEP_BYTES = 60 * 1024
BOUND_BYTES = 64 * MIB
"""Above what the gateway holds before. Each connection may hold 32 KiB; most of it is the same frames."""
APPROVAL_WITHIN_S = 4 * 0.25
"""At the 99th percentile, behind a bare subscriber of the broker, so that what disk and broker took is not counted.
The promise is a quarter of it, for a machine that has nothing else to do; there it is some 20 ms."""
LAYOUT = Layout(max_bytes=GIB)

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]


def an_approval(number: int) -> events.ApprovalRequested:
    return events.ApprovalRequested(
        approval_id=f"a{number}", description="send it", risk="high", version=1, action_digest=f"d{number}", data=None
    )


async def publish_preview(edge: EdgeProcess, seq: int, size: int = STEP_BYTES) -> None:
    one = Preview(preview_id="p1", subject=PreviewSubject(kind="message", id="m1"), preview_seq=seq, data="y" * size)
    batch = PreviewBatch(tenant_id="acme", run_id="run_1", previews=(one,))
    await edge.filter.nc.publish(edge.layout.subjects.preview_view("acme", "run_1"), encode(batch))


async def observing(edge: EdgeProcess, on_live: Callable[[Any], Awaitable[None]]) -> Connection:
    assert edge.server.passwords is not None
    password = edge.server.passwords["observer"]
    observer = await connect(url=edge.server.url, user="observer", password=password, name="observer")
    await observer.nc.subscribe(edge.layout.subjects.live("acme", "run_1"), cb=on_live)
    await observer.nc.flush()
    return observer


async def stalled_watches(
    edge: EdgeProcess, count: int, query: str, *, run_id: str = "run_1", after: bytes
) -> list[Any]:
    """Watches that read until they have seen something, and then nothing more."""
    watches: list[Any] = []

    async def one() -> None:
        seen = bytearray()
        found = asyncio.Event()

        def greet(data: bytes) -> None:
            seen.extend(data)
            if after in seen:
                found.set()
                watch.pause()

        watch = await edge.watch("run_1", greet, query)
        await asyncio.wait_for(found.wait(), 60)
        watches.append(watch)

    while len(watches) < count:
        await asyncio.gather(*(one() for _ in range(50)))
    return watches


async def test_a_thousand_stalled_readers_cost_a_bounded_amount_and_a_healthy_one_gets_all(
    tmp_path: Path,
) -> None:
    """A hundred megabytes of facts, a quarter as much of previews, and approvals in between.

    Let `TransportConnection.paused` be never true, and all that is unsent is in memory; let `Outgoing.lane` name
    previews before facts, and approvals come late.
    """
    async with edge_process(tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="600") as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        await put(edge, story.facts)
        watches = await stalled_watches(edge, STALLED, "from=now&previews=true", after=b"event: synced")
        before, highest = edge.rss_bytes, 0
        got = 0
        approved = asyncio.Event()

        def read(data: bytes) -> None:
            nonlocal got
            got += data.count(b"event: fact")
            if b"approval.requested" in data:
                approved.set()

        reader = await edge.watch("run_1", read, "from=start&previews=true")
        took: list[float] = []
        stored = asyncio.Event()

        async def on_live(message: Any) -> None:
            if b"approval.requested" in message.data:
                stored.set()

        observer = await observing(edge, on_live)
        for step in range(FLOOD_BYTES // STEP_BYTES):
            if step % 4 == 0:
                await publish_preview(edge, step // 4 + 1)
            if step % 16 == 8:
                approved.clear()
                stored.clear()
                story.then(an_approval(step))
                await put(edge, story.facts[-1:])
                await asyncio.wait_for(stored.wait(), 10)
                began = asyncio.get_running_loop().time()
                await asyncio.wait_for(approved.wait(), 10)
                took.append(asyncio.get_running_loop().time() - began)
            story.then(events.MessageCompleted(message_id=f"m{step}", role="assistant", content="x" * STEP_BYTES))
            await put(edge, story.facts[-1:])
            highest = max(highest, edge.rss_bytes)
        await eventually(lambda: got == len(story.facts), within_s=60)
        assert highest - before < BOUND_BYTES, f"{(highest - before) // MIB} MiB"
        assert sorted(took)[int(len(took) * 0.99)] < APPROVAL_WITHIN_S, f"slowest: {sorted(took)[-3:]}"
        reader.close()
        for watch in watches:
            watch.close()
        await observer.close()


async def test_readers_that_stall_in_the_middle_of_history_hold_no_page_of_it(tmp_path: Path) -> None:
    """Take `slow_down` out of `Watcher`, or keep `Plan.first_page`, and each of them holds half a megabyte."""
    async with edge_process(
        tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="600", RUNLANE_EDGE_RING_BYTES="65536"
    ) as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        for step in range(300):
            story.then(events.MessageCompleted(message_id=f"m{step}", role="assistant", content="x" * STEP_BYTES))
        await put(edge, story.facts[:2])
        for fact in story.facts[2:]:
            await put(edge, [fact])
        await read_through(edge, len(story.facts))
        before = edge.rss_bytes
        watches = await stalled_watches(edge, 300, "from=start", after=b"event: fact")
        await asyncio.sleep(2)
        await eventually(lambda: edge.rss_bytes - before < BOUND_BYTES, within_s=20)  # what was freed goes back, soon
        assert await read_through(edge, len(story.facts))
        for watch in watches:
            watch.close()


async def read_through(edge: EdgeProcess, count: int) -> bool:
    got = 0

    def read(data: bytes) -> None:
        nonlocal got
        got += data.count(b"event: fact")

    reader = await edge.watch("run_1", read, "from=start")
    await eventually(lambda: got == count, within_s=60)
    reader.close()
    return True


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


async def test_an_approval_reaches_a_slow_reader_before_any_later_preview(tmp_path: Path) -> None:
    """Let `Outgoing.lane` name previews before facts, or make `WRITE_BUFFER_BYTES` and the kernel's share endless.

    What a reader was sent before the approval is in its own hands; of what came later nothing is before it.
    """
    async with edge_process(tmp_path, layout=LAYOUT, RUNLANE_EDGE_STALL_S="600") as edge:
        story = Story("acme", "run_1").then(events.RunCreated(agent="a"), events.RunStarted())
        await put(edge, story.facts)
        body = bytearray()
        watch = await edge.watch("run_1", body.extend, "previews=true")
        await eventually(lambda: b"event: synced" in body)
        watch.pause()
        before = edge.rss_bytes
        acknowledged_at: list[int] = []
        for seq in range(1, 1601):
            await publish_preview(edge, seq)
            if seq % 20 == 0:
                await edge.filter.nc.flush()
            if seq % 400 == 0:
                story.then(an_approval(seq))
                await put(edge, story.facts[-1:])
                acknowledged_at.append(seq)
                await asyncio.sleep(0.1)  # the republished fact and the next preview travel on subjects of their own
        assert edge.rss_bytes - before < 40 * MIB
        watch.resume()
        await eventually(lambda: b"preview_gap" in body and body.count(b"approval.requested") == 4)
        await eventually(lambda: b'"preview_seq":1600' in body or b'"to":1600' in body)
        frames = FrameParser().feed(dechunked(bytes(body)))
        reached, approvals = 0, []
        for frame in frames:
            if frame.event == "fact":
                approvals.append(reached)
            elif frame.event.startswith("preview"):
                assert frame.data.get("from", frame.data.get("preview_seq")) == reached + 1
                reached = frame.data.get("to", frame.data.get("preview_seq"))
        assert [frame.data["reason"] for frame in frames if frame.event == "preview_gap"]
        assert all(shown <= seq for shown, seq in zip(approvals, acknowledged_at, strict=True))


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
