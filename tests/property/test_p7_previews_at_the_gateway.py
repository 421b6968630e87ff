"""P7 · Previews dropped, repeated, reordered at random: the state is the fold of the facts, and counters add up."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from hypothesis import Phase, given, settings, strategies as st

from runlane.edge_gateway.frames import SSE
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.preview_lane import PreviewBudget, PreviewLanes
from runlane.edge_gateway.preview_reader import PreviewReader, PreviewTotals
from runlane_contracts import events
from runlane_contracts.codec import decode_fact, encode
from runlane_contracts.previews import Coalesced, Preview, PreviewBatch, PreviewSubject
from runlane_contracts.reducer import checksum, initial_state, reduce
from runlane_contracts.subjects import RunAddress
from support.edge import Frame, FrameParser, edge
from support.runs import Story

RUN = RunAddress("acme", "run_1")
IDS = ("p1", "p2", "p3")


def a_fragment(preview_id: str, last: int, merged: int, size: int, operation: str) -> Preview:
    coalesced = None
    if merged < last:
        coalesced = Coalesced(first_seq=last - merged, last_seq=last, source_count=merged + 1)
    subject = PreviewSubject(kind="message", id="m1")
    return Preview(
        preview_id=preview_id, subject=subject, preview_seq=last, data="x" * size, coalesced=coalesced,
        operation=operation,
    )  # fmt: skip


operations = st.sampled_from(["append", "append", "append", "replace", "patch", "latest_value"])
fragments = st.builds(
    a_fragment, st.sampled_from(IDS), st.integers(1, 30), st.integers(0, 3), st.integers(0, 300), operations
)
batches = st.lists(fragments, min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        batches.map(lambda one: ("previews", one)),
        st.sampled_from(IDS).map(lambda one: ("fact", one)),
        st.just(("read", None)),
    ),
    max_size=40,
)


def body(previews: Sequence[Preview]) -> bytes:
    return encode(PreviewBatch(tenant_id="acme", run_id="run_1", previews=tuple(previews)))


def check_each_loss_is_told(frames: Sequence[Frame], standing: dict[str, int]) -> None:
    """Of each preview: what is shown goes up, and between two shown fragments everything else is in a gap."""
    at = defaultdict(int, standing)
    known = set(standing)
    for frame in frames:
        preview_id = frame.data["preview_id"]
        if frame.event == "preview_gap":
            first, last = frame.data["from"], frame.data["to"]
            assert frame.data["dropped"] == last - first + 1
        else:
            last = frame.data["preview_seq"]
            first = frame.data.get("coalesced", {}).get("first_seq", last)
        if preview_id in known:
            assert first == at[preview_id] + 1, frame
        assert last >= first > at[preview_id]
        known.add(preview_id)
        at[preview_id] = last


@settings(max_examples=300, deadline=None)
@given(
    steps=steps, max_bytes=st.sampled_from([400, 1_500, 100_000]), take_bytes=st.sampled_from([1, 500, 100_000]),
    merges=st.booleans(),
)  # fmt: skip
def test_what_a_reader_was_sent_lost_or_spared_is_all_there_was(steps, max_bytes, take_bytes, merges) -> None:
    """Take the `missed` out of `PreviewReader.take`, or `coalesced` out of `merged`, and a loss is not told."""
    lanes = PreviewLanes(max_bytes, PreviewBudget(10_000_000))
    readers = [PreviewReader(lane, PreviewTotals()) for lane in (lanes.status, lanes.previews)]
    parser = FrameParser()
    shown: list[Frame] = []

    def read() -> None:
        for reader in readers:
            chunk = reader.take(take_bytes, SSE, merge=merges)
            shown.extend(parser.feed(b"" if chunk is None else chunk.data))

    for what, given_ in steps:
        if what == "previews":
            lanes.append_batch(body(given_))
        elif what == "fact":
            lanes.retire(given_)
        else:
            read()
    while any(reader.pending for reader in readers):
        read()
    counts = lanes.counts
    assert counts.received == sum(len(given_) for what, given_ in steps if what == "previews")
    assert counts.received == counts.kept + counts.repeated + counts.retired + counts.malformed
    for lane, reader in zip((lanes.status, lanes.previews), readers, strict=True):
        assert reader.sent + reader.merged + reader.dropped + reader.superseded == lane.end
        assert lane.size_bytes <= max_bytes or lane.held == 1
    check_each_loss_is_told(shown, {})


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(steps=steps, preview_bytes=st.sampled_from([500, 100_000]), holds=st.booleans())
def test_previews_never_change_the_state(steps, preview_bytes, holds) -> None:
    asyncio.run(_watch(steps, preview_bytes, holds))


async def _watch(steps, preview_bytes: int, holds: bool) -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    view = MemoryView()
    view.store(RUN, story.facts)
    limits = HubLimits(preview_bytes=preview_bytes, sweep_s=0.05, linger_s=0.01)
    async with edge(view, hub_limits=limits) as gateway:
        watching = gateway.watch(RUN, from_="start", previews="true")
        await watching.until("synced")
        for what, given_ in steps:
            if what == "previews":
                view.preview(RUN, body(given_))
            elif what == "fact":
                story.then(events.MessageCompleted(
                    message_id=f"m{len(story.facts)}", role="assistant", content="final", preview_id=given_
                ))  # fmt: skip
                view.store(RUN, story.facts[-1:])
            else:
                watching.hold() if holds else None
                await asyncio.sleep(0)
                watching.flow()
                await asyncio.sleep(0)
        story.then(events.RunCompleted())
        view.store(RUN, story.facts[-1:])
        await watching.over()
        after = gateway.watch(RUN)
        await after.over()
    state, folded = initial_state(*RUN), initial_state(*RUN)
    for fact in story.facts:
        reduce(state, fact)
    for frame in watching.of("fact"):
        reduce(folded, decode_fact(encode(frame.data)))
    assert checksum(folded) == checksum(state) == after.of("snapshot")[0].data["checksum"]
    assert all(frame.id is None for frame in watching.frames if frame.event.startswith("preview"))
    replaced: set[str] = set()
    for frame in watching.frames:
        if frame.event == "fact":
            replaced.add(frame.data["payload"].get("preview_id"))
        elif frame.event.startswith("preview"):
            assert frame.data["preview_id"] not in replaced
    check_each_loss_is_told([frame for frame in watching.frames if frame.event.startswith("preview")], {})
