"""What a reader asks for, and what it is told first: the outcome is named before any data."""

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

From = Literal["start", "snapshot", "now"]


class Outcome(StrEnum):
    """How a watch continues."""

    RESUMED = "resumed"  # the exact suffix follows
    SNAPSHOT = "snapshot"  # no cursor was given, or a snapshot was asked for: state first, then the suffix
    RESET_REQUIRED = "reset_required"  # the cursor cannot be continued; a snapshot follows
    RUN_TERMINAL = "run_terminal"  # the suffix of a finished run, then `end`


class ResetReason(StrEnum):
    """Why a cursor cannot be continued."""

    COMPACTED = "compacted"
    STREAM_REBUILT = "stream_rebuilt"
    AHEAD_OF_STREAM = "ahead_of_stream"
    HOLE = "hole"  # the record lacks facts, and nothing says why: a fault, reported


class EndReason(StrEnum):
    """Why a stream of frames stopped. EOF without one is a lost connection."""

    RUN_TERMINAL = "run_terminal"
    SLOW_READER = "slow_reader"
    SHUTDOWN = "shutdown"
    UNAUTHORIZED = "unauthorized"
    LIFETIME = "lifetime"


class Mark(Struct, frozen=True, kw_only=True):
    """A sequence and the cursor that continues after it."""

    sequence: int
    cursor: str


class Hello(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Always the first frame. The reader starts from `baseline`; `high_water` is where it is caught up."""

    outcome: Outcome
    run_id: str
    status: str
    baseline: Mark
    high_water: Mark
    reducer_version: int
    heartbeat_s: float
    filter: dict[str, Any]
    reason: ResetReason | None = None


class SnapshotFrame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State at `through_sequence`; what follows starts at the next one."""

    state: dict[str, Any]
    through_sequence: int
    reducer_version: int
    checksum: str
    cursor: str | None = None


class Synced(Struct, frozen=True, kw_only=True):
    """Caught up with the high-water mark; live from here."""

    sequence: int


class End(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Always the last frame."""

    reason: EndReason
    cursor: str
    retry_after_ms: int | None = None
