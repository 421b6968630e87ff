"""What the log already holds of a run whose agent starts anew: the agent asks again, and is answered from here.

Each step of an agent (a call, a message, a question, an append) has a name: the id that the agent gave it, or else
its number, counted from the last checkpoint. Both are the same in every attempt, so a step finds what an earlier
attempt wrote about it, and the log holds one item for it, however often the agent begins.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw

from runlane.client.errors import NonDeterministic
from runlane.client.run_tail import SentMessage
from runlane.client.state import RunState
from runlane_contracts import events
from runlane_contracts.canonical import action_digest, sha256_of
from runlane_contracts.checkpoint import checkpoint_artifact_id
from runlane_contracts.codec import decode_json
from runlane_contracts.commands import derived_id
from runlane_contracts.envelope import Fact

Item = dict[str, Any]
"""An item of the run's state; see `runlane_contracts.reducer`."""

_PREFIXES: Final = {
    "message": "msg", "reasoning": "rsn", "tool": "call", "approval": "apr", "input": "inp", "append": "evt",
}  # fmt: skip
_LOOK_AHEAD: Final = 16


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the agent: its id, and its item if an earlier attempt got that far."""

    id: str
    item: Item | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    sequence: int
    key: str
    causes: frozenset[str]


class Journal:
    """The steps of earlier attempts. `learn` every fact first; then ask, in the order in which the agent goes.

    Raises, out of everything that looks a step up:
        NonDeterministic: the agent does not do what it did before.
    """

    def __init__(self, state: RunState, lease_epoch: int, *, masked: Callable[[Any], Any]) -> None:
        self._state = state
        self._run_id = state.data["run"]["run_id"]
        self._epoch = lease_epoch
        self._masked = masked
        self._entries: deque[_Entry] = deque()
        self._appended: dict[str, tuple[int, str]] = {}
        self._checkpoints: list[tuple[int, Raw]] = []
        self._begun_from: Raw | None = None  # the checkpoint of another run that this one began with
        self._passed = 0  # checkpoints that this attempt has passed
        self._number = 0  # of the next step without a name
        self._at = 0  # the sequence up to which this attempt has repeated the earlier ones
        self._owed: set[str] = set()  # event ids of messages that earlier attempts had been told by then
        self._questions: dict[str, tuple[str, dict[str, Any]]] = {}
        self._fault: NonDeterministic | None = None
        self.heard: list[str] = []
        """Event ids of messages that the agent has been told, and that no fact names as its cause yet."""

    def learn(self, fact: Fact) -> None:
        """Take in one fact of the run, in order; those that agents stated before this attempt count."""
        if fact.lease_epoch == 0 and fact.type == events.ArtifactCompleted.TYPE and self._is_checkpoint(fact):
            self._begun_from = fact.payload
        if not 0 < fact.lease_epoch < self._epoch or not is_a_step(fact.type):
            return
        self._appended[fact.event_id] = (fact.sequence, fact.type)
        key = fact.event_id if fact.subject is None else f"{fact.subject.kind}:{fact.subject.id}"
        self._entries.append(_Entry(fact.sequence, key, frozenset(fact.causation_ids)))
        if fact.type == events.ArtifactCompleted.TYPE and self._is_checkpoint(fact):
            self._checkpoints.append((fact.sequence, fact.payload))
        if fact.type == events.ApprovalRequested.TYPE:
            asked = decode_json(fact.payload)
            shown = {name: asked.get(name) for name in ("description", "data")}
            self._questions[asked["approval_id"]] = (asked["action_digest"], shown)

    # -- steps --------------------------------------------------------------------------------------------

    def step(self, kind: str, given: str | None = None) -> Step:
        """The next step of a kind, by the name it was given or by its number."""
        self.require_sound()
        id_ = given or self._numbered(kind)
        return Step(id_, self.item(kind, id_))

    def item(self, kind: str, id_: str) -> Item | None:
        """An item as the log tells it by now."""
        found: Item | None = self._state.data["items"].get(f"{kind}:{id_}")
        return found

    def calls(self) -> list[Item]:
        """Every tool call of the run."""
        return [one for one in self._state.data["items"].values() if one["kind"] == "tool"]

    def _numbered(self, kind: str) -> str:
        number, self._number = self._number, self._number + 1
        for other in _PREFIXES:
            if other != kind and self._holds(other, number):
                raise self._differs(f"step {number} was {_a(other)} before, and is {_a(kind)} now")
        return self._id_of(kind, number)

    def _id_of(self, kind: str, number: int) -> str:
        return derived_id(_PREFIXES[kind], self._run_id, "step", str(self._passed), str(number))

    def _holds(self, kind: str, number: int) -> bool:
        id_ = self._id_of(kind, number)
        return id_ in self._appended if kind == "append" else self.item(kind, id_) is not None

    def appended(self, id_: str, types: Sequence[str]) -> list[tuple[str, int]] | None:
        """Event ids and sequences of an append that was made before, else None."""
        found: list[tuple[str, int]] = []
        for ordinal, type_ in enumerate(types):
            known = self._appended.get(event_id := self.event_id(id_, ordinal))
            if known is None:
                break
            if known[1] != type_:
                raise self._differs(f"stated {known[1]} before, and states {type_} now")
            found.append((event_id, known[0]))
        if not found:
            return None
        if len(found) != len(types) or self.event_id(id_, len(types)) in self._appended:
            raise self._differs(f"states {len(types)} facts at once, and another number before")
        self._pass(found[-1][1])
        return found

    @staticmethod
    def event_id(id_: str, ordinal: int) -> str:
        """Of the fact at a place in an append."""
        return id_ if ordinal == 0 else derived_id("evt", id_, str(ordinal))

    def answered(self, item: Item) -> None:
        """The agent was given what the log says about this item."""
        self._pass(int(item["last_sequence"]))

    def _pass(self, sequence: int) -> None:
        self._at = max(self._at, sequence)
        while self._entries and self._entries[0].sequence <= self._at:
            self._owed |= self._entries.popleft().causes

    @property
    def is_replaying(self) -> bool:
        """Whether earlier attempts got further than this one is by now."""
        return bool(self._entries)

    def require_finished(self) -> None:
        """The agent has returned: it must not have been further before."""
        if self._passed < len(self._checkpoints):
            raise self._differs("the agent returned before a checkpoint that it reached before")
        for number in range(self._number, self._number + _LOOK_AHEAD):
            for kind in _PREFIXES:
                if self._holds(kind, number):
                    raise self._differs(f"the agent returned before {_a(kind)}, step {number}, that it did before")

    def require_sound(self) -> None:
        """Once the agent differed, it goes no step further, whatever it makes of the error."""
        if self._fault is not None:
            raise self._fault

    def _differs(self, how: str) -> NonDeterministic:
        self._fault = NonDeterministic(how)
        return self._fault

    # -- is it the same? ----------------------------------------------------------------------------------

    def require_same_call(self, item: Item, name: str, arguments: Any) -> None:
        """A call is the same when its name and its arguments are, as they are or as they are shown."""
        recorded = item.get("name"), item.get("arguments")
        if recorded[0] == name and (
            item.get("action_digest") == action_digest(name, arguments) or self._look_alike(arguments, recorded[1])
        ):
            return
        raise self._differs(f"{item['id']} was a call of {recorded[0]!r} before, and is another one now ({name!r})")

    def require_same_question(self, approval_id: str, digest: str, shown: dict[str, Any]) -> None:
        """A question is the same when it is about the same action, as it is or as it is shown."""
        recorded = self._questions.get(approval_id)
        if recorded is None or recorded[0] == digest or self._look_alike(shown, recorded[1]):
            return
        raise self._differs(f"approval {approval_id} was another question before; ask it under another id")

    def _look_alike(self, now: Any, recorded: Any) -> bool:
        # Results are masked on their way into the log: an agent that was answered from there may hand on a mask.
        return sha256_of(self._masked(now)) == sha256_of(self._masked(recorded))

    # -- what people said ---------------------------------------------------------------------------------

    def hear(self, waiting: deque[SentMessage]) -> list[SentMessage]:
        """Messages to be told now: those that were told at this place before, or else all that wait.

        Which were told is in the log: the next thing that the agent stated names them as its causes.
        """
        said = list(waiting)
        if self._entries:
            told = self._owed | self._entries[0].causes
            said = [one for one in said if one.event_id in told]
        else:
            self.heard += (one.event_id for one in said)
        for one in said:
            waiting.remove(one)
        return said

    def take_retries(self, waiting: deque[events.ToolRequested]) -> list[events.ToolRequested]:
        """Calls to be tried again now, by the same rule."""
        asked = list(waiting)
        if self._entries:
            asked = [one for one in asked if f"tool:{one.tool_call_id}" == self._entries[0].key]
        for one in asked:
            waiting.remove(one)
        return asked

    # -- checkpoints --------------------------------------------------------------------------------------

    @property
    def checkpoint_id(self) -> str:
        """The artifact that carries the run's checkpoints."""
        return checkpoint_artifact_id(self._run_id)

    def _is_checkpoint(self, fact: Fact) -> bool:
        return fact.subject is not None and (fact.subject.kind, fact.subject.id) == ("artifact", self.checkpoint_id)

    def reach_checkpoint(self) -> bool:
        """The agent is at its next checkpoint, and counts its steps anew; whether it was there before."""
        self.require_sound()
        known = self._passed < len(self._checkpoints)
        if known:
            self._pass(self._checkpoints[self._passed][0])
        self._passed, self._number = self._passed + 1, 0
        return known

    def restore(self) -> Any:
        """The last checkpoint of an earlier attempt, and the agent goes on behind it; None: there is none.

        Before its first own one, a run that executes another one again has the checkpoint it was begun with.
        """
        if not self._checkpoints:
            return None if self._begun_from is None else decode_json(self._begun_from).get("content")
        sequence, payload = self._checkpoints[-1]
        if self._passed < len(self._checkpoints):
            self._passed, self._number = len(self._checkpoints), 0
            self._pass(sequence)
        return decode_json(payload).get("content")


def is_a_step(type_: str) -> bool:
    """Whether a fact of an agent is part of one of its steps, and not just how its run or a call stands."""
    return not type_.startswith(("run.", "log.")) and type_ != events.ToolRunning.TYPE


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
