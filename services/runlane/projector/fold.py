"""The fold of one run, message by message: the reducer, and what to do with a message it cannot take."""

from collections.abc import Iterator

import msgspec
from msgspec import Struct, field

from runlane.kernel.event_log import compaction_of
from runlane_contracts import reducer
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Fact
from runlane_contracts.events import LogCompacted
from runlane_contracts.lean import decode_lean_commit
from runlane_contracts.reducer import Quarantine, SequenceGap, State
from runlane_contracts.subjects import RunAddress


class ViewMessage(Struct, frozen=True):
    """One message of a VIEW stream. `first` and `last` are the sequences its headers claim, 0 if they do not."""

    run: RunAddress
    stream_seq: int
    first: int
    last: int
    data: bytes

    @property
    def is_empty(self) -> bool:
        """Whether it says that it holds no fact: it stands for a log message that had none for this run."""
        return 1 <= self.first == self.last + 1


class RunFold(Struct):
    """One run as far as it is folded. `size` is about that of its JSON; `changed` are the items to be stored."""

    run: RunAddress
    state: State
    position: Position
    size: int = 0
    changed: set[str] = field(default_factory=set)
    quarantined: Quarantine | None = None
    """The fact before whose commit it stands still."""
    replaced: bool = False
    """Items went away: what is stored of the run is replaced, not added to."""


def begin(run: RunAddress) -> RunFold:
    """A run of which nothing is folded."""
    return RunFold(run, reducer.initial_state(run.tenant_id, run.run_id), Position("", 0, 0))


def begin_after(run: RunAddress, state: State, message: ViewMessage, *, epoch: str) -> RunFold:
    """A run whose beginning was archived: the state there, and what follows it is this message."""
    fold = RunFold(run, state, Position(epoch, message.stream_seq - 1, state["through_sequence"]))
    fold.changed, fold.replaced = set(state["items"]), True
    return fold


def compaction_before(message: ViewMessage) -> LogCompacted | None:
    """What a message says was archived before it."""
    facts = _facts(message)
    return compaction_of(facts[0]) if facts else None


def apply(fold: RunFold, message: ViewMessage, *, epoch: str) -> None:
    """Fold one message in place.

    Raises:
        SequenceGap: facts are missing before it.
        Poison: the reducer fails on a fact. The fold is spoiled; start again from what is stored.
    """
    facts = _facts(message)
    if facts is None:
        for sequence in _claimed(fold, message):
            _quarantine(fold.state, sequence, f"unreadable_{message.stream_seq}")
    else:
        for fact in facts:
            changed = reducer.fold(fold.state, fact)
            if changed is not None:
                fold.changed.add(changed)
            elif fact.type == LogCompacted.TYPE and b'"erased"' in bytes(fact.payload):
                fold.changed, fold.replaced = set(fold.state["items"]), True
    fold.position = Position(epoch, message.stream_seq, fold.state["through_sequence"])
    fold.size += len(message.data)


def _facts(message: ViewMessage) -> tuple[Fact, ...] | None:
    """The facts of a message; None if it is no commit of the run its subject names."""
    try:
        commit = decode_lean_commit(message.data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    addresses = {(commit.tenant_id, commit.run_id), *((fact.tenant_id, fact.run_id) for fact in commit.facts)}
    return commit.facts if addresses == {message.run} else None


def _claimed(fold: RunFold, message: ViewMessage) -> Iterator[int]:
    through: int = fold.state["through_sequence"]
    if message.first > through + 1:
        raise SequenceGap(through + 1, message.first)
    yield from range(through + 1, message.last + 1)


def _quarantine(state: State, sequence: int, event_id: str) -> None:
    state["through_sequence"] = sequence
    state["marks"].append(reducer.quarantine_mark(sequence, event_id))
