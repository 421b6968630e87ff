"""Signals in, counts and spans out; what was counted is written down now and then, and read back at the start."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from runlane.kernel.clock import Now
from runlane.kernel.delivery import Delivery
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import KernelError
from runlane.metrics_aggregator.book import Book
from runlane.metrics_aggregator.checkpoint import Checkpoint, CheckpointStore
from runlane.metrics_aggregator.export import SECOND_NS, SpanOutbox
from runlane.metrics_aggregator.labels import Labels, Limits
from runlane.metrics_aggregator.rollup import Durations, Rollup
from runlane.metrics_aggregator.signals import decode_signal
from runlane.metrics_aggregator.spans import FinishedSpan, span_of
from runlane_contracts.events import is_known
from runlane_contracts.headers import LOG_POSITION
from runlane_contracts.telemetry import OVERFLOW, Attribute, Metric

log = logging.getLogger(__name__)

FLUSH_WITHIN_S = 2.0


@dataclass(slots=True)
class Progress:
    """Where it is. `target_seq`: where the signals ended when it began; before that it does not show its counts."""

    epoch: str = ""
    signal_seq: int = 0
    saved_seq: int = -1
    saved_ns: int = 0
    target_seq: int = 0
    is_counting: bool = False
    last_stored_ns: int = 0
    trouble: str = field(default="")


class Aggregator:
    """Counts while it is the active one. `on_active` and `handle` are what its consumer calls."""

    def __init__(  # noqa: PLR0913 - each by name
        self,
        *,
        store: CheckpointStore,
        direct: DirectReader,
        stream: str,
        durations: Durations,
        limits: Limits,
        max_open_runs: int,
        now: Now,
        outbox: SpanOutbox | None,
        is_active: Callable[[], bool],
        content_of: frozenset[str] = frozenset(),
    ) -> None:
        self.progress = Progress()
        self._store, self._direct, self._stream = store, direct, stream
        self._durations, self._limits, self._max_open_runs = durations, limits, max_open_runs
        self._now, self._outbox, self._is_active = now, outbox, is_active
        self._content_of = content_of
        self.book = Book(max_open_runs)
        self.rollup = Rollup(Labels(limits), durations)

    @property
    def is_shown(self) -> bool:
        """Whether the counts are this instance's to show, and as far as they were ever shown before.

        A count that fell would be taken for one that began again.
        """
        reached = self.progress.signal_seq >= self.progress.target_seq
        return self.progress.is_counting and reached and self._is_active()

    async def on_active(self) -> int:
        """Go on from what was written down last; answers up to where that is. Raises Retryable."""
        self._direct.forget_epoch(self._stream)
        state = await self._direct.stream_state(self._stream)
        found = await self._store.load()
        if found is not None and found.epoch != state.epoch:
            log.warning("the signals were made anew: counted from the beginning")
            found = None
        kept = found or Checkpoint(epoch=state.epoch, signal_seq=0)
        self.book = Book(self._max_open_runs, kept.runs)
        self.rollup = Rollup(Labels(self._limits, kept.labels), self._durations, kept.counts)
        self.progress = Progress(
            epoch=state.epoch, signal_seq=kept.signal_seq, saved_seq=kept.signal_seq if found else -1,
            saved_ns=self._now_ns(), target_seq=state.last_seq, is_counting=True,
        )  # fmt: skip
        # A power cut may have taken the end of the stream. It comes again with the same sequences, and is passed over.
        return min(kept.signal_seq, state.last_seq)

    async def handle(self, batch: list[Delivery]) -> int:
        """Count a batch. It is acknowledged at once: where the next one goes on from is the checkpoint."""
        spans: list[FinishedSpan] = []
        for delivery in batch:
            if delivery.stream_seq > self.progress.signal_seq:
                self._count(delivery, spans)
        self.progress.signal_seq = max(self.progress.signal_seq, batch[-1].stream_seq)
        self.progress.last_stored_ns = batch[-1].time_ns
        delay_s = max(0, self._now_ns() - batch[-1].time_ns) / SECOND_NS
        self._durations.record(Metric.SIGNAL_DELAY, delay_s, {})
        if spans and self._outbox is not None:
            self._outbox.put(spans)
        return batch[-1].stream_seq

    def _count(self, delivery: Delivery, spans: list[FinishedSpan]) -> None:
        try:
            signal = decode_signal(delivery.data)
        except msgspec.MsgspecError:
            self.rollup.add(Metric.SIGNALS, {Attribute.TYPE.value: "unreadable"})
            return
        if signal.tenant_id in self._content_of:
            signal = msgspec.structs.replace(signal, log_seq=_log_seq(delivery))
        given_up = self.book.given_up
        happened = self.book.apply(signal)
        self.rollup.add(Metric.SIGNALS, {Attribute.TYPE.value: _family(signal.type)})
        if self.book.given_up > given_up:
            self.rollup.add(Metric.RUNS_UNTRACKED, {})
        for one in happened:
            self.rollup.count(one)
            span = None if self._outbox is None else span_of(one)
            if span is not None:
                spans.append(span)

    async def checkpoint(self, *, at_the_end: bool = False) -> None:
        """Write down what was counted, if anything was since. A failure is noted: there is a next time.

        `at_the_end`: the consumer has stopped, and this was the active one until then.
        """
        progress = self.progress
        if not progress.is_counting or progress.signal_seq == progress.saved_seq:
            return
        # No await between reading the position and packing the state: they belong together.
        checkpoint = Checkpoint(
            epoch=progress.epoch, signal_seq=progress.signal_seq, runs=list(self.book.runs),
            counts=self.rollup.counts, labels=self.rollup.labels.taken,
        )  # fmt: skip
        encoded = CheckpointStore.encoded(checkpoint)
        packed = await asyncio.to_thread(CheckpointStore.packed, encoded)
        if self._outbox is not None:
            await self._outbox.flush(FLUSH_WITHIN_S)
        try:
            if at_the_end or self._is_active():
                await self._store.save(packed, checkpoint.signal_seq)
                progress.saved_seq, progress.saved_ns, progress.trouble = checkpoint.signal_seq, self._now_ns(), ""
        except KernelError as exc:
            progress.trouble = str(exc)
            log.info("checkpoint: %s", exc)

    def oldest_ns(self) -> dict[str, int]:
        """By pool, since when the longest waiting run waits for an owner."""
        found: dict[str, int] = {}
        for run in self.book.runs:
            if run.waits_since_ns:
                pool = self.rollup.labels.pool(run.pool)
                found[pool] = min(found.get(pool, run.waits_since_ns), run.waits_since_ns)
        return found

    def _now_ns(self) -> int:
        return int(self._now().timestamp() * SECOND_NS)


def _log_seq(delivery: Delivery) -> int:
    text = delivery.headers.get(LOG_POSITION, "").rpartition(":")[2]
    return int(text) if text.isascii() and text.isdigit() else 0


def _family(type_: str) -> str:
    """Of a type of the contract; all others together, since anybody may invent one."""
    return type_.partition(".")[0] if is_known(type_) else OVERFLOW
