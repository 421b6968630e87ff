"""What this service shows: counts and gauges when metrics are collected, durations as they happen."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from runlane.hosting.histograms import Histogram, histogram
from runlane.hosting.telemetry import observe
from runlane.kernel.clock import Now
from runlane.metrics_aggregator.aggregator import Aggregator
from runlane.metrics_aggregator.export import SECOND_NS, SpanOutbox
from runlane.metrics_aggregator.rollup import COUNTED
from runlane_contracts.telemetry import Attribute, Metric

Readings = Iterable[tuple[float, Mapping[str, str]]]
Read = Callable[[Aggregator, float], Readings]
"""Of the aggregator and the time, in seconds since 1970."""

SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
BOUNDS = {
    Metric.SIGNAL_DELAY: SHORT,
    Metric.TOOL_DURATION: (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
    Metric.QUEUE_WAIT: LONG,
    Metric.APPROVAL_WAIT: LONG,
    Metric.RUN_DURATION: LONG,
}
OPEN = ("created", "running", "waiting", "paused", "cancelling", "lost")


class Histograms:
    """The durations."""

    def __init__(self) -> None:
        self._by: dict[Metric, Histogram] = {metric: histogram(metric, bounds) for metric, bounds in BOUNDS.items()}

    def record(self, metric: Metric, seconds: float, labels: Mapping[str, str]) -> None:
        """One more."""
        self._by[metric].record(seconds, dict(labels))


def report(aggregator: Aggregator, outbox: SpanOutbox | None, *, now: Now) -> None:
    """Show everything whenever metrics are collected; only while this instance is the one that counts."""

    def counted(metric: Metric) -> None:
        observe(metric, lambda: aggregator.rollup.of(metric) if aggregator.is_shown else [], rises=True)

    def shown(metric: Metric, read: Read) -> None:
        observe(metric, lambda: read(aggregator, now().timestamp()) if aggregator.is_shown else [])

    for metric in COUNTED:
        counted(metric)
    shown(Metric.RUNS, _runs)
    shown(Metric.QUEUE_DEPTH, _queue_depth)
    shown(Metric.QUEUE_AGE, _queue_age)
    shown(Metric.APPROVALS_OPEN, _approvals_open)
    shown(Metric.APPROVAL_AGE, _approval_age)
    shown(Metric.CHECKPOINT_AGE, _checkpoint_age)
    if outbox is not None:
        observe(
            Metric.SPANS,
            lambda: [
                (outbox.counts[one], {Attribute.OUTCOME.value: one}) for one in ("exported", "dropped", "too_old")
            ],
            rises=True,
        )


def _runs(aggregator: Aggregator, _now_s: float) -> Readings:
    by_status = aggregator.book.by_status()
    return [(by_status[status], {Attribute.STATUS.value: status}) for status in OPEN]


def _queue_depth(aggregator: Aggregator, _now_s: float) -> Readings:
    pools = aggregator.rollup.labels
    depth = Counter(dict.fromkeys(pools.taken.get("pool", ()), 0))
    depth.update(pools.pool(run.pool) for run in aggregator.book.runs if run.waits_since_ns)
    return [(count, {Attribute.POOL.value: pool}) for pool, count in depth.items()]


def _queue_age(aggregator: Aggregator, now_s: float) -> Readings:
    oldest = aggregator.oldest_ns()
    known = dict.fromkeys(aggregator.rollup.labels.taken.get("pool", ()), 0.0)
    ages = known | {pool: max(0.0, now_s - since_ns / SECOND_NS) for pool, since_ns in oldest.items()}
    return [(age_s, {Attribute.POOL.value: pool}) for pool, age_s in ages.items()]


def _open_approvals(aggregator: Aggregator) -> list[int]:
    return [item.recorded_ns for run in aggregator.book.runs for item in run.items.values() if item.kind == "approval"]


def _approvals_open(aggregator: Aggregator, _now_s: float) -> Readings:
    return [(len(_open_approvals(aggregator)), {})]


def _approval_age(aggregator: Aggregator, now_s: float) -> Readings:
    since = _open_approvals(aggregator)
    return [(max(0.0, now_s - min(since) / SECOND_NS) if since else 0.0, {})]


def _checkpoint_age(aggregator: Aggregator, now_s: float) -> Readings:
    progress = aggregator.progress
    waits = progress.signal_seq != progress.saved_seq
    return [(max(0.0, now_s - progress.saved_ns / SECOND_NS) if waits else 0.0, {})]
