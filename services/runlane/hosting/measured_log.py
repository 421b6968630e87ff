"""A log whose appends are counted, timed, and seen in traces."""

import time
from collections import Counter
from collections.abc import AsyncGenerator

from opentelemetry.trace import SpanKind

from runlane.hosting.histograms import histogram
from runlane.hosting.spans import happened
from runlane.hosting.telemetry import is_tracing, observe
from runlane.kernel.errors import Conflict
from runlane.kernel.event_log import NOTHING, EventLog, StoredCommit
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import Attribute, Metric, Span

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OUTCOMES = ("stored", "conflict", "failed")


class MeasuredLog:
    """As the log it stands for."""

    def __init__(self, log: EventLog, layout: Layout, service: str) -> None:
        self._log, self._layout, self._labels = log, layout, {Attribute.SERVICE.value: service}
        self._counts: Counter[str] = Counter()
        self._is_traced = is_tracing()
        self._durations = histogram(Metric.COMMIT_DURATION, BOUNDS_S)
        observe(
            Metric.COMMITS,
            lambda: [(self._counts[one], {**self._labels, Attribute.OUTCOME.value: one}) for one in OUTCOMES],
            rises=True,
        )

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        """See `EventLog.commit`."""
        began, began_ns, outcome = time.perf_counter(), time.time_ns(), "failed"
        try:
            position = await self._log.commit(commit, after=after)
            outcome = "stored"
        except Conflict:
            outcome = "conflict"  # another wrote first: not a fault, and not an append
            raise
        finally:
            self._counts[outcome] += 1
            if outcome == "stored":
                self._durations.record(time.perf_counter() - began, self._labels)
            if self._is_traced:
                self._leave_span(commit, began_ns, outcome)
        return position

    async def head(self, run: RunAddress) -> StoredCommit | None:
        """See `EventLog.head`."""
        return await self._log.head(run)

    def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """See `EventLog.read`."""
        return self._log.read(run, after=after)

    def tail(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """See `EventLog.tail`."""
        return self._log.tail(run, after=after)

    def _leave_span(self, commit: Commit, began_ns: int, outcome: str) -> None:
        happened(
            Span.SEND,
            self._layout.log_stream(commit.run_id),
            (fact.traceparent for fact in commit.facts),
            began_ns=began_ns,
            kind=SpanKind.PRODUCER,
            attributes={
                Attribute.TENANT_ID: commit.tenant_id,
                Attribute.RUN_ID: commit.run_id,
                Attribute.MESSAGING_CONVERSATION: commit.run_id,
                Attribute.MESSAGING_MESSAGE_ID: commit.commit_id,
                Attribute.SEQUENCE: commit.first_sequence,
                Attribute.OUTCOME: outcome,
            },
        )
