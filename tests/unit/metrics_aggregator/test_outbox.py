"""Spans on their way to a collector that is slow, gone, or back again."""

import asyncio
import contextlib
import threading
from datetime import UTC, datetime

from runlane.metrics_aggregator.export import SpanOutbox
from runlane.metrics_aggregator.spans import FinishedSpan
from runlane_contracts.tracing import TraceContext

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 1_000_000_000


def span(number: int, ended_ns: int = NOW_NS) -> FinishedSpan:
    context = TraceContext("ab" * 16, f"{number:016x}", sampled=True)
    return FinishedSpan(
        name=str(number), context=context, parent_span_id="", kind="INTERNAL", started_ns=0, ended_ns=ended_ns,
        attributes={},
    )  # fmt: skip


@contextlib.asynccontextmanager
async def sending(outbox):
    task = asyncio.get_running_loop().create_task(outbox.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def outbox(send, max_waiting=10, pause_s=0.01):
    return SpanOutbox(send, now=lambda: NOW, max_waiting=max_waiting, max_age_s=60, retry_s=(pause_s, pause_s))


async def test_what_is_put_is_sent_in_order():
    got = []
    box = outbox(lambda batch: got.extend(batch) or True)
    async with sending(box):
        box.put([span(1), span(2)])
        box.put([span(3)])
        assert await box.flush(5)
    assert [one.name for one in got] == ["1", "2", "3"]
    assert box.counts["exported"] == 3


async def test_while_the_collector_is_gone_the_oldest_give_way_and_are_counted():
    """Taken out: the bound in `put`; then 25 wait."""
    box = outbox(lambda _batch: False)
    async with sending(box):
        box.put([span(n) for n in range(25)])
        assert not await box.flush(0.1)
    assert box.counts["dropped"] == 15
    assert box.counts["exported"] == 0


async def test_what_could_not_be_sent_is_sent_once_the_collector_is_back():
    got, answers = [], iter([False, False])

    def send(batch):
        if next(answers, True):
            got.extend(batch)
            return True
        return False

    box = outbox(send)
    async with sending(box):
        box.put([span(n) for n in range(4)])
        assert await box.flush(5)
    assert [one.name for one in got] == ["0", "1", "2", "3"]


async def test_what_ended_long_ago_is_not_sent():
    got = []
    box = outbox(lambda batch: got.extend(batch) or True)
    async with sending(box):
        box.put([span(1, NOW_NS - 61_000_000_000), span(2)])
        assert await box.flush(5)
    assert [one.name for one in got] == ["2"]
    assert box.counts["too_old"] == 1


async def test_a_collector_that_hangs_holds_up_nobody():
    """Sending is a thread's business: counting goes on."""
    free = threading.Event()
    box = outbox(lambda _batch: free.wait(10))
    async with sending(box):
        box.put([span(1)])
        assert not await box.flush(0.05)
        box.put([span(2)])
        free.set()
        assert await box.flush(5)
    assert box.counts["exported"] == 2
