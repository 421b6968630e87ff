from collections.abc import Sequence

import pytest

from runlane.client.errors import Unreachable
from runlane.client.preview_outbox import MAX_BATCH_FRAGMENTS, PreviewOutbox
from runlane_contracts.previews import Preview, PreviewSubject


def fragment(seq: int, data: object = "x", *, preview_id: str = "p", **more) -> Preview:
    return Preview(
        preview_id=preview_id, subject=PreviewSubject(kind="tool", id="c1"), preview_seq=seq, data=data, **more
    )


class Wire:
    def __init__(self) -> None:
        self.batches: list[list[Preview]] = []
        self.broken = False

    async def send(self, previews: Sequence[Preview]) -> None:
        if self.broken:
            raise Unreachable("gone")
        self.batches.append(list(previews))


async def test_of_a_latest_value_only_the_latest_leaves_and_names_what_it_stands_for():
    wire = Wire()
    outbox = PreviewOutbox(wire.send)
    for seq in range(1, 6):
        outbox.offer(fragment(seq, {"percent": seq * 20}, operation="latest_value"))
    await outbox.flush()
    ((only,),) = wire.batches
    assert only.data == {"percent": 100}
    assert only.coalesced is not None
    assert (only.coalesced.first_seq, only.coalesced.last_seq, only.coalesced.source_count) == (1, 5, 5)


async def test_what_belongs_to_different_previews_or_operations_stays_apart_and_in_order():
    wire = Wire()
    outbox = PreviewOutbox(wire.send)
    outbox.offer(fragment(1, "a"))
    outbox.offer(fragment(1, "b", preview_id="q"))
    outbox.offer(fragment(2, "c"))
    outbox.offer(fragment(3, "whole", operation="replace"))
    outbox.offer(fragment(5, "after a hole"))
    outbox.offer(fragment(6, None, fate="abandoned"))
    await outbox.flush()
    assert [(one.preview_id, one.preview_seq) for one in wire.batches[0]] == [
        ("p", 1), ("q", 1), ("p", 2), ("p", 3), ("p", 5), ("p", 6),
    ]  # fmt: skip
    assert all(one.coalesced is None for one in wire.batches[0])


async def test_a_flood_leaves_in_bounded_batches():
    wire = Wire()
    outbox = PreviewOutbox(wire.send)
    for number in range(300):
        outbox.offer(fragment(1, "x", preview_id=f"p{number}"))
    await outbox.flush()
    assert [len(batch) for batch in wire.batches] == [MAX_BATCH_FRAGMENTS, MAX_BATCH_FRAGMENTS, 44]


@pytest.mark.parametrize("broken", [True, False])
async def test_p7_accepted_is_sent_and_dropped_together(broken: bool):
    wire = Wire()
    outbox = PreviewOutbox(wire.send, max_bytes=10_000)
    for seq in range(1, 201):
        outbox.offer(fragment(seq, "x" * 300, operation="replace"))
    wire.broken = broken
    await outbox.flush()
    sent = sum(one.coalesced.source_count if one.coalesced else 1 for batch in wire.batches for one in batch)
    assert sent + outbox.dropped == 200
    assert (sent == 0) == broken
