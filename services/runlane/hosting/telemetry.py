"""Logs, metrics and traces of a process. The SDK is loaded by `start_telemetry`, exporters only for a collector.

Services write against the OpenTelemetry API (`meter()`, `tracer()`), which does nothing until `start_telemetry`
ran; what the kernel counts is observed here, since the kernel knows no telemetry.
"""

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Tracer

from runlane.hosting.exposition import exposition
from runlane.hosting.histograms import with_histograms
from runlane.hosting.settings import CommonSettings
from runlane.kernel.durable import ConsumerStats, DurableConsumer
from runlane.kernel.faults import trace_of
from runlane_contracts.codec import timestamp_of_ns
from runlane_contracts.headers import TRACEPARENT
from runlane_contracts.metric_help import HELP
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import SCOPE, Attribute, LogEvent, Metric
from runlane_contracts.tracing import run_trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader
    from opentelemetry.sdk.resources import Resource

Labels = Mapping[str, str]


def meter() -> Meter:
    """For counters and histograms, named by `contracts.telemetry.Metric`."""
    return metrics.get_meter(SCOPE)


def tracer() -> Tracer:
    """For spans, named by `contracts.telemetry.Span`."""
    return trace.get_tracer(SCOPE)


def is_tracing() -> bool:
    """Whether spans go anywhere. Settled before the first service starts."""
    return hasattr(trace.get_tracer_provider(), "add_span_processor")


Read = Callable[[], Iterable[tuple[float, Labels]]]

_READERS: "WeakKeyDictionary[object, dict[Metric, list[Read]]]" = WeakKeyDictionary()
"""By meter provider, who reports a metric: the SDK listens to the first instrument of a name only, and services that
share a process report the same ones."""


def observe(metric: Metric, read: Read, *, rises: bool = False) -> None:
    """Report what `read` returns whenever metrics are collected. `rises`: it is a count that only grows."""
    readers = _READERS.setdefault(metrics.get_meter_provider(), {})
    if metric in readers:
        readers[metric].append(read)
        return
    mine = readers[metric] = [read]

    def observed(_options: CallbackOptions) -> Iterable[Observation]:
        # Two that report the same labels mean the same thing; the SDK would add them up.
        found = {tuple(sorted(labels.items())): (value, labels) for one in mine for value, labels in one()}
        return [Observation(value, dict(labels)) for value, labels in found.values()]

    if rises:
        meter().create_observable_counter(metric.value, [observed], description=HELP.get(metric, ""))
    else:
        meter().create_observable_gauge(metric.value, [observed], description=HELP.get(metric, ""))


