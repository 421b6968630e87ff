"""The span that an agent's own program is in, if it uses OpenTelemetry. The SDK itself brings none along."""

import sys

from runlane_contracts.headers import TRACEPARENT


def active_traceparent() -> str | None:
    """As a header; None outside of a span, and where OpenTelemetry was never loaded.

    A fact that states none belongs to the span of its run.
    """
    propagate = sys.modules.get("opentelemetry.propagate")
    if propagate is None:
        return None
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get(TRACEPARENT)
