"""What the projector has folded, kept in SQL: written by it alone, read by the edge gateway."""

from runlane.read_store.pages import PageTokenInvalid
from runlane.read_store.rows import PROJECTION, ApprovalRow, FinishedRow, Loaded, RunChange, RunRow, StreamPosition
from runlane.read_store.store import Progress, ReadStore

__all__ = [
    "PROJECTION",
    "ApprovalRow",
    "FinishedRow",
    "Loaded",
    "PageTokenInvalid",
    "Progress",
    "ReadStore",
    "RunChange",
    "RunRow",
    "StreamPosition",
]