def observe_consumers(consumers: Mapping[str, Sequence[DurableConsumer]]) -> None:
    """Report what the consumers of each service count."""

    def each(count: Callable[[ConsumerStats], Mapping[str, float]]) -> Iterable[tuple[float, Labels]]:
        for service, ones in consumers.items():
            for one in ones:
                labels = {Attribute.SERVICE.value: service, Attribute.DURABLE.value: one.spec.durable}
                for outcome, value in count(one.stats).items():
                    yield value, {**labels, Attribute.OUTCOME.value: outcome} if outcome else labels

    def ages() -> Iterable[tuple[float, Labels]]:
        for service, ones in consumers.items():
            for one in ones:
                since_ns = one.oldest_in_hand_ns()
                age_s = max(0.0, (time.time_ns() - since_ns) / 1e9) if since_ns else 0.0
                yield age_s, {Attribute.SERVICE.value: service, Attribute.DURABLE.value: one.spec.durable}

    observe(Metric.CONSUMER_LAG, lambda: each(lambda stats: {"": stats.lag + stats.in_hand}))
    observe(Metric.CONSUMER_LAG_SECONDS, ages)
    observe(Metric.CONSUMER_ACTIVE, lambda: each(lambda stats: {"": float(stats.is_active)}))
    observe(
        Metric.DELIVERIES,
        lambda: each(
            lambda stats: {
                "acknowledged": stats.acknowledged,
                "retried": stats.retried,
                "buried": stats.buried,
            }
        ),
        rises=True,
    )


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What runs in this process."""

    reader: "InMemoryMetricReader"
    meter_provider: "MeterProvider"
    resource: "Resource"
    tracer_provider: Any = None  # the SDK's, when there is a collector

    @property
    def is_exported(self) -> bool:
        """Whether a collector gets it."""
        return self.tracer_provider is not None

    def exposition(self) -> str:
        """The metrics as Prometheus reads them."""
        return exposition(with_histograms(self.reader.get_metrics_data(), self.resource, self.meter_provider))

    def close(self) -> None:
        """Send the rest. Blocks until it is sent or given up."""
        self.meter_provider.shutdown(timeout_millis=3_000)
        if self.tracer_provider is not None:
            self.tracer_provider.shutdown()


def start_telemetry(settings: CommonSettings, service: str, version: str) -> Telemetry:
    """Once per process."""
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

    resource = Resource.create({
        "service.name": f"{SCOPE}.{service}",
        "service.version": version,
        "service.instance.id": settings.instance,
    })  # fmt: skip
    in_memory = InMemoryMetricReader()
    readers: list[MetricReader] = [in_memory]
    tracer_provider = None
    if settings.telemetry_endpoint is not None:
        pushing, tracer_provider = _exporters(settings, settings.telemetry_endpoint, resource)
        readers.append(pushing)
        trace.set_tracer_provider(tracer_provider)
    meter_provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meter_provider)
    observe(Metric.UP, lambda: [(1, {Attribute.SERVICE.value: service, Attribute.VERSION.value: version})])
    return Telemetry(in_memory, meter_provider, resource, tracer_provider)


def _exporters(settings: CommonSettings, endpoint: str, resource: "Resource") -> "tuple[MetricReader, Any]":
    # Loading these takes longer than all the rest of a service.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    class Exporter(OTLPMetricExporter):
        """Sends the histograms too."""

        def export(self, metrics_data: Any, *args: Any, **kw: Any) -> Any:
            """See `MetricExporter.export`."""
            whole = with_histograms(metrics_data, resource, metrics.get_meter_provider())
            return super().export(whole, *args, **kw)

    root = endpoint.rstrip("/")
    pushing = PeriodicExportingMetricReader(
        Exporter(endpoint=f"{root}/v1/metrics", timeout=5),
        export_interval_millis=settings.telemetry_interval_s * 1000,
    )
    sampler = ParentBased(TraceIdRatioBased(settings.telemetry_sample_ratio))
    provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{root}/v1/traces", timeout=5)))
    return pushing, provider


# --- trace context in message headers -----------------------------------------------------------------------


def current_traceparent() -> str | None:
    """The W3C text of the span that is current; None outside of one."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get(TRACEPARENT)


# --- logs -----------------------------------------------------------------------------------------------------

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(settings: CommonSettings, service: str) -> None:
    """Lines on stderr. What is passed as `extra` becomes a field; `event` is a registered name.

    Each has a `trace_id`: of the run or request it is about (`about_run`), else that of the process, for its life.
    """
    handler = logging.StreamHandler(sys.stderr)
    mine = secrets.token_hex(16)
    formatter = (
        JsonLines(service, settings.instance, mine) if settings.log_format == "json" else TextLines(service, mine)
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for noisy in ("nats", "nats.aio.client", "faststream", "opentelemetry", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what it would say has been said by `Problems`


class JsonLines(logging.Formatter):
    """One JSON object a line. Of an exception: where it was, not its text, which may quote what was handled."""

    def __init__(self, service: str, instance: str, process_trace: str = "") -> None:
        super().__init__()
        self._fixed = {"service": service, "instance": instance}
        self._process = process_trace

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": timestamp_of_ns(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "message": record.getMessage(),
            **self._fixed,
            **_fields(record),
            "trace_id": _trace_id(record, self._process),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = trace_of(record.exc_info[1])
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """One line for people."""

    def __init__(self, service: str, process_trace: str = "") -> None:
        super().__init__()
        self._service = service
        self._process = process_trace

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = self.formatTime(record, "%H:%M:%S")
        fields = _fields(record) | {"trace_id": _trace_id(record, self._process)}
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        line = f"{at} {record.levelname.lower():7} {self._service}: {record.getMessage()}{shown}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" ({trace_of(record.exc_info[1])})"
        return line


def about_run(run: RunAddress, trace_id: str | None = None, *, event: LogEvent | None = None) -> dict[str, str]:
    """The `extra` of a line about a run. `trace_id`: the run's, where who says it knows that somebody brought one."""
    found = {"tenant_id": run.tenant_id, "run_id": run.run_id}
    found |= {} if trace_id is None else {"trace_id": trace_id}
    return found if event is None else found | {"event": event}


def _trace_id(record: logging.LogRecord, otherwise: str) -> str:
    said = getattr(record, "trace_id", None)
    if isinstance(said, str) and said:
        return said
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        return trace.format_trace_id(context.trace_id)
    tenant_id, run_id = (getattr(record, name, None) for name in ("tenant_id", "run_id"))
    return run_trace_id(tenant_id, run_id) if tenant_id and run_id else otherwise


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and name != "event"}
