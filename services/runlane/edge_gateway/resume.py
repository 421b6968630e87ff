"""Where a reader continues, decided before anything is sent. Pure.

Only the run sequence counts. The stream sequence in a cursor says where to start reading; when it belongs to
another incarnation of the stream, or to no stream (a cursor made where facts are written), reading starts at
the run's beginning and skips.
"""

from dataclasses import dataclass

from runlane_contracts.cursor import Position
from runlane_contracts.resume import From, Outcome, ResetReason


@dataclass(frozen=True, slots=True)
class Head:
    """What the view holds of a run. Everything from `readable_from` to the position is there, without a hole.

    `declared`: the record says that what is before that was archived.
    """

    position: Position
    terminal: bool
    readable_from: int = 1
    declared: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """What the reader brought. `sticky`: the cursor came from a reconnecting client and wins over `start`."""

    cursor: Position | None = None
    start: From | None = None
    sticky: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """The exact suffix after a position."""

    after: Position


@dataclass(frozen=True, slots=True)
class RunTerminal:
    """The suffix of a finished run, then the end."""

    after: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State first, then what follows it."""


@dataclass(frozen=True, slots=True)
class ResetRequired:
    """The cursor cannot be continued: state first, then what follows it."""

    reason: ResetReason


@dataclass(frozen=True, slots=True)
class AlreadyEnded:
    """The reader has everything there will ever be."""


@dataclass(frozen=True, slots=True)
class AheadOfView:
    """The cursor is past the head. The view may be catching up: wait, then decide with `settled`."""


Decision = Resumed | RunTerminal | Snapshot | ResetRequired | AlreadyEnded | AheadOfView


def decide(asked: Asked, head: Head, *, settled: bool = False) -> Decision:
    """How this reader continues at this head."""
    cursor = asked.cursor
    if cursor is None:
        return _without_cursor(asked.start, head)
    if asked.start == "snapshot" and not asked.sticky:
        return Snapshot()
    if cursor.sequence > head.position.sequence:
        return ResetRequired(_why_ahead(cursor, head)) if settled else AheadOfView()
    if cursor.sequence == head.position.sequence:
        return AlreadyEnded() if head.terminal else Resumed(cursor)
    return _suffix(cursor, head)


def outcome_of(decision: Resumed | RunTerminal | Snapshot | ResetRequired) -> Outcome:
    """The name of a decision on the wire."""
    match decision:
        case Resumed():
            return Outcome.RESUMED
        case RunTerminal():
            return Outcome.RUN_TERMINAL
        case Snapshot():
            return Outcome.SNAPSHOT
        case ResetRequired():
            return Outcome.RESET_REQUIRED


def _without_cursor(start: From | None, head: Head) -> Decision:
    if start == "start":
        return _suffix(Position(head.position.epoch, 0, 0), head)
    if start == "now":
        return _suffix(head.position, head)
    return Snapshot()


def _suffix(after: Position, head: Head) -> Decision:
    if after.sequence < head.position.sequence and after.sequence + 1 < head.readable_from:
        return ResetRequired(ResetReason.COMPACTED if head.declared else ResetReason.HOLE)
    return RunTerminal(after) if head.terminal else Resumed(after)


def _why_ahead(cursor: Position, head: Head) -> ResetReason:
    if cursor.epoch not in {"", head.position.epoch}:
        return ResetReason.STREAM_REBUILT
    return ResetReason.AHEAD_OF_STREAM
