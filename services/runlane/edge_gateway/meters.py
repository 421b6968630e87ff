"""What the gateway counts: plain integers on the hot path, shown to OpenTelemetry and `/metrics`."""

from dataclasses import dataclass, field

from runlane.edge_gateway.preview_reader import PreviewTotals
from runlane.hosting.telemetry import observe
from runlane_contracts.telemetry import Attribute, Metric


@dataclass(slots=True)
class Meters:
    """Totals since the start, and `watchers`, `hubs`: how many there are now."""

    watchers: int = 0
    hubs: int = 0
    sockets: int = 0
    watches: int = 0
    facts_sent: int = 0
    previews: PreviewTotals = field(default_factory=PreviewTotals)
    resets: int = 0
    repairs: int = 0
    swept: int = 0
    holes: int = 0
    slow_readers: int = 0
    history_pages: int = 0
    quota_refusals: int = 0
    coalescings: int = 0


def report(meters: Meters, service: str) -> None:
    """Show them whenever metrics are collected."""
    labels = {Attribute.SERVICE.value: service}

    def with_outcome(outcome: str) -> dict[str, str]:
        return {**labels, Attribute.OUTCOME.value: outcome}

    def with_action(action: str) -> dict[str, str]:
        return {**labels, Attribute.ACTION.value: action}

    observe(Metric.WATCHERS, lambda: [(meters.watchers, labels)])
    observe(Metric.SOCKETS, lambda: [(meters.sockets, labels)])
    observe(Metric.WATCHED_RUNS, lambda: [(meters.hubs, labels)])
    observe(Metric.FACTS, lambda: [(meters.facts_sent, labels)], rises=True)
    observe(Metric.PREVIEWS, lambda: [(meters.previews.sent, labels)], rises=True)
    observe(Metric.PREVIEWS_DROPPED, lambda: [(meters.previews.dropped, labels)], rises=True)
    observe(
        Metric.WATCHES,
        lambda: [
            (meters.watches, with_outcome("opened")),
            (meters.resets, with_outcome("reset")),
            (meters.slow_readers, with_outcome("slow_reader")),
            (meters.quota_refusals, with_outcome("quota_exceeded")),
        ],
        rises=True,
    )
    observe(
        Metric.VIEW_REPAIRS,
        lambda: [
            (meters.repairs, with_outcome("repaired")),
            (meters.swept, with_outcome("swept")),
            (meters.holes, with_outcome("hole")),
        ],
        rises=True,
    )
    observe(
        Metric.WATCH_OVERFLOWS,
        lambda: [
            (meters.coalescings, with_action("lengthen_coalescing")),
            (meters.previews.losses, with_action("drop_previews")),
            (meters.slow_readers, with_action("close")),
        ],
        rises=True,
    )
    observe(Metric.PREVIEWS_MERGED, lambda: [(meters.previews.merged, labels)], rises=True)
    observe(Metric.FORCED_RESYNCS, lambda: [(meters.resets, labels)], rises=True)
    observe(Metric.HISTORY_PAGES, lambda: [(meters.history_pages, labels)], rises=True)
