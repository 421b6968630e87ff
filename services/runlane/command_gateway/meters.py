"""What the gateway counts, shown to OpenTelemetry and `/metrics`."""

from runlane.command_gateway.admission import Admission
from runlane.command_gateway.intake import Intake
from runlane.hosting.telemetry import observe
from runlane.kernel.preview_bus import PreviewBus
from runlane_contracts.telemetry import Attribute, Metric


def report(service: str, intake: Intake, admission: Admission, previews: PreviewBus) -> None:
    """Show them whenever metrics are collected."""
    labels = {Attribute.SERVICE.value: service}

    def with_outcome(outcome: str) -> dict[str, str]:
        return {**labels, Attribute.OUTCOME.value: outcome}

    observe(Metric.COMMANDS, lambda: [(intake.accepted, with_outcome("accepted"))], rises=True)
    observe(
        Metric.STARTS_REFUSED,
        lambda: [(count, with_outcome(code)) for code, count in admission.refused.items()],
        rises=True,
    )
    observe(Metric.PREVIEWS, lambda: [(previews.counts.sent, labels)], rises=True)
    observe(Metric.PREVIEWS_DROPPED, lambda: [(previews.counts.dropped, labels)], rises=True)
    observe(Metric.PREVIEWS_MERGED, lambda: [(previews.counts.coalesced, labels)], rises=True)
