"""The rules of one run: what may be written to it, and what follows from what was written.

`RunLifecycle` is the fold that every writer keeps (`evolve`), `admit` turns what a producer states into the
facts that are written, or refuses. Both are pure; only the log's compare-and-set makes their answer true.

Status: ``created → running ⇄ waiting ⇄ paused → cancelling → completed | failed | cancelled``, and ``lost``
while no worker holds the lease of a run that had one. Nothing leaves a terminal status.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field

from runlane_contracts import events
from runlane_contracts.classification import Classification
from runlane_contracts.commands import Rejection
from runlane_contracts.envelope import Actor, Fact, ItemRef
from runlane_contracts.ids import CommandId, EventId, ItemId, SessionId, Timestamp, is_moment, is_traceparent
from runlane_contracts.problems import Code
from runlane_contracts.tracing import own_context, run_context

TERMINAL_STATUS = frozenset({"completed", "failed", "cancelled"})
STATUSES = ("created", "running", "waiting", "paused", "cancelling", "lost", "completed", "failed", "cancelled")

MAX_FACTS_PER_COMMIT = 1000
MAX_INLINE_BYTES = 64 * 1024
"""Content larger than this belongs behind a `content_ref`; the whole commit is bounded by the broker."""


class FactDraft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact as its producer states it, before it has a place in the run."""

    type: str
    payload: Raw = Raw(b"{}")
    event_id: EventId | None = None
    occurred_at: Timestamp | None = None
    actor: Actor | None = None
    classification: Classification = Classification.INTERNAL
    schema_version: int = 1
    agent_id: str | None = None
    task_id: ItemId | None = None
    turn_id: ItemId | None = None
    parent_id: ItemId | None = None
    correlation_id: str | None = None
    causation_ids: tuple[EventId | CommandId, ...] = ()
    traceparent: str | None = None
    session_id: SessionId | None = None
    """Counts on `run.created` only: the session of a run never changes."""


def draft(payload: events.Payload, **envelope: Any) -> FactDraft:
    """A draft of a typed payload."""
    return FactDraft(type=payload.TYPE, payload=Raw(msgspec.json.encode(payload)), **envelope)


