"""Spans around messages, by the messaging conventions of OpenTelemetry. Without a collector nothing is made.

A message's own context is its producer's (`traceparent`, in the header and in facts); who processes it hangs there.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context as contexts, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from runlane.hosting.histograms import histogram
from runlane.hosting.telemetry import is_tracing, tracer
from runlane.kernel.delivery import Delivery
from runlane_contracts.headers import COMMIT_ID, FIRST_SEQUENCE, TRACEPARENT
from runlane_contracts.streams import ConsumerSpec
from runlane_contracts.subjects import RunAddress, Subjects
from runlane_contracts.telemetry import Attribute, Metric, Span
from runlane_contracts.tracing import parse_traceparent

HandleBatch = Callable[[list[Delivery]], Awaitable[int]]
Attributes = Mapping[str, str | int]

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SYSTEM = "nats"
_DOTS = 4
"""In the subject of a run; somebody may have written to others."""
_TYPES = {Span.SEND: "send", Span.PROCESS: "process", Span.DELIVER: "process"}


@contextmanager
def sending(destination: str, *, message_id: str, run: RunAddress) -> Iterator[None]:
    """A message is sent: the span that is current inside is what its `traceparent` should be."""
    if not is_tracing():
        yield
        return
    attributes = {**_messaging(Span.SEND, "send", destination), Attribute.MESSAGING_MESSAGE_ID: message_id, **_of(run)}
    with tracer().start_as_current_span(
        f"{Span.SEND.value} {destination}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        yield


@contextmanager
def processing(
    destination: str, traceparent: str | None, *, durable: str, message_id: str, run: RunAddress, more: Attributes
) -> Iterator[None]:
    """A message is processed, in the trace that it brought. The trace is current inside also without a collector."""
    with continuing(traceparent):
        if not is_tracing() or not _is_sampled(traceparent):
            yield
            return
        attributes = {
            **_messaging(Span.PROCESS, "process", destination),
            Attribute.MESSAGING_CONSUMER: durable,
            Attribute.MESSAGING_MESSAGE_ID: message_id,
            **_of(run),
            **more,
        }
        name = f"{Span.PROCESS.value} {destination}"
        with tracer().start_as_current_span(name, kind=SpanKind.CONSUMER, attributes=attributes):
            yield


@contextmanager
def continuing(traceparent: str | None) -> Iterator[None]:
    """What is logged inside belongs to this trace."""
    found = parse_traceparent(traceparent)
    if found is None:
        yield
        return
    token = contexts.attach(_context(found.trace_id, found.span_id, found.sampled))
    try:
        yield
    finally:
        contexts.detach(token)


def measured(handle: HandleBatch, spec: ConsumerSpec, subjects: Subjects, *, in_traces: bool = True) -> HandleBatch:
    """A handler of batches, timed: how old the oldest message of each batch is when it is done.

    With a collector, and `in_traces`, it leaves a span for each message whose trace is recorded. They last as long as
    their batch, since that is how long each of them took.
    """
    is_traced = in_traces and is_tracing()
    labels = {Attribute.SERVICE.value: spec.service, Attribute.DURABLE.value: spec.durable}
    durations = histogram(Metric.DELIVERY_DURATION, BOUNDS_S)

    async def handled(batch: list[Delivery]) -> int:
        began_ns = time.time_ns()
        done = await handle(batch)
        ended_ns = time.time_ns()
        durations.record(max(0, ended_ns - batch[0].time_ns) / 1e9, labels)
        if is_traced:
            _leave_spans(batch, spec, subjects, began_ns, ended_ns)
        return done

    return handled


def _leave_spans(
    batch: Sequence[Delivery], spec: ConsumerSpec, subjects: Subjects, began_ns: int, ended_ns: int
) -> None:
    make = tracer()
    for delivery in batch:
        found = parse_traceparent(delivery.headers.get(TRACEPARENT))
        if found is None or not found.sampled:
            continue
        attributes = {
            **_messaging(Span.PROCESS, "process", spec.stream),
            Attribute.MESSAGING_CONSUMER: spec.durable,
            Attribute.MESSAGING_BATCH: len(batch),
            Attribute.MESSAGING_MESSAGE_ID: delivery.headers.get(COMMIT_ID) or f"{spec.stream}:{delivery.stream_seq}",
            **(_of(subjects.run_of(delivery.subject)) if delivery.subject.count(".") == _DOTS else {}),
        }
        sequence = delivery.headers.get(FIRST_SEQUENCE, "")
        if sequence.isdigit():
            attributes[Attribute.SEQUENCE] = int(sequence)
        span = make.start_span(
            f"{Span.PROCESS.value} {spec.stream}",
            context=_context(found.trace_id, found.span_id, sampled=True),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            start_time=began_ns,
        )
        span.end(ended_ns)


def happened(
    operation: Span,
    destination: str,
    traceparents: Iterable[str | None],
    *,
    began_ns: int,
    kind: SpanKind,
    attributes: Attributes,
) -> None:
    """A span that is over, under each of some contexts that are recorded, once for each."""
    for found in dict.fromkeys(map(parse_traceparent, traceparents)):
        if found is None or not found.sampled:
            continue
        span = tracer().start_span(
            f"{operation.value} {destination}",
            context=_context(found.trace_id, found.span_id, sampled=True),
            kind=kind,
            attributes={**_messaging(operation, _TYPES[operation], destination), **attributes},
            start_time=began_ns,
        )
        span.end(time.time_ns())


def _messaging(operation: Span, type_: str, destination: str) -> dict[str, str | int]:
    return {
        Attribute.MESSAGING_SYSTEM: _SYSTEM,
        Attribute.MESSAGING_OPERATION: operation.value,
        Attribute.MESSAGING_OPERATION_TYPE: type_,
        Attribute.MESSAGING_DESTINATION: destination,
    }


def _of(run: RunAddress) -> dict[str, str | int]:
    return {
        Attribute.TENANT_ID: run.tenant_id,
        Attribute.RUN_ID: run.run_id,
        Attribute.MESSAGING_CONVERSATION: run.run_id,
    }


def _is_sampled(traceparent: str | None) -> bool:
    found = parse_traceparent(traceparent)
    return found is None or found.sampled


def _context(trace_id: str, span_id: str, sampled: bool) -> Context:  # noqa: FBT001
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(parent))
