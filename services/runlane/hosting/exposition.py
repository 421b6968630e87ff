"""Metrics of the OpenTelemetry SDK in the text format that Prometheus reads (version 0.0.4)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, MetricsData

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(data: "MetricsData | None") -> str:
    """All of it; empty when nothing was measured."""
    lines = [line for metric in _metrics(data) for line in _lines(metric)]
    return "\n".join([*lines, ""]) if lines else ""


def sample(name: str, labels: Mapping[str, object], value: float) -> str:
    """One line."""
    inside = ",".join(f'{key.replace(".", "_")}="{_escaped(str(text))}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _metrics(data: "MetricsData | None") -> Iterator[Any]:
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            yield from scope.metrics


def _lines(metric: Any) -> Iterable[str]:
    from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum  # noqa: PLC0415  whoever measured has it loaded

    name: str = metric.name.replace(".", "_")
    if metric.description:
        yield f"# HELP {name} {metric.description}"
    match metric.data:
        case Sum():
            yield f"# TYPE {name} {'counter' if metric.data.is_monotonic else 'gauge'}"
            yield from (sample(name, point.attributes or {}, point.value) for point in metric.data.data_points)
        case Gauge():
            yield f"# TYPE {name} gauge"
            yield from (sample(name, point.attributes or {}, point.value) for point in metric.data.data_points)
        case Histogram():
            yield f"# TYPE {name} histogram"
            for point in metric.data.data_points:
                yield from _buckets(name, point)
        case _:
            return


def _buckets(name: str, point: "HistogramDataPoint") -> Iterable[str]:
    labels: dict[str, object] = dict(point.attributes or {})
    seen = 0
    for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
        seen += count
        yield sample(f"{name}_bucket", {**labels, "le": _number(bound)}, seen)
    yield sample(f"{name}_sum", labels, point.sum)
    yield sample(f"{name}_count", labels, point.count)


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
