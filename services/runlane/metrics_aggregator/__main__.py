"""`python -m runlane.metrics_aggregator`."""

from runlane.hosting.service import main
from runlane.metrics_aggregator.app import NAME, serve
from runlane.metrics_aggregator.settings import MetricsAggregatorSettings

if __name__ == "__main__":
    main(NAME, lambda connections: serve(MetricsAggregatorSettings(), connections))
