"""Spans to the collector: bounded, in the background. What cannot be sent is dropped, the oldest first, and counted."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runlane.hosting.settings import CommonSettings
from runlane.kernel.clock import Now
from runlane.metrics_aggregator.content import Contents
from runlane.metrics_aggregator.spans import FinishedSpan
from runlane_contracts.telemetry import SCOPE, Attribute
from runlane_contracts.tracing import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

Send = Callable[[Sequence[FinishedSpan]], bool]
"""Sends; whether they arrived. Blocks; is called in a thread."""

BATCH = 512
BATCH_WITH_CONTENT = 64
RETRY_S = (1.0, 30.0)
SECOND_NS = 1_000_000_000


class SpanOutbox:
    """Spans on their way. `counts`: exported, dropped (no room), too_old."""

    def __init__(
        self,
        send: Send,
        *,
        now: Now,
        max_waiting: int,
        max_age_s: float,
        retry_s: tuple[float, float] = RETRY_S,
        contents: Contents | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._contents = contents
        self._send, self._now, self._retry_s = send, now, retry_s
        self._max_waiting, self._max_age_ns = max_waiting, int(max_age_s * SECOND_NS)
        self._waiting: deque[FinishedSpan] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, spans: Sequence[FinishedSpan]) -> None:
        """Take them; returns at once."""
        oldest_ns = int(self._now().timestamp() * SECOND_NS) - self._max_age_ns
        for span in spans:
            if span.ended_ns < oldest_ns:
                self.counts["too_old"] += 1
                continue
            if len(self._waiting) >= self._max_waiting:
                self._waiting.popleft()
                self.counts["dropped"] += 1
            self._waiting.append(span)
        if self._waiting:
            self._empty.clear()
            self._arrived.set()

    async def flush(self, within_s: float) -> bool:
        """Wait until all that was put has been sent; whether it has."""
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Send, for ever."""
        pause_s = self._retry_s[0]
        while True:
            await self._arrived.wait()
            # With content they are large: of those that wait none has any, and few are sent at once.
            most = BATCH if self._contents is None else BATCH_WITH_CONTENT
            batch = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            whole = batch if self._contents is None else await self._contents.added(batch)
            if await asyncio.to_thread(self._send, whole):
                self.counts["exported"] += len(batch)
                pause_s = self._retry_s[0]
            else:
                self._put_back(batch)
                log.debug("the collector took no spans; %d wait", len(self._waiting))
                await asyncio.sleep(pause_s)
                pause_s = min(self._retry_s[1], pause_s * 2)
            if not self._waiting:
                self._arrived.clear()
                self._empty.set()

    def _put_back(self, batch: Sequence[FinishedSpan]) -> None:
        room = self._max_waiting - len(self._waiting)
        self.counts["dropped"] += max(0, len(batch) - room)
        self._waiting.extendleft(reversed(batch[max(0, len(batch) - room) :]))


def otlp_sender(settings: CommonSettings, service: str, version: str) -> Send | None:
    """Sends to the collector that the settings name; None if they name none. Loading it takes a moment."""
    if settings.telemetry_endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

    exporter = OTLPSpanExporter(endpoint=f"{settings.telemetry_endpoint.rstrip('/')}/v1/traces", timeout=5)
    resource = Resource.create({
        "service.name": f"{SCOPE}.{service}", "service.version": version, "service.instance.id": settings.instance,
    })  # fmt: skip

    def send(spans: Sequence[FinishedSpan]) -> bool:
        readable = [_readable(span, resource) for span in spans]
        return exporter.export(readable) is SpanExportResult.SUCCESS

    return send


def _readable(span: FinishedSpan, resource: object) -> "ReadableSpan":
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - loaded by now
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode  # noqa: PLC0415

    assert isinstance(resource, Resource)  # noqa: S101 - made by `otlp_sender`
    parent = TraceContext(span.context.trace_id, span.parent_span_id, span.context.sampled)
    attributes = dict(span.attributes)
    if span.error is not None:
        attributes[Attribute.ERROR_TYPE.value] = span.error
    return ReadableSpan(
        name=span.name,
        context=_context(span.context),
        parent=_context(parent) if span.parent_span_id else None,
        resource=resource,
        attributes=attributes,
        events=[Event(name, timestamp=at_ns) for at_ns, name in span.events],
        links=[Link(_context(link.context), {Attribute.LINK.value: link.reason}) for link in span.links],
        kind=SpanKind[span.kind],
        status=Status(StatusCode.ERROR) if span.error is not None else Status(StatusCode.UNSET),
        start_time=span.started_ns,
        end_time=span.ended_ns,
        instrumentation_scope=InstrumentationScope(SCOPE),
    )


def _context(context: TraceContext) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT),
    )  # fmt: skip
