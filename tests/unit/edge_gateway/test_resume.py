"""How a reader continues: the decision, case by case."""

import pytest

from runlane.edge_gateway.resume import (
    AheadOfView,
    AlreadyEnded,
    Asked,
    Head,
    ResetRequired,
    Resumed,
    RunTerminal,
    Snapshot,
    decide,
    outcome_of,
)
from runlane_contracts.cursor import Position
from runlane_contracts.resume import Outcome, ResetReason


def at(sequence: int, epoch: str = "e1") -> Position:
    return Position(epoch, sequence, sequence)


LIVE = Head(at(10), terminal=False)
OVER = Head(at(10), terminal=True)


@pytest.mark.parametrize(
    ("asked", "head", "decision"),
    [
        (Asked(), LIVE, Snapshot()),
        (Asked(start="snapshot"), OVER, Snapshot()),
        (Asked(start="start"), LIVE, Resumed(Position("e1", 0, 0))),
        (Asked(start="start"), OVER, RunTerminal(Position("e1", 0, 0))),
        (Asked(start="now"), LIVE, Resumed(at(10))),
        (Asked(start="now"), OVER, RunTerminal(at(10))),
        (Asked(at(4)), LIVE, Resumed(at(4))),
        (Asked(at(4)), OVER, RunTerminal(at(4))),
        (Asked(at(10)), LIVE, Resumed(at(10))),
        (Asked(at(10)), OVER, AlreadyEnded()),
        (Asked(at(4, "e0")), LIVE, Resumed(at(4, "e0"))),
        (Asked(Position("", 0, 4)), OVER, RunTerminal(Position("", 0, 4))),
        (Asked(Position("", 0, 10)), OVER, AlreadyEnded()),
        (Asked(at(4), start="start"), LIVE, Resumed(at(4))),
        (Asked(at(4), start="now"), LIVE, Resumed(at(4))),
        (Asked(at(4), start="snapshot"), LIVE, Snapshot()),
        (Asked(at(4), start="snapshot", sticky=True), LIVE, Resumed(at(4))),
        (Asked(at(10), start="start", sticky=True), OVER, AlreadyEnded()),
        (Asked(at(11)), LIVE, AheadOfView()),
        (Asked(at(11)), OVER, AheadOfView()),
        (Asked(Position("", 0, 11)), LIVE, AheadOfView()),
    ],
)
def test_the_run_sequence_decides(asked: Asked, head: Head, decision: object) -> None:
    assert decide(asked, head) == decision


@pytest.mark.parametrize(
    ("cursor", "reason"),
    [
        (at(11), ResetReason.AHEAD_OF_STREAM),
        (Position("", 0, 11), ResetReason.AHEAD_OF_STREAM),
        (at(11, "e0"), ResetReason.STREAM_REBUILT),
    ],
)
def test_a_cursor_that_stays_ahead_is_reset_and_the_reason_is_named(cursor: Position, reason: ResetReason) -> None:
    assert decide(Asked(cursor), LIVE, settled=True) == ResetRequired(reason)


@pytest.mark.parametrize("readable_from", [6, 7, 10])
def test_what_is_not_there_any_more_is_compacted(readable_from: int) -> None:
    head = Head(at(10), terminal=False, readable_from=readable_from)
    assert decide(Asked(at(4)), head) == ResetRequired(ResetReason.COMPACTED)
    assert decide(Asked(start="start"), head) == ResetRequired(ResetReason.COMPACTED)
    assert decide(Asked(at(readable_from - 1)), head) == Resumed(at(readable_from - 1))
    assert decide(Asked(start="now"), head) == Resumed(at(10))


def test_every_decision_that_opens_a_stream_has_a_name_on_the_wire() -> None:
    assert outcome_of(Resumed(at(1))) is Outcome.RESUMED
    assert outcome_of(RunTerminal(at(1))) is Outcome.RUN_TERMINAL
    assert outcome_of(Snapshot()) is Outcome.SNAPSHOT
    assert outcome_of(ResetRequired(ResetReason.COMPACTED)) is Outcome.RESET_REQUIRED
