"""The streams and subjects that the operator's verbs look after: from the same settings as the services."""

from runlane.hosting.settings import CommonSettings
from runlane_contracts.streams import Layout


def configured_layout() -> Layout:
    """What `RUNLANE_LOG_STREAMS` and its like say."""
    return CommonSettings().layout
