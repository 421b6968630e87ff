"""The state a client sees: a pure fold of facts, the same in the projector, the SDK and the browser.

State is plain JSON, so that every language holds the same value and `checksum` agrees. Previews never enter
it. `REDUCER_VERSION` rises when the same facts would give another state.

    {"run": {…}, "items": {"tool:c1": {…}}, "through_sequence": 12, "marks": [{…}]}
"""

from typing import Any

import msgspec
from msgspec import Struct

from runlane_contracts import events
from runlane_contracts.canonical import sha256_of
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.envelope import Fact, is_erased
from runlane_contracts.tracing import parse_traceparent

State = dict[str, Any]

TERMINAL_STATUS = frozenset({"completed", "failed", "cancelled"})
OPEN_ITEM_STATUS = frozenset({"started", "requested", "running", "outcome_unknown", "waiting", "created", "updated"})


class SequenceGap(Exception):
    """A fact arrived whose predecessor did not."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"expected sequence {expected}, got {got}")
        self.expected = expected
        self.got = got


class Quarantine(Struct, frozen=True, kw_only=True):
    """Why the view of a run stands still before a fact: this version of the fold fails on it."""

    sequence: int
    event_id: str
    type: str
    reducer_version: int = REDUCER_VERSION


class Poison(Exception):
    """A fact that the fold fails on: the fold is wrong. The state it was applied to is spoiled."""

    def __init__(self, fact: Fact) -> None:
        super().__init__(f"the fold fails on sequence {fact.sequence}, {fact.type}")
        self.quarantine = Quarantine(sequence=fact.sequence, event_id=fact.event_id, type=fact.type)


def initial_state(tenant_id: str, run_id: str) -> State:
    """A run of which nothing is known yet."""
    return {
        "run": {"tenant_id": tenant_id, "run_id": run_id, "status": "created"},
        "items": {},
        "marks": [],
        "through_sequence": 0,
    }


def checksum(state: State) -> str:
    """``sha256:<hex>`` over the canonical JSON of the whole state."""
    return sha256_of(state)


def reduce(state: State, fact: Fact) -> str | None:
    """Apply one fact in place; return the key of the item it changed, if any.

    A fact that is in the state already changes nothing. One that does not fit its type leaves a mark, as if the
    redaction filter had quarantined it, so one bad fact stops no reader.

    Raises:
        SequenceGap: a predecessor is missing; the state is as before.
    """
    through = state["through_sequence"]
    if fact.sequence <= through:
        return None
    if fact.sequence != through + 1:
        raise SequenceGap(through + 1, fact.sequence)
    state["through_sequence"] = fact.sequence
    run = state["run"]
    run["updated_at"] = fact.recorded_at or fact.occurred_at
    if fact.session_id is not None:
        run["session_id"] = fact.session_id
    if is_erased(fact):
        _reduce_erased(run, fact)
        return None
    payload = fitting_payload(fact)
    if payload is None:
        state["marks"].append(quarantine_mark(fact.sequence, fact.event_id))
        return None
    family, _, verb = fact.type.partition(".")
    if family == "run" and events.is_known(fact.type):
        _reduce_run(run, fact, payload)
        return None
    if family == "log":
        _erase(state, payload.get("erased"))
        state["marks"].append({**payload, "sequence": fact.sequence, "type": fact.type})
        return None
    if fact.type == "approval.voted":
        return _reduce_vote(state, fact, payload)
    return _reduce_item(state, fact, verb, payload)


_KEPT_OF_ERASED = (
    "tenant_id", "run_id", "session_id", "status", "created_at", "updated_at", "ended_at", "trace_id",
)  # fmt: skip


def _reduce_erased(run: State, fact: Fact) -> None:
    """A fact without its payload still says how the run stands; of items it says nothing."""
    status = _RUN_STATUS.get(fact.type)
    if status is None or run["status"] in TERMINAL_STATUS:
        return
    at = fact.recorded_at or fact.occurred_at
    if fact.type == "run.created":
        run["created_at"] = at
        _trace(run, fact)
    if status in TERMINAL_STATUS:
        run["ended_at"] = at
    _move(run, status)


def _erase(state: State, erased: Any) -> None:
    """Forget what an erasure names, so that a state folded before it and one folded after it are the same."""
    if not isinstance(erased, list):
        return
    for key in erased:
        if key == events.ERASED_ALL:
            state["run"] = {name: state["run"][name] for name in _KEPT_OF_ERASED if name in state["run"]}
            state["items"] = {}
            state["marks"] = [mark for mark in state["marks"] if mark.get("reason") != "unfit"]
        elif isinstance(key, str):
            state["items"].pop(key, None)


def quarantine_mark(sequence: int, event_id: str) -> State:
    """What stands in `marks` for a fact that could not be applied."""
    return {"sequence": sequence, "type": "log.quarantined", "event_id": event_id, "reason": "unfit"}


def fold(state: State, fact: Fact) -> str | None:
    """As `reduce`, for those who keep views of many runs: a fault of the fold is that of one run, and has a name.

    Raises:
        SequenceGap: as `reduce` does.
        Poison: `reduce` failed in a way it never should; the state is spoiled.
    """
    try:
        return reduce(state, fact)
    except SequenceGap:
        raise
    except Exception as exc:
        raise Poison(fact) from exc


# What the fold reads of a payload, beside the id of its item. Everything else may be there or not.
_NUMBER, _TEXT = frozenset({int, float}), frozenset({str})
_READ: dict[str, dict[str, frozenset[type]]] = {
    "run.leased": {"lease_epoch": _NUMBER, "worker_id": _TEXT},
    "run.lease_lost": {"lease_epoch": _NUMBER},
    "run.cancel_requested": {"deadline_at": _TEXT},
    "approval.voted": {"by": _TEXT, "decision": _TEXT},
    "approval.resolved": {"decision": _TEXT},
    "tool.reconciled": {"outcome": _TEXT},
}


_decode_any = msgspec.json.Decoder().decode


def fitting_payload(fact: Fact) -> State | None:
    """The payload as an object that has what the fold reads of its type; None if it does not fit."""
    raw = bytes(fact.payload)
    try:
        payload = None if events.nests_too_deep(raw) else _decode_any(raw)
    except msgspec.MsgspecError:
        return None
    if not isinstance(payload, dict):
        return None
    cls = events.PAYLOADS.get(fact.type)
    if cls is not None and cls.ITEM is not None and type(payload.get(cls.ITEM[1])) is not str:
        return None
    read = _READ.get(fact.type)
    if read is not None and not all(type(payload.get(name)) in kinds for name, kinds in read.items()):
        return None
    return payload


# --- run --------------------------------------------------------------------------------------------------

_RUN_STATUS = {
    "run.created": "created", "run.started": "running", "run.waiting": "waiting", "run.resumed": "running",
    "run.paused": "paused", "run.cancel_requested": "cancelling", "run.completed": "completed",
    "run.failed": "failed", "run.cancelled": "cancelled",
}  # fmt: skip


def _reduce_run(run: State, fact: Fact, payload: State) -> None:
    if run["status"] in TERMINAL_STATUS:
        return
    at = fact.recorded_at or fact.occurred_at
    match fact.type:
        case "run.created":
            run.update({**payload, "tenant_id": run["tenant_id"], "run_id": run["run_id"], "created_at": at})
            _trace(run, fact)
        case "run.leased":
            _keep(run, payload, "lease_epoch", "worker_id", "attempt")
            if run["status"] == "lost":
                run["status"] = run.get("status_before_lost", "running")
        case "run.lease_lost":
            _reduce_lease_lost(run, payload)
        case "run.waiting":
            run["waiting_on"] = payload.get("on", [])
        case "run.cancel_requested":
            run["cancel_deadline_at"] = payload["deadline_at"]
            _keep(run, payload, "reason")
        case "run.completed" | "run.failed" | "run.cancelled":
            _keep(run, payload, "output", "usage", "error", "reason")
            run["ended_at"] = at
            run.pop("worker_id", None)
        case _:
            pass
    _move(run, _RUN_STATUS.get(fact.type))
    _forget_what_is_over(run)


def _trace(run: State, fact: Fact) -> None:
    context = parse_traceparent(fact.traceparent)
    if context is None:
        run.pop("trace_id", None)
    else:
        run["trace_id"] = context.trace_id


def _move(run: State, status: str | None) -> None:
    if status is None:
        return
    if run["status"] == "lost" and status not in TERMINAL_STATUS and status != "cancelling":
        run["status_before_lost"] = status  # nobody drives it; it goes on like this once somebody does
    else:
        run["status"] = status


def _reduce_lease_lost(run: State, payload: State) -> None:
    if payload["lease_epoch"] != run.get("lease_epoch") or "worker_id" not in run:
        return
    run["status_before_lost"] = run["status"]
    run["status"] = "lost"
    run.pop("worker_id")


def _forget_what_is_over(run: State) -> None:
    if run["status"] != "lost":
        run.pop("status_before_lost", None)
    if run.get("status_before_lost", run["status"]) != "waiting":
        run.pop("waiting_on", None)


def _keep(target: State, payload: State, *names: str) -> None:
    for name in names:
        if name in payload:
            target[name] = payload[name]


_OF_ANOTHER_VERSION = ("votes", "approved_by", "decision", "decided_by", "reason")
"""What was said about a question in the version before says nothing about the one that is asked now."""


# --- items ------------------------------------------------------------------------------------------------


def _reduce_item(state: State, fact: Fact, verb: str, payload: State) -> str:
    kind, id_ = item_of(fact, payload)
    key = f"{kind}:{id_}"
    at = fact.recorded_at or fact.occurred_at
    item = state["items"].setdefault(key, {"first_sequence": fact.sequence, "started_at": at})
    first_sequence, started_at = item["first_sequence"], item["started_at"]
    item.update(payload)
    # A payload may hold any name; these are the fold's own.
    item["kind"], item["id"] = kind, id_
    item["first_sequence"], item["started_at"] = first_sequence, started_at
    item["status"] = item_status(fact.type, verb, payload)
    item["last_sequence"], item["updated_at"] = fact.sequence, at
    if fact.turn_id is not None:
        item["turn_id"] = fact.turn_id
    if fact.task_id is not None and kind != "task":
        item["task_id"] = fact.task_id
    if fact.parent_id is not None:
        item["parent_id"] = fact.parent_id
    if fact.type == "approval.requested":
        for name in _OF_ANOTHER_VERSION:
            item.pop(name, None)
    if item["status"] in OPEN_ITEM_STATUS:
        item.pop("ended_at", None)
    else:
        item["ended_at"] = at
    if not events.is_known(fact.type):
        item["type"] = fact.type
    return key


def _reduce_vote(state: State, fact: Fact, payload: State) -> str | None:
    """The question stays as it is, and open; who approved it so far is added."""
    key = f"approval:{payload['approval_id']}"
    item = state["items"].get(key)
    if item is None or item["status"] != "waiting":
        return None
    before = item.get("votes")
    vote = {"by": payload["by"], "decision": payload["decision"]}
    _keep(vote, payload, "action_digest")
    item["votes"] = [*before, vote] if isinstance(before, list) else [vote]
    item["last_sequence"], item["updated_at"] = fact.sequence, fact.recorded_at or fact.occurred_at
    return key


def item_of(fact: Fact, payload: State) -> tuple[str, str]:
    """Kind and id of the item that a fact is about; not for facts about the run or the log."""
    cls = events.PAYLOADS.get(fact.type)
    if cls is not None and cls.ITEM is not None:
        kind, field = cls.ITEM
        return kind, payload[field]
    if fact.type == "plan.updated":
        return "plan", "plan"
    if fact.type == "session.started":
        return "session", fact.session_id or "session"
    if fact.subject is not None:
        return fact.subject.kind, fact.subject.id
    return "other", fact.event_id


def item_status(type_: str, verb: str, payload: State) -> str:
    """How an item stands after a fact about it. `verb`: the part of the type after its first dot."""
    if type_ in {"approval.requested", "input.requested"}:
        return "waiting"
    if type_ == "approval.resolved":
        return str(payload["decision"])
    if type_ == "tool.reconciled":
        return "completed" if payload["outcome"] == "executed" else "failed"
    return verb


# --- questions --------------------------------------------------------------------------------------------


def is_terminal(state: State) -> bool:
    """Whether the run is over."""
    return state["run"]["status"] in TERMINAL_STATUS


def open_approvals(state: State) -> list[State]:
    """Approvals that wait for a decision, oldest first."""
    return [item for item in state["items"].values() if item["kind"] == "approval" and item["status"] == "waiting"]


__all__ = [
    "OPEN_ITEM_STATUS", "REDUCER_VERSION", "TERMINAL_STATUS", "Poison", "Quarantine", "SequenceGap", "State",
    "checksum", "fitting_payload", "fold", "initial_state", "is_terminal", "item_of", "item_status", "open_approvals",
    "quarantine_mark", "reduce",
]  # fmt: skip
