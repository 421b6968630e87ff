"""Our histograms say what the SDK's would, at a small part of the cost."""

import random

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from runlane.hosting.exposition import exposition
from runlane.hosting.histograms import Histogram, histogram
from runlane_contracts.telemetry import Metric

BOUNDS = [0.1, 0.5, 1.0]


def seen(points) -> dict:
    return {
        tuple(one.attributes.items()): (list(one.bucket_counts), one.count, round(one.sum, 6), one.min, one.max)
        for one in points
    }


def test_the_same_values_make_the_same_points_as_the_sdk_makes() -> None:
    """Taken out: `bisect_left` for `bisect_right`; then a value on a bound is counted above it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    theirs = provider.get_meter("x").create_histogram("h", explicit_bucket_boundaries_advisory=BOUNDS)
    ours = Histogram(BOUNDS)
    chance = random.Random(7)
    for value in [*BOUNDS, 0.0, 7.0, *(chance.random() * 2 for _ in range(200))]:
        labels = {"outcome": chance.choice(["a", "b"])}
        theirs.record(value, labels)
        ours.record(value, labels)
    data = reader.get_metrics_data()
    assert data is not None
    assert seen(ours.points()) == seen(data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points)
    provider.shutdown()


def test_services_of_a_process_share_one_of_a_name() -> None:
    first, second = (histogram(Metric.COMMIT_DURATION, BOUNDS) for _ in range(2))
    assert first is second
    assert histogram(Metric.QUEUE_WAIT, BOUNDS) is not first
    assert metrics.get_meter_provider() is not None


def test_nothing_recorded_shows_nothing() -> None:
    assert Histogram(BOUNDS).points() == []
    assert exposition(None) == ""
