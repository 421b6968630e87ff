"""A run's state at a position: what the read store has folded, and the tail of the view on top of it."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.view import View, ViewCommit, ViewFact
from runlane.hosting.http import ProblemError
from runlane.kernel.errors import Retryable
from runlane_contracts import codec
from runlane_contracts.cursor import REDUCER_VERSION, Position
from runlane_contracts.lean import decode_lean_commit
from runlane_contracts.problems import Code
from runlane_contracts.reducer import TERMINAL_STATUS, Poison, Quarantine, State, checksum, fold, initial_state
from runlane_contracts.subjects import RunAddress

FOLD_PAGE_BYTES = 512 * 1024
SHORT_RUN_FACTS = 256
"""So few are folded from the view in less time than it takes to ask the read store."""
NOTHING_FOLDED = Position("", 0, 0)


class Folded(Protocol):
    """A state and the position it was folded through."""

    @property
    def state(self) -> State:
        """The fold. Its owner may change it."""
        ...

    @property
    def position(self) -> Position:
        """The place after the last fact in it."""
        ...


@dataclass(frozen=True, slots=True)
class StateAt:
    """State folded through a position; `quarantined`: and no further, whatever was asked for."""

    state: State
    position: Position
    quarantined: Quarantine | None = None


class ViewQuarantined(ProblemError):
    """The run's facts are there, and one of them cannot be folded."""

    def __init__(self, run: RunAddress, quarantined: Quarantine, through: int) -> None:
        super().__init__(
            Code.VIEW_QUARANTINED,
            f"the fold of this run fails on sequence {quarantined.sequence}, {quarantined.type[:80]}; "
            "its facts can be read as ever",
            current_sequence=through,
            snapshot=f"/v1/runs/{run.run_id}/snapshot?at_sequence={through}" if through else None,
        )


class FoldedStates(Protocol):
    """What is folded already. The read store, in production."""

    async def load(self, run: RunAddress) -> Folded | None:
        """The last state that was kept of a run, or None. Raises Retryable."""
        ...

    async def load_run(self, run: RunAddress) -> Folded | None:
        """The same, of which only `run` and `through_sequence` are needed. Raises Retryable."""
        ...


class NothingFolded:
    """No read store: every state is folded from the first fact on."""

    async def load(self, run: RunAddress) -> Folded | None:  # noqa: ARG002
        """Nothing, always."""
        return None

    async def load_run(self, run: RunAddress) -> Folded | None:  # noqa: ARG002
        """Nothing, always."""
        return None


class RunStates:
    """States of runs, never behind the view."""

    def __init__(self, view: View, folded: FoldedStates) -> None:
        self._view = view
        self._folded = folded

    async def at_least(self, run: RunAddress, sequence: int) -> StateAt:
        """The state after at least the facts 1…`sequence`, which the view holds; cheaper than exactly those.

        Raises:
            Hole: neither the read store nor the view holds what it takes.
            Retryable: one of them does not answer.
        """
        if sequence <= SHORT_RUN_FACTS:
            try:
                return await self._fold(run, _nothing(run), sequence)
            except (Hole, Retryable):  # what is folded already needs no archive
                pass
        kept = await self._folded.load(run)
        return await self._fold(run, _nothing(run) if kept is None else kept, sequence)

    async def at(self, run: RunAddress, sequence: int) -> StateAt:
        """The state after exactly the facts 1…`sequence`, which the view holds. Raises as `at_least` does."""
        kept = await self._folded.load(run)
        if kept is None or kept.position.sequence > sequence:
            kept = _nothing(run)
        return await self._fold(run, kept, sequence)

    async def status(self, run: RunAddress, sequence: int) -> "RunStatus":
        """The run's status after at least `sequence`. Where the beginning is not in the view, what the rest tells.

        Raises Retryable.
        """
        kept = await self._folded.load_run(run) or _nothing(run)
        status = RunStatus(kept.state)
        history = History(self._view, run, kept.position)
        while history.sequence < sequence:
            try:
                commits = await history.next(FOLD_PAGE_BYTES)
            except Hole as hole:
                history = History(self._view, run, Position("", 0, hole.got - 1))
                continue
            if not commits:
                break
            for commit in commits:
                for fact in commit.facts():
                    status.apply(fact)
        return status

    async def _before(self, run: RunAddress, commit: ViewCommit, quarantined: Quarantine) -> StateAt:
        """The state as it was before a commit that cannot be folded: all of it is shown, or none."""
        last = commit.first_sequence - 1
        before = StateAt(initial_state(*run), NOTHING_FOLDED) if last == 0 else await self.at(run, last)
        return StateAt(before.state, before.position, before.quarantined or quarantined)

    async def _fold(self, run: RunAddress, kept: Folded, through: int) -> StateAt:
        state, position = kept.state, kept.position
        history = History(self._view, run, position)
        while position.sequence < through:
            for commit in await history.must_go_on(FOLD_PAGE_BYTES):
                try:
                    for fact in decode_lean_commit(commit.body).facts:
                        if fact.sequence <= through:
                            fold(state, fact)
                except Poison as exc:
                    return await self._before(run, commit, exc.quarantine)
                sequence = min(commit.last_sequence, through)
                position = Position(commit.epoch, commit.stream_seq, sequence)
                if sequence == through:
                    return StateAt(state, position)
        return StateAt(state, position)


def _nothing(run: RunAddress) -> StateAt:
    return StateAt(initial_state(run.tenant_id, run.run_id), NOTHING_FOLDED)


class RunStatus:
    """Follows only the `run` part of the state: enough to know a run's status at any time."""

    def __init__(self, state: State) -> None:
        self.through: int = state["through_sequence"]
        self._state: State = {**initial_state("", ""), "run": dict(state["run"])}

    @property
    def status(self) -> str:
        """The status now."""
        return str(self._state["run"]["status"])

    @property
    def terminal(self) -> bool:
        """Whether the run is over."""
        return self.status in TERMINAL_STATUS

    def apply(self, fact: ViewFact) -> None:
        """Take in the next fact; what is in already changes nothing."""
        if fact.sequence <= self.through:
            return
        self.through = fact.sequence
        if fact.type.startswith("run."):
            self._state["through_sequence"] = fact.sequence - 1
            with suppress(Poison):  # the view of the run is quarantined for it; following the run goes on
                fold(self._state, codec.decode_fact(fact.raw))


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """A snapshot as JSON that lacks only the cursor, which differs between readers."""

    position: Position
    status: str
    _body: bytes

    @property
    def size(self) -> int:
        """Of the JSON, in bytes."""
        return len(self._body)

    @property
    def size_bytes(self) -> int:
        """About what it takes on the wire."""
        return len(self._body)

    def with_cursor(self, cursor: str) -> bytes:
        """The whole JSON object."""
        return b'%b,"cursor":"%b"}' % (self._body, cursor.encode())


def encoded_snapshot(run: RunAddress, at: Folded) -> EncodedSnapshot:
    """Encode a state once for all its readers. Raises ViewQuarantined: it is not the state that was asked for."""
    if isinstance(at, StateAt) and at.quarantined is not None:
        raise ViewQuarantined(run, at.quarantined, at.position.sequence)
    body = msgspec.json.encode({
        "state": at.state,
        "through_sequence": at.state["through_sequence"],
        "reducer_version": REDUCER_VERSION,
        "checksum": checksum(at.state),
    })  # fmt: skip
    return EncodedSnapshot(at.position, str(at.state["run"]["status"]), body[:-1])
