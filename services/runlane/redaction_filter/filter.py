"""LOG into VIEW and SIGNAL: in order, exactly once, whatever dies in between.

The outputs are the progress. On becoming active their last messages are read; what lies before is done. Each
message then expects its stream's last sequence, so a second filter, a duplicate or a reorder is refused by the
server: that ends the session, the outputs are read again, and this one goes on from there or stands by.

Batches are pipelined: the next one is derived while the last one is being stored. The durable's acknowledgement
follows what is stored, and nothing depends on it.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlane.hosting.spans import continuing
from runlane.kernel.chain import ChainMessage, ChainPublisher
from runlane.kernel.clock import Now
from runlane.kernel.connection import Connection
from runlane.kernel.dead_letter import DeadLetters
from runlane.kernel.delivery import Delivery
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, KernelError, Retryable
from runlane.masking.masker import Masker
from runlane.redaction_filter.derive import NOBODY, Derived, Deriver, LogMessage, Out
from runlane.redaction_filter.previews import LeaseEpochs
from runlane.redaction_filter.progress import End, LogReplaced, Outputs, Reached
from runlane.redaction_filter.signal_output import SignalOutput
from runlane_contracts.codec import decode_commit
from runlane_contracts.headers import (
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    FIRST_SEQUENCE,
    LAST_SEQUENCE,
    LOG_POSITION,
    TRACEPARENT,
)
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

MAX_HEADS = 100_000
MAX_IN_FLIGHT = 4
_DISTRUST_BATCHES = 16


@dataclass(slots=True)
class FilterStats:
    """Counts since the start, and where it is."""

    commits: int = 0
    facts: int = 0
    quarantined: int = 0
    conflicts: int = 0
    reached_log_seq: int = 0


class _InFlight(NamedTuple):
    """A batch that is being stored."""

    log_seq: int
    view: "asyncio.Future[int]"
    signal: "asyncio.Future[int] | None"

    @property
    def is_stored(self) -> bool:
        return self.view.done() and (self.signal is None or self.signal.done())

    async def stored(self) -> None:
        await self.view
        if self.signal is not None:
            await self.signal


@dataclass(frozen=True, slots=True)
class Broker:
    """What a filter works on."""

    connection: Connection
    direct: DirectReader
    layout: Layout
    dead_letters: DeadLetters
    now: Now


class LogFilter:
    """Derives the outputs of one LOG stream. `on_active` and `handle` are what its consumer calls."""

    def __init__(
        self,
        broker: Broker,
        index: int,
        *,
        masker: Masker,
        signals: SignalOutput,
        leases: LeaseEpochs,
        may_write: Callable[[], bool] = lambda: True,
        on_begun: Callable[[RunAddress, int], None] = lambda _run, _at_ns: None,
    ) -> None:
        self.stats = FilterStats()
        self.opened = asyncio.Event()
        """Set once it was active."""
        self._connection = broker.connection
        self._direct = broker.direct
        self._layout = broker.layout
        self._dead_letters = broker.dead_letters
        self._now = broker.now
        self._log_stream = broker.layout.log_stream_at(index)
        self._view_stream = broker.layout.view_stream_at(index)
        self._view_subjects = broker.layout.subjects.all_of("view")
        self._view_last_seq = 0
        self._masker = masker
        self._signals = signals
        self._leases = leases
        self._may_write = may_write
        self._on_begun = on_begun
        self._outputs: Outputs | None = None
        self._deriver: Deriver | None = None
        self._chain: ChainPublisher | None = None
        self._heads = _Heads(broker.direct, broker.layout)
        self._view_reached = Reached()
        self._signal_reached = Reached()
        self._stored_log_seq = 0
        self._in_flight: deque[_InFlight] = deque()
        self._distrust = 0  # so many batches yet, the start of a run is looked up instead of taken for one

    async def on_active(self) -> int:
        """Read where the outputs are; answers the LOG sequence up to which all is derived.

        Raises:
            LogReplaced: the outputs belong to another log.
            Retryable: no answer, or another process has to go first.
        """
        if not self._may_write():
            raise Retryable("the first LOG stream is filtered elsewhere, so are all others", retry_after_s=1.0)
        await self._close_chain()
        self._direct.forget_epoch(self._log_stream)
        state = await self._direct.stream_state(self._log_stream)
        outputs = Outputs(self._direct, log_epoch=state.epoch)
        view = await outputs.view_end(self._view_stream, self._view_subjects)
        view_reached = view.reached or Reached()
        signal_reached = (await self._signals.open(outputs)).reached or await self._signal_horizon(outputs, view)
        if max(view_reached.log_seq, signal_reached.log_seq) > state.last_seq:
            raise LogReplaced(f"{self._log_stream} ends at {state.last_seq}, its outputs are past that")
        self._outputs, self._view_last_seq = outputs, view.last_seq
        self._deriver = Deriver(self._masker, self._layout.subjects, state.epoch)
        self._chain = ChainPublisher(self._connection, last_seq=view.last_seq)
        self._heads.forget()
        self._leases.forget()  # what happened while another one was active is not known here
        self._view_reached, self._signal_reached = view_reached, signal_reached
        # Signals that lag behind the view are made up for when the message they lack is delivered again.
        lacks_signals = signal_reached < view_reached
        self._stored_log_seq = max(0, signal_reached.log_seq - 1) if lacks_signals else view_reached.log_seq
        self.stats.reached_log_seq = self._stored_log_seq
        self.opened.set()
        return self._stored_log_seq

    async def handle(self, batch: list[Delivery]) -> int:
        """Derive a batch and send it on its way; answers the LOG sequence up to which all is stored.

        Raises:
            Conflict: another filter writes, or an output is not where it was.
            Retryable: what is stored is unknown.
        """
        try:
            if not self._may_write():
                raise Retryable("the first LOG stream is filtered elsewhere", retry_after_s=1.0)
            if self._signal_reached < self._view_reached and self._stored_log_seq < self._view_reached.log_seq:
                await self._catch_up_signals()
            await self._derive([one for one in batch if one.stream_seq > self._view_reached.log_seq])
            # More is on its way: let it be derived meanwhile. Else nothing would come to see this batch stored.
            await self._settle(0 if batch[-1].pending == 0 else MAX_IN_FLIGHT - 1)
        except Conflict:
            self.stats.conflicts += 1
            self._distrust = _DISTRUST_BATCHES
            raise
        return self._stored_log_seq

    async def close(self) -> None:
        """Wait for what is being stored, as long as that goes well, and stop writing."""
        try:
            await self._settle(0)
        except KernelError as exc:
            log.info("%s: %s", self._log_stream, exc)
        await self._close_chain()

    # --- progress -------------------------------------------------------------------------------------------

    async def _signal_horizon(self, outputs: Outputs, view: End) -> Reached:
        """Where signals begin when their stream holds none: with what is younger than they would be kept."""
        oldest_ns = int((self._now().timestamp() - self._signals.max_age_s) * 1_000_000_000)
        last = await outputs.last_where(
            self._view_stream, self._view_subjects, view.last_seq, lambda message: message.time_ns < oldest_ns
        )
        return Reached() if last is None else outputs.reached(self._view_stream, last)

    async def _catch_up_signals(self) -> None:
        """Make the signals that the view has and SIGNAL lacks, from the view: it holds what was decided then."""
        assert self._outputs is not None  # noqa: S101 - the consumer calls `on_active` first
        assert self._deriver is not None  # noqa: S101
        outputs, lacking = self._outputs, self._signal_reached
        before = await outputs.last_where(
            self._view_stream, self._view_subjects, self._view_last_seq,
            lambda message: outputs.reached(self._view_stream, message).log_seq < lacking.log_seq,
        )  # fmt: skip
        start = 1 if before is None else before.seq + 1
        async for page in self._direct.pages(self._view_stream, self._view_subjects, start):
            signals: list[ChainMessage] = []
            for message in page.messages:
                at = outputs.reached(self._view_stream, message)
                out = self._deriver.signals_of(decode_commit(message.data), message.headers[LOG_POSITION])
                signals += out if at.log_seq > lacking.log_seq else _after(out, lacking.sequence)
            if signals:
                await (await self._signals.submit(signals))
        self._signal_reached = self._view_reached
        self._stored_log_seq = self._view_reached.log_seq

    async def _close_chain(self) -> None:
        for one in self._in_flight:
            for future in (one.view, one.signal):
                if future is not None and future.done() and not future.cancelled():
                    future.exception()  # whoever waited for the first of them knows
        self._in_flight.clear()
        if self._chain is not None:
            await self._chain.close()
            self._chain = None

    async def _settle(self, most_in_flight: int) -> None:
        while self._in_flight and (self._in_flight[0].is_stored or len(self._in_flight) > most_in_flight):
            await self._in_flight[0].stored()
            self._stored_log_seq = self._in_flight.popleft().log_seq
        self.stats.reached_log_seq = self._stored_log_seq

    # --- deriving -------------------------------------------------------------------------------------------

    async def _derive(self, todo: Sequence[Delivery]) -> None:
        if not todo:
            return
        assert self._deriver is not None  # noqa: S101 - the consumer calls `on_active` first
        runs = [self._deriver.run_of(one.subject) for one in todo]
        await self._heads.look_up(self._unknown(todo, runs))
        view: list[ChainMessage] = []
        signals: list[ChainMessage] = []
        for delivery, run in zip(todo, runs, strict=True):
            message = LogMessage(
                delivery.subject, delivery.stream_seq, delivery.time_ns, delivery.data, delivery.headers
            )
            head = self._heads.of(run)
            derived = self._deriver.derive(message, run, head)
            if derived.findings:
                await self._bury(delivery, derived)
            if derived.first_sequence == 1 and run is not NOBODY:
                self._on_begun(run, delivery.time_ns)
            self._take(delivery.stream_seq, derived, head, view, signals)
        await self._send(todo[-1].stream_seq, view, signals)

    def _take(
        self, log_seq: int, derived: Derived, head: int | None, view: list[ChainMessage], signals: list[ChainMessage]
    ) -> None:
        subject, data, headers = derived.view
        if head is None and derived.first_sequence == 1 and derived.run is not NOBODY:
            # Nobody looked whether the run is new: the server refuses this if it is not.
            headers[EXPECTED_LAST_SUBJECT_SEQUENCE] = "0"
        view.append((subject, data, headers))
        if log_seq > self._signal_reached.log_seq:
            signals += derived.signals
        elif log_seq == self._signal_reached.log_seq:
            signals += _after(derived.signals, self._signal_reached.sequence)
        self.stats.commits += 1
        self.stats.facts += len(derived.signals)
        if derived.run is not NOBODY:
            self._heads.note(derived.run, derived.last_sequence)
        if derived.lease_epoch is not None:
            self._leases.note(derived.run, derived.lease_epoch)

    async def _send(self, log_seq: int, view: list[ChainMessage], signals: list[ChainMessage]) -> None:
        assert self._chain is not None  # noqa: S101
        stored_view = await self._chain.submit(view)
        stored_signal = await self._signals.submit(signals) if signals else None
        self._in_flight.append(_InFlight(log_seq, stored_view, stored_signal))
        self._view_reached = Reached(log_seq)
        self._signal_reached = max(self._signal_reached, self._view_reached)
        self._distrust = max(0, self._distrust - 1)

    def _unknown(self, todo: Sequence[Delivery], runs: Sequence[RunAddress]) -> list[RunAddress]:
        """The runs whose head in the view has to be read before their messages can be judged."""
        unknown = dict.fromkeys(run for run in runs if run is not NOBODY and not self._heads.knows(run))
        if self._distrust:
            return list(unknown)
        seen: set[RunAddress] = set()
        for delivery, run in zip(todo, runs, strict=True):
            if run in unknown and run not in seen:
                seen.add(run)
                if delivery.headers.get(FIRST_SEQUENCE) == "1":
                    del unknown[run]
        return list(unknown)

    async def _bury(self, delivery: Delivery, derived: Derived) -> None:
        reason = "; ".join(f"{one.sequence}: {one.fault.value}" for one in derived.findings)
        with continuing(delivery.headers.get(TRACEPARENT)):
            log.warning(
                "%s: message %d: %s", self._log_stream, delivery.stream_seq, reason[:200],
                extra={"event": LogEvent.DELIVERY_BURIED},
            )  # fmt: skip
        await self._dead_letters.bury(delivery, reason)
        self.stats.quarantined += len(derived.findings)


class _Heads:
    """The last sequence of runs in the view, of those that were seen last."""

    def __init__(self, direct: DirectReader, layout: Layout) -> None:
        self._direct = direct
        self._layout = layout
        self._heads: OrderedDict[RunAddress, int | None] = OrderedDict()

    def forget(self) -> None:
        self._heads.clear()

    def knows(self, run: RunAddress) -> bool:
        return run in self._heads

    def of(self, run: RunAddress) -> int | None:
        return self._heads.get(run)

    def note(self, run: RunAddress, sequence: int | None) -> None:
        self._heads[run] = sequence
        self._heads.move_to_end(run)
        if len(self._heads) > MAX_HEADS:
            self._heads.popitem(last=False)

    async def look_up(self, runs: Sequence[RunAddress]) -> None:
        """Read the heads of runs. Raises Retryable."""
        if not runs:
            return
        subjects = {self._layout.subjects.view(*run): run for run in runs}
        stream = self._layout.view_stream(runs[0].run_id)
        found = await self._direct.multi_last(stream, list(subjects))
        for subject, run in subjects.items():
            last = found[subject].headers.get(LAST_SEQUENCE, "") if subject in found else ""
            self.note(run, int(last) if last.isdigit() else None)


def _after(signals: Sequence[Out], sequence: int) -> list[Out]:
    return [out for out in signals if int(out.headers[LAST_SEQUENCE]) > sequence]
