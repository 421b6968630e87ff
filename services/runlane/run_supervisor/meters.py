"""What the supervisor counts: plain integers on the way, shown to OpenTelemetry and `/metrics`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from runlane.hosting.telemetry import observe
from runlane_contracts.telemetry import Attribute, Metric


@dataclass(slots=True)
class Meters:
    """Totals since the start, by outcome."""

    commands: Counter[str] = field(default_factory=Counter)
    """applied, rejected, expired"""
    recoveries: Counter[str] = field(default_factory=Counter)
    """handed_out, given_up, held"""


def report(
    meters: Meters,
    service: str,
    *,
    leases: Callable[[], int],
    moments: Callable[[], int],
    looks: Callable[[], tuple[int, int]],
) -> None:
    """Show them whenever metrics are collected. `looks`: those that worked, and those that failed."""
    labels = {Attribute.SERVICE.value: service}

    def by_outcome(counts: dict[str, int]) -> list[tuple[float, dict[str, str]]]:
        return [(count, {**labels, Attribute.OUTCOME.value: outcome}) for outcome, count in counts.items()]

    observe(Metric.COMMANDS, lambda: by_outcome(dict(meters.commands)), rises=True)
    observe(Metric.RECOVERIES, lambda: by_outcome(dict(meters.recoveries)), rises=True)
    observe(Metric.LEASES, lambda: [(leases(), labels)])
    observe(Metric.MOMENTS, lambda: [(moments(), labels)])
    observe(Metric.LOOKS, lambda: by_outcome(dict(zip(("done", "failed"), looks(), strict=True))), rises=True)
