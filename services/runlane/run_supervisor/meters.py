"""What the supervisor counts: plain integers on the way, shown to OpenTelemetry and `/metrics`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from runlane.hosting.histograms import Histogram, histogram
from runlane.hosting.telemetry import observe
from runlane_contracts.commands import COMMANDS
from runlane_contracts.telemetry import OVERFLOW, Attribute, Metric

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 300.0)


@dataclass(slots=True)
class Meters:
    """Totals since the start, by outcome."""

    commands: Counter[str] = field(default_factory=Counter)
    """applied, rejected, expired"""
    recoveries: Counter[str] = field(default_factory=Counter)
    """handed_out, given_up, held"""
    outcomes: Histogram = field(default_factory=lambda: histogram(Metric.COMMAND_OUTCOME, BOUNDS_S))

    def settled(self, type_: str, outcome: str, seconds: float) -> None:
        """A command has its outcome, so long after it was accepted."""
        self.commands[outcome] += 1
        name = type_ if type_ in COMMANDS else OVERFLOW
        self.outcomes.record(seconds, {Attribute.TYPE.value: name, Attribute.OUTCOME.value: outcome})


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
