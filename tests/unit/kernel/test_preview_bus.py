"""The preview lane: merged within a window, bounded, every fragment accounted for (P7, publishing side)."""

import asyncio

from hypothesis import given, settings, strategies as st

from runlane.kernel.preview_bus import PreviewBus, PreviewInbox
from runlane_contracts import codec
from runlane_contracts.previews import Preview, PreviewSubject
from runlane_contracts.subjects import RunAddress, Subjects

RUN = RunAddress("demo", "r1")
MESSAGE = PreviewSubject(kind="message", id="m1")


def fragment(seq: int, data: object = "x", preview_id: str = "p1", **kw: object) -> Preview:
    return Preview(preview_id=preview_id, subject=MESSAGE, preview_seq=seq, data=data, **kw)


class Wire:
    def __init__(self, *, fails: bool = False, slow_s: float = 0.0) -> None:
        self.previews: list[Preview] = []
        self.messages = 0
        self.fails, self.slow_s = fails, slow_s

    async def send(self, subject: str, data: bytes) -> None:
        assert subject == "rl.preview.raw.demo.r1"
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        if self.fails:
            raise ConnectionError
        self.messages += 1
        self.previews += codec.decode_preview_batch(data).previews


def bus(wire: Wire, **kw: float) -> PreviewBus:
    return PreviewBus(wire.send, Subjects(), **kw)


async def test_consecutive_appends_become_one_fragment_that_names_its_sources() -> None:
    wire = Wire()
    out = bus(wire)
    for n, word in enumerate(["An ", "apple ", "a day"], start=1):
        out.publish(RUN, fragment(n, word))
    await out.flush()
    (one,) = wire.previews
    assert (one.data, one.preview_seq, one.first_seq) == ("An apple a day", 3, 1)
    assert (one.coalesced.source_count, one.coalesced.truncated) == (3, False)
    assert (out.counts.accepted, out.counts.sent, out.counts.dropped) == (3, 3, 0)


async def test_the_window_sends_by_itself() -> None:
    wire = Wire()
    out = bus(wire, window_s=0.01)
    out.publish(RUN, fragment(1))
    for _ in range(100):
        if wire.previews:
            break
        await asyncio.sleep(0.01)
    assert len(wire.previews) == 1


async def test_of_latest_value_only_the_latest_is_kept() -> None:
    wire = Wire()
    out = bus(wire)
    for n in range(1, 6):
        out.publish(RUN, fragment(n, {"percent": n}, operation="latest_value"))
    await out.flush()
    assert [(p.data, p.first_seq, p.preview_seq) for p in wire.previews] == [({"percent": 5}, 1, 5)]


async def test_a_gap_a_change_of_kind_and_a_fate_keep_fragments_apart() -> None:
    wire = Wire()
    out = bus(wire)
    out.publish(RUN, fragment(1, "a"))
    out.publish(RUN, fragment(3, "c"))
    out.publish(RUN, fragment(4, "whole", operation="replace"))
    out.publish(RUN, fragment(5, None, fate="abandoned"))
    await out.flush()
    assert [p.preview_seq for p in wire.previews] == [1, 3, 4, 5]


async def test_two_previews_at_once_are_merged_each_on_its_own() -> None:
    wire = Wire()
    out = bus(wire)
    for n in range(1, 11):
        out.publish(RUN, fragment(n, "a", "p1"))
        out.publish(RUN, fragment(n, "b", "p2"))
    await out.flush()
    assert [(p.preview_id, p.data) for p in wire.previews] == [("p1", "a" * 10), ("p2", "b" * 10)]


async def test_a_stuck_link_costs_a_bounded_amount_of_memory_and_drops_the_oldest() -> None:
    wire = Wire(slow_s=0.2)
    out = bus(wire, max_batch_bytes=1_000, max_pending_bytes=5_000)
    for n in range(1, 201):
        out.publish(RUN, fragment(n, "x" * 200, f"p{n}"))
        if n == 3:
            await asyncio.sleep(0)
    assert out.counts.dropped > 100
    await out.flush()
    assert out.counts.accepted == out.counts.sent + out.counts.dropped == 200
    assert wire.previews[-1].preview_id == "p200"


async def test_a_broken_link_loses_previews_and_says_how_many() -> None:
    out = bus(Wire(fails=True))
    for n in range(1, 11):
        out.publish(RUN, fragment(n))
    await out.flush()
    assert (out.counts.accepted, out.counts.sent, out.counts.dropped) == (10, 0, 10)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["append", "latest_value", "replace"]), st.booleans())))
@settings(max_examples=60, deadline=None)
def test_counters_add_up_and_text_arrives_in_order(steps: list[tuple[int, str, bool]]) -> None:
    async def play() -> None:
        wire = Wire()
        out = bus(wire)
        seqs, text = [0, 0, 0], ["", "", ""]
        for which, operation, flush in steps:
            seqs[which] += 1
            data = f"{seqs[which]};"
            if operation == "append":
                text[which] += data
            out.publish(RUN, fragment(seqs[which], data, f"p{which}", operation=operation))
            if flush:
                await out.flush()
        await out.flush()
        assert out.counts.accepted == out.counts.sent == len(steps)
        for which in range(3):
            mine = [p for p in wire.previews if p.preview_id == f"p{which}"]
            covered = [n for p in mine for n in range(p.first_seq, p.preview_seq + 1)]
            assert covered == list(range(1, seqs[which] + 1))
            assert "".join(p.data for p in mine if p.operation == "append") == text[which]

    asyncio.run(play())


async def test_an_inbox_keeps_the_newest_and_counts_what_gave_way() -> None:
    inbox = PreviewInbox(max_bytes=1_000)
    for n in range(100):
        inbox.put("s", b"%03d" % n + b"x" * 97)
    got = []
    async for _, data in inbox:
        got.append(int(data[:3]))
        if got[-1] == 99:
            break
    assert got == list(range(90, 100))
    assert (inbox.received, inbox.dropped) == (100, 90)
