"""What the gateway counts. Plain integers on the hot path; `app` shows them to OpenTelemetry and `/metrics`."""

from dataclasses import dataclass


@dataclass(slots=True)
class Meters:
    """Totals since the start, and `watchers`, `hubs`: how many there are now."""

    watchers: int = 0
    hubs: int = 0
    watches: int = 0
    facts_sent: int = 0
    previews_sent: int = 0
    preview_drops: int = 0
    resets: int = 0
    repairs: int = 0
    swept: int = 0
    holes: int = 0
    slow_readers: int = 0
    history_pages: int = 0
