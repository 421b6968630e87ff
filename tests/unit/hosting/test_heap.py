"""Memory that was freed goes back to the system, and nobody asks for that all the time."""

import asyncio

from runlane.hosting.heap import Heap, resident_bytes, small_heap, trim


def test_it_is_trimmed_when_it_has_grown_since_the_last_time():
    sizes, trimmed = iter([100, 115, 116, 90, 105, 130, 125, 140, 145]), []
    heap = Heap(resident=lambda: next(sizes), trim=lambda: bool(trimmed.append(1)) or True, grown=16)
    assert [heap.look() for _ in range(2)] == [False, True]  # 115; 116, and 90 after it
    assert [heap.look() for _ in range(2)] == [False, True]  # 105; 130, and 125 after it: in use, then
    assert [heap.look() for _ in range(1)] == [False]
    assert len(trimmed) == 2


def test_what_many_large_reads_left_is_given_back():
    """Leave the call of `malloc_trim` out to see it fail."""
    kept = []
    pages = [[bytes(60_000) for _ in range(8)] for _ in range(200)]
    for page in pages:
        kept.append(page[-1])  # one of each stays: what is freed has no end to be given back from
    full = resident_bytes()
    del pages, page
    assert trim()
    assert resident_bytes() < full - 40 * 1024 * 1024
    assert len(kept) == 200


async def test_it_is_looked_after_while_the_block_lasts():
    async with small_heap(every_s=0.001):
        await asyncio.sleep(0.02)