class Refused(Exception):
    """The rules do not allow it. `code` is a stable problem code; nothing was written."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        index: int | None = None,
        current_sequence: int | None = None,
        recorded: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.index = index
        self.current_sequence = current_sequence
        self.recorded = recorded

    def as_rejection(self) -> Rejection:
        """What the command ledger keeps."""
        return Rejection(code=self.code.value, detail=self.detail, recorded=self.recorded)


class Tool(Struct, kw_only=True):
    """A tool call, as far as decisions need it."""

    request: events.ToolRequested
    status: str = "requested"  # requested, running, completed, failed, cancelled, outcome_unknown
    retryable: bool = False
    retried_by: str | None = None
    reconciled: events.ToolReconciled | None = None


class Approval(Struct, kw_only=True):
    """An approval, as far as decisions need it."""

    request: events.ApprovalRequested
    resolution: events.ApprovalResolved | None = None
    votes: tuple[events.ApprovalVoted, ...] = ()
    """On the version that is asked now."""


class Input(Struct, kw_only=True):
    """An input, as far as decisions need it."""

    request: events.InputRequested
    answer: events.InputProvided | None = None
    cancelled: events.InputCancelled | None = None


class RunLifecycle(Struct, kw_only=True):
    """What a writer knows of a run. Changed by `evolve` only."""

    tenant_id: str
    run_id: str
    session_id: str | None = None
    sequence: int = 0
    status: str = ""  # empty: the run does not exist
    status_before_lost: str = ""
    created: events.RunCreated | None = None
    lease_epoch: int = 0
    owner: str | None = None  # worker id while a lease is held
    attempt: int = 0
    losses: int = 0
    """How many owners were lost without giving the run back."""
    cancel_deadline_at: str | None = None
    cancel_reason: str | None = None
    pause_requested: bool = False
    open_items: dict[tuple[str, str], int] = field(default_factory=dict)  # (kind, id) → last sequence
    revisions: dict[tuple[str, str], int] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    approvals: dict[str, Approval] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    event_ids: dict[str, int] = field(default_factory=dict)
    applied_commands: dict[str, int] = field(default_factory=dict)  # command id → sequence after it
    traceparent: str | None = None
    """The span of the run itself: of every fact whose producer names no other."""

    @property
    def exists(self) -> bool:
        """Whether `run.created` was written."""
        return bool(self.status)

    @property
    def is_terminal(self) -> bool:
        """Whether the run is over."""
        return self.status in TERMINAL_STATUS

    def fork(self) -> "RunLifecycle":
        """An independent copy, to try facts on."""
        return msgspec.structs.replace(
            self,
            open_items=dict(self.open_items),
            revisions=dict(self.revisions),
            tools={k: msgspec.structs.replace(v) for k, v in self.tools.items()},
            approvals={k: msgspec.structs.replace(v) for k, v in self.approvals.items()},
            inputs={k: msgspec.structs.replace(v) for k, v in self.inputs.items()},
            event_ids=dict(self.event_ids),
            applied_commands=dict(self.applied_commands),
        )

    def evolve(self, facts: Iterable[Fact]) -> None:
        """Apply facts that are in the log, in order."""
        for fact in facts:
            self._evolve_one(fact)

    def _evolve_one(self, fact: Fact) -> None:
        if fact.sequence <= self.sequence:
            return
        self.sequence = fact.sequence
        self.event_ids[fact.event_id] = fact.sequence
        if fact.lease_epoch == 0:  # a producer's word does not settle a command
            for cause in fact.causation_ids:
                if cause.startswith("cmd_"):
                    self.applied_commands[cause] = fact.sequence
        if fact.type not in _RELEVANT:
            return
        if fact.type == "run.created":
            self.session_id = fact.session_id
            self.traceparent = run_context(fact.traceparent, self.tenant_id, self.run_id).traceparent
        try:
            payload = events.decode_payload(fact.type, fact.payload)
        except msgspec.MsgspecError:
            return  # the redaction filter quarantines it; it moves nothing here either
        handler = _EVOLVE.get(fact.type)
        if handler is not None:
            handler(self, payload)
        self._track_item(fact, payload)

    def _track_item(self, fact: Fact, payload: Any) -> None:
        item = events.item_of(fact.type, payload)
        if item is None or item[0] == "turn":
            return
        self.revisions[item] = self.revisions.get(item, 0) + 1
        if fact.type in OPENING:
            self.open_items[item] = fact.sequence
        else:
            self.open_items.pop(item, None)


OPENING = frozenset({
    "message.started", "reasoning.started", "tool.requested", "tool.running", "tool.outcome_unknown",
    "approval.requested", "approval.voted", "input.requested", "task.created", "task.updated", "artifact.created",
    "artifact.updated",
})  # fmt: skip
"""Facts after which their item is open; any other fact about an item closes it."""


# --- evolve -----------------------------------------------------------------------------------------------


def _created(run: RunLifecycle, payload: events.RunCreated) -> None:
    run.status, run.created = "created", payload


def _leased(run: RunLifecycle, payload: events.RunLeased) -> None:
    run.lease_epoch, run.owner, run.attempt = payload.lease_epoch, payload.worker_id, payload.attempt
    if run.status == "lost":
        run.status = run.status_before_lost


def _lease_lost(run: RunLifecycle, payload: events.RunLeaseLost) -> None:
    if payload.lease_epoch != run.lease_epoch or run.owner is None:
        return
    run.owner = None
    run.losses += payload.cause != "released"
    if not run.is_terminal:
        run.status_before_lost, run.status = run.status, "lost"


def _to(status: str) -> Any:
    def move(run: RunLifecycle, _payload: Any) -> None:
        if run.is_terminal:
            return
        run.pause_requested = False
        if run.status == "lost":  # nobody drives it; it goes on like this once somebody does
            run.status_before_lost = status
        else:
            run.status = status

    return move


def _ended(status: str) -> Any:
    def move(run: RunLifecycle, _payload: Any) -> None:
        if not run.is_terminal:
            run.status, run.owner = status, None

    return move


def _pause_requested(run: RunLifecycle, _payload: Any) -> None:
    run.pause_requested = True


def _cancel_requested(run: RunLifecycle, payload: events.RunCancelRequested) -> None:
    if run.is_terminal:
        return
    run.status, run.cancel_deadline_at, run.cancel_reason = "cancelling", payload.deadline_at, payload.reason


def _tool_requested(run: RunLifecycle, payload: events.ToolRequested) -> None:
    run.tools[payload.tool_call_id] = Tool(request=payload)
    if payload.retry_of in run.tools:
        run.tools[payload.retry_of].retried_by = payload.tool_call_id


def _tool_status(status: str) -> Any:
    def move(run: RunLifecycle, payload: Any) -> None:
        tool = run.tools.get(payload.tool_call_id)
        if tool is not None:
            tool.status = status
            tool.retryable = isinstance(payload, events.ToolFailed) and payload.error.retryable

    return move


def _tool_reconciled(run: RunLifecycle, payload: events.ToolReconciled) -> None:
    tool = run.tools.get(payload.tool_call_id)
    if tool is None:
        return
    tool.reconciled = payload
    tool.retryable = payload.outcome == "not_executed"
    tool.status = "failed" if tool.retryable else "completed"


def _approval_requested(run: RunLifecycle, payload: events.ApprovalRequested) -> None:
    run.approvals[payload.approval_id] = Approval(request=payload)


def _approval_voted(run: RunLifecycle, payload: events.ApprovalVoted) -> None:
    approval = run.approvals.get(payload.approval_id)
    if approval is not None and approval.resolution is None and payload.version == approval.request.version:
        approval.votes = (*approval.votes, payload)


def _approval_resolved(run: RunLifecycle, payload: events.ApprovalResolved) -> None:
    approval = run.approvals.get(payload.approval_id)
    if approval is not None and approval.resolution is None:
        approval.resolution = payload


def _input_requested(run: RunLifecycle, payload: events.InputRequested) -> None:
    run.inputs[payload.input_id] = Input(request=payload)


def _input_provided(run: RunLifecycle, payload: events.InputProvided) -> None:
    asked = run.inputs.get(payload.input_id)
    if asked is not None and asked.answer is None:
        asked.answer = payload


def _compacted(run: RunLifecycle, payload: events.LogCompacted) -> None:
    """The base of a run whose beginning is in the archive: it is over, and how. Nothing else is known of it here."""
    if not run.exists and payload.status in TERMINAL_STATUS:
        run.status = payload.status
    if payload.erased:  # what is erased is not kept in the memory of writers either
        for known in (run.tools, run.approvals, run.inputs):
            known.clear()
        run.created = None


def _input_cancelled(run: RunLifecycle, payload: events.InputCancelled) -> None:
    asked = run.inputs.get(payload.input_id)
    if asked is not None and asked.answer is None and asked.cancelled is None:
        asked.cancelled = payload


_EVOLVE: dict[str, Any] = {
    "run.created": _created,
    "run.leased": _leased,
    "run.lease_lost": _lease_lost,
    "run.started": _to("running"),
    "run.waiting": _to("waiting"),
    "run.resumed": _to("running"),
    "run.paused": _to("paused"),
    "run.pause_requested": _pause_requested,
    "run.cancel_requested": _cancel_requested,
    "run.completed": _ended("completed"),
    "run.failed": _ended("failed"),
    "run.cancelled": _ended("cancelled"),
    "tool.requested": _tool_requested,
    "tool.running": _tool_status("running"),
    "tool.completed": _tool_status("completed"),
    "tool.failed": _tool_status("failed"),
    "tool.cancelled": _tool_status("cancelled"),
    "tool.outcome_unknown": _tool_status("outcome_unknown"),
    "tool.reconciled": _tool_reconciled,
    "approval.requested": _approval_requested,
    "approval.voted": _approval_voted,
    "approval.resolved": _approval_resolved,
    "input.requested": _input_requested,
    "input.provided": _input_provided,
    "input.cancelled": _input_cancelled,
    "log.compacted": _compacted,
}

_RELEVANT = frozenset(_EVOLVE) | {
    name for name, cls in events.PAYLOADS.items() if cls.ITEM is not None and cls.ITEM[0] != "turn"
}


# --- admit ------------------------------------------------------------------------------------------------


def admit(
    run: RunLifecycle,
    drafts: Sequence[FactDraft],
    *,
    lease_epoch: int,
    expected_sequence: int | None = None,
) -> list[FactDraft]:
    """What a lease holder may write: the drafts, with the closing of open items before a terminal fact.

    The end of a question precedes the fact that changes the action it was about.

    An empty list: every event id is in the run already, this is a repeat.

    Raises:
        Refused: with the index of the draft at fault, where there is one.
    """
    if not run.exists:
        raise Refused(Code.RUN_NOT_FOUND, "no such run")
    if _is_repeat(run, drafts):
        return []
    if run.is_terminal:
        raise Refused(Code.RUN_TERMINAL, f"the run is {run.status}")
    if run.owner is None or lease_epoch != run.lease_epoch:
        raise Refused(Code.LEASE_FENCED, f"lease epoch {lease_epoch} does not hold the lease")
    if expected_sequence is not None and expected_sequence != run.sequence:
        raise Refused(
            Code.SEQUENCE_CONFLICT,
            f"the run is at {run.sequence}, not at {expected_sequence}",
            current_sequence=run.sequence,
        )
    _refuse_asked_again(run, drafts)
    return _with_closers(run, _with_voided(run, drafts))


def _refuse_asked_again(run: RunLifecycle, drafts: Sequence[FactDraft]) -> None:
    """A question is asked once: what was decided stays decided; what waits may only be revised, version by version."""
    versions = {id_: one.request.version for id_, one in run.approvals.items()}
    for index, one in enumerate(drafts):
        if one.type == "input.requested":
            _refuse_input_again(run, one, index)
        if one.type != "approval.requested":
            continue
        asked = events.decode_payload(one.type, one.payload)
        if not isinstance(asked, events.ApprovalRequested):
            continue
        known = run.approvals.get(asked.approval_id)
        if known is not None and known.resolution is not None:
            detail = f"approval {asked.approval_id} was {known.resolution.decision}; ask under a new id"
            raise Refused(Code.ALREADY_RESOLVED, detail, index=index)
        if asked.version <= versions.get(asked.approval_id, asked.version - 1):
            detail = f"approval {asked.approval_id} is asked already, at version {versions[asked.approval_id]}"
            raise Refused(Code.VERSION_CONFLICT, detail, index=index)
        versions[asked.approval_id] = asked.version


def _with_voided(run: RunLifecycle, drafts: Sequence[FactDraft]) -> Sequence[FactDraft]:
    """An answer holds for one action: the question about another one is taken back before what changes the action.

    Raises:
        Refused: the action is asked for already, or it was rejected and nothing says why it is asked for again.
    """
    if not any(one.type in _CHANGING for one in drafts):
        return drafts
    asked = {id_: one.request for id_, one in run.approvals.items() if one.resolution is None}
    tools = {id_: one.request for id_, one in run.tools.items()}
    written: list[FactDraft] = []
    for index, one in enumerate(drafts):
        payload = events.decode_payload(one.type, one.payload) if one.type in _CHANGING else None
        because = ACTION_CHANGED
        if isinstance(payload, events.ToolRequested):
            changed = _other_action(tools.get(payload.tool_call_id), payload)
            void = _about_before(payload, asked) if changed else []
            tools[payload.tool_call_id] = payload
        elif isinstance(payload, events.ApprovalRequested):
            _refuse_same_action(run, payload, asked, index)
            void = _outdated_by(payload, asked)
        elif payload is not None:
            void, because = _about_call(payload.tool_call_id, asked.values()), CALL_IS_PAST[one.type]  # type: ignore[union-attr]
        else:
            void = []
        for old in void:
            is_revised = isinstance(payload, events.ApprovalRequested) and payload.approval_id == old.approval_id
            written.append(_voided(old, REVISED if is_revised else because))
            del asked[old.approval_id]
        written.append(one)
        if isinstance(payload, events.ApprovalRequested):
            asked[payload.approval_id] = payload
    return written


ACTION_CHANGED = "the action was changed after the question"
REVISED = "the question was revised"
CALL_IS_PAST = {
    "tool.completed": "the call was completed after the question",
    "tool.failed": "the call failed after the question",
    "tool.cancelled": "the call was cancelled after the question",
    "tool.outcome_unknown": "the outcome of the call became unknown after the question",
    "tool.reconciled": "it was found out after the question what the call did",
}
"""Facts after which an answer about their call can change nothing, and what the void question then says."""

_CHANGING = frozenset(CALL_IS_PAST) | {"tool.requested", "approval.requested"}


def voided(run: RunLifecycle, tool_call_id: str, because: str) -> list[FactDraft]:
    """What takes back the open questions about a call, before the fact of type `because` that puts it in the past."""
    waiting = (one.request for one in run.approvals.values() if one.resolution is None)
    return [_voided(old, CALL_IS_PAST[because]) for old in _about_call(tool_call_id, waiting)]


def _about_call(tool_call_id: str, asked: Iterable[events.ApprovalRequested]) -> list[events.ApprovalRequested]:
    return [old for old in asked if old.tool_call_id == tool_call_id]


def _other_action(before: events.ToolRequested | None, now: events.ToolRequested) -> bool:
    if before is None:
        return False
    return (before.name, before.arguments, before.action_digest) != (now.name, now.arguments, now.action_digest)


def _about_before(
    now: events.ToolRequested, asked: dict[str, events.ApprovalRequested]
) -> list[events.ApprovalRequested]:
    """Questions about the call, other than as it is now."""
    about = (old for old in asked.values() if old.tool_call_id == now.tool_call_id)
    return [old for old in about if old.action_digest != now.action_digest or not old.action_digest]


def _outdated_by(
    asked_now: events.ApprovalRequested, asked: dict[str, events.ApprovalRequested]
) -> list[events.ApprovalRequested]:
    """The same question in the version before, and questions under another id about the call as it was before."""
    return [
        old
        for old in asked.values()
        if old.approval_id == asked_now.approval_id
        or (
            old.tool_call_id == asked_now.tool_call_id
            and asked_now.tool_call_id is not None
            and old.action_digest != asked_now.action_digest
        )
    ]


def _refuse_same_action(
    run: RunLifecycle, ask: events.ApprovalRequested, asked: dict[str, events.ApprovalRequested], index: int
) -> None:
    if not ask.action_digest:  # it names no action
        return
    for id_, other in asked.items():
        if id_ != ask.approval_id and other.action_digest == ask.action_digest:
            detail = f"approval {id_} asks for the same action, and is open"
            raise Refused(Code.INVALID_STATE, detail, index=index, recorded={"approval_id": id_})
    if ask.reason_again:
        return
    for id_, known in run.approvals.items():
        was = known.resolution
        if was is not None and was.decision == "rejected" and known.request.action_digest == ask.action_digest:
            detail = f"approval {id_} of this action was rejected: `reason_again` has to say why it is asked for again"
            raise Refused(Code.INVALID_REQUEST, detail, index=index, recorded={"approval_id": id_})


def _voided(asked: events.ApprovalRequested, reason: str) -> FactDraft:
    revoked = events.ApprovalResolved(
        approval_id=asked.approval_id,
        decision="revoked",
        decided_by="system",
        version=asked.version,
        reason=reason,
        action_digest=asked.action_digest,
    )
    return _by_platform(revoked)


def _refuse_input_again(run: RunLifecycle, one: FactDraft, index: int) -> None:
    asked = events.decode_payload(one.type, one.payload)
    known = run.inputs.get(asked.input_id) if isinstance(asked, events.InputRequested) else None
    if known is not None and (known.answer is not None or known.cancelled is not None):
        detail = f"input {known.request.input_id} was answered or cancelled; ask under a new id"
        raise Refused(Code.ALREADY_RESOLVED, detail, index=index)


def validate(drafts: Sequence[FactDraft]) -> None:
    """Refuse drafts that can never be written: unknown, reserved, misshapen, too many, after the end.

    Raises:
        Refused: `invalid_request` with the index at fault.
    """
    if not 1 <= len(drafts) <= MAX_FACTS_PER_COMMIT:
        raise Refused(Code.INVALID_REQUEST, f"1 to {MAX_FACTS_PER_COMMIT} events, not {len(drafts)}")
    seen: set[str] = set()
    for index, one in enumerate(drafts):
        _validate_one(index, one)
        if one.event_id is not None:
            if one.event_id in seen:
                raise Refused(Code.INVALID_REQUEST, f"event id {one.event_id} twice", index=index)
            seen.add(one.event_id)
        if one.type in events.TERMINAL_RUN and index != len(drafts) - 1:
            raise Refused(Code.INVALID_REQUEST, f"nothing follows {one.type}", index=index + 1)


def _validate_one(index: int, one: FactDraft) -> None:
    if not events.is_known(one.type):
        raise Refused(Code.INVALID_REQUEST, f"unknown type {one.type[:80]!r}", index=index)
    if one.type in events.RESERVED:
        raise Refused(Code.INVALID_REQUEST, f"{one.type} is stated by the platform only", index=index)
    try:
        payload = events.decode_payload(one.type, one.payload)
        # Fields nobody knows are carried on, to readers that have to be able to read them.
        msgspec.json.decode(one.payload)
    except msgspec.MsgspecError as exc:
        raise Refused(Code.INVALID_REQUEST, f"{one.type}: {exc}", index=index) from exc
    if one.traceparent is not None and not is_traceparent(one.traceparent):
        raise Refused(Code.INVALID_REQUEST, "traceparent is not in the form of the W3C", index=index)
    for name, moment in (("occurred_at", one.occurred_at), ("expires_at", getattr(payload, "expires_at", None))):
        if moment is not None and not is_moment(moment):
            raise Refused(Code.INVALID_REQUEST, f"{one.type}: {name} is no moment: {moment}", index=index)
    if isinstance(payload, events.ApprovalRequested) and payload.version < 1:
        raise Refused(Code.INVALID_REQUEST, f"{one.type}: version is 1 or more, not {payload.version}", index=index)
    if one.type.startswith("artifact.") and len(one.payload) > MAX_INLINE_BYTES:
        detail = f"{one.type}: over {MAX_INLINE_BYTES} bytes inline; state it by content_ref"
        raise Refused(Code.PAYLOAD_TOO_LARGE, detail, index=index)


def _is_repeat(run: RunLifecycle, drafts: Sequence[FactDraft]) -> bool:
    known = [one.event_id in run.event_ids for one in drafts if one.event_id is not None]
    if not any(known):
        return False
    if all(known) and len(known) == len(drafts):
        return True
    raise Refused(Code.IDEMPOTENCY_CONFLICT, "some of these event ids are in the run already, others are not")


def _with_closers(run: RunLifecycle, drafts: Sequence[FactDraft]) -> list[FactDraft]:
    last = drafts[-1]
    if last.type not in events.TERMINAL_RUN:
        return list(drafts)
    still_open = dict(run.open_items)
    for one in drafts[:-1]:
        item = events.item_of(one.type, events.decode_payload(one.type, one.payload))  # type: ignore[arg-type]
        if item is None or item[0] == "turn":
            continue
        if one.type in OPENING:
            still_open[item] = 0
        else:
            still_open.pop(item, None)
    return [*drafts[:-1], *(closer(run, kind, id_, last.type) for kind, id_ in still_open), last]


def lose_lease(run: RunLifecycle, cause: Literal["expired", "released", "fenced"]) -> list[FactDraft]:
    """What is written when the owner is gone: the loss, and that nobody knows what its unsafe calls did.

    The end of a question about such a call precedes that.
    """
    written = [_by_platform(events.RunLeaseLost(lease_epoch=run.lease_epoch, cause=cause))]
    for id_, tool in run.tools.items():
        if tool.status == "running" and tool.request.side_effect == "unsafe":
            unknown = events.ToolOutcomeUnknown(tool_call_id=id_, operation_id=tool.request.operation_id or id_)
            written += [*voided(run, id_, unknown.TYPE), _by_platform(unknown)]
    return written


def _by_platform(payload: events.Payload) -> FactDraft:
    return draft(payload, actor=Actor(kind="system", id="runlane"))


def closers(run: RunLifecycle, because: str) -> list[FactDraft]:
    """What ends every open item of a run that is about to end with a fact of type `because`."""
    return [closer(run, kind, id_, because) for kind, id_ in run.open_items]


def closer(run: RunLifecycle, kind: str, id_: str, because: str) -> FactDraft:
    """The fact that ends one open item when its run ends."""
    return _by_platform(_closing_payload(run, kind, id_, because))


def _closing_payload(run: RunLifecycle, kind: str, id_: str, because: str) -> events.Payload:
    match kind:
        case "message":
            return events.MessageCancelled(message_id=id_, reason=because)
        case "reasoning":
            return events.ReasoningCancelled(reasoning_id=id_, reason=because)
        case "tool":
            return _closing_tool(run, id_, because)
        case "approval":
            asked = run.approvals.get(id_)
            version = asked.request.version if asked else 1
            return events.ApprovalResolved(
                approval_id=id_, decision="revoked", decided_by="system", version=version, reason=because
            )
        case "input":
            return events.InputCancelled(input_id=id_, reason=because)
        case "task":
            return events.TaskCancelled(task_id=id_, reason=because)
        case _:
            return events.ArtifactFailed(artifact_id=id_, error=events.Problem(code="run_ended", message=because))


def _closing_tool(run: RunLifecycle, id_: str, because: str) -> events.Payload:
    tool = run.tools.get(id_)
    unsafe = tool is not None and tool.status == "running" and tool.request.side_effect == "unsafe"
    if unsafe or (tool is not None and tool.status == "outcome_unknown"):
        # "cancelled" would claim that it did not happen.
        return events.ToolFailed(tool_call_id=id_, error=events.Problem(code="outcome_unknown", message=because))
    return events.ToolCancelled(tool_call_id=id_, reason=because)


def place(
    run: RunLifecycle,
    drafts: Sequence[FactDraft],
    *,
    lease_epoch: int,
    actor: Actor,
    occurred_at: str,
    event_ids: Sequence[str],
) -> tuple[Fact, ...]:
    """Give admitted drafts their place in the run: sequence, scope, item revision, ids where none were given."""
    facts: list[Fact] = []
    revisions: dict[tuple[str, str], int] = {}
    traceparent = run.traceparent or own_context(run.tenant_id, run.run_id).traceparent
    for offset, (one, event_id) in enumerate(zip(drafts, event_ids, strict=True)):
        facts.append(
            Fact(
                event_id=one.event_id or event_id,
                type=one.type,
                schema_version=one.schema_version,
                tenant_id=run.tenant_id,
                session_id=one.session_id if one.type == "run.created" else run.session_id,
                run_id=run.run_id,
                sequence=run.sequence + 1 + offset,
                lease_epoch=lease_epoch,
                actor=one.actor or actor,
                subject=_item_ref(run, one, revisions),
                agent_id=one.agent_id,
                task_id=one.task_id,
                turn_id=one.turn_id,
                parent_id=one.parent_id,
                correlation_id=one.correlation_id or run.run_id,
                causation_ids=one.causation_ids,
                occurred_at=one.occurred_at or occurred_at,
                classification=one.classification,
                traceparent=one.traceparent or traceparent,
                payload=one.payload,
            )
        )
    return tuple(facts)


def _item_ref(run: RunLifecycle, one: FactDraft, revisions: dict[tuple[str, str], int]) -> ItemRef | None:
    payload = events.decode_payload(one.type, one.payload)
    item = None if isinstance(payload, events.UnknownPayload) else events.item_of(one.type, payload)
    if item is None:
        return None
    revision = revisions.get(item, run.revisions.get(item, 0)) + 1
    revisions[item] = revision
    return ItemRef(kind=item[0], id=item[1], revision=revision)
