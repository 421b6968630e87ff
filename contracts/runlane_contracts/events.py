"""What can happen: every type of fact, in the past tense, with the shape of its payload.

`PAYLOADS` is the closed list. A type that is not in it decodes to `UnknownPayload`, a value; whether a client
may carry on after one is `must_understand`. Field marks:

- `Content`: text or data of the agent's work. Views show it, signals leave it out.
- `Secret`: never shown in a view, whatever it holds.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct

from runlane_contracts.defaults import always
from runlane_contracts.ids import (
    AgentName,
    EventId,
    ItemId,
    PoolName,
    RunId,
    Timestamp,
    WorkerId,
)


class Mark(StrEnum):
    """What a payload field holds, beyond its type."""

    CONTENT = "content"
    SECRET = "secret"  # noqa: S105 - the name of a mark


_CONTENT = Meta(extra={"mark": Mark.CONTENT})
_SECRET = Meta(extra={"mark": Mark.SECRET})

Content = Annotated[Any, _CONTENT]
ContentText = Annotated[str, _CONTENT]
SecretValue = Annotated[Any, _SECRET]
Json = dict[str, Any]


class Payload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all payloads. `TYPE` is the wire name; `ITEM` the kind and id field of its item, if any."""

    TYPE: ClassVar[str] = ""
    ITEM: ClassVar[tuple[str, str] | None] = None
    VERSION: ClassVar[int] = 1


class UnknownPayload(Struct, frozen=True, kw_only=True):
    """A type this code does not know: data, not an error."""

    type: str
    raw: Raw


# --- parts ------------------------------------------------------------------------------------------------


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why something failed. `code` is stable, `message` is for people."""

    code: str
    message: ContentText = always("")
    retryable: bool = always(False)


class ContentRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where large content lies. `size` in bytes."""

    uri: str
    sha256: str
    size: int
    media_type: str = always("application/octet-stream")


class WaitingFor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a waiting run waits for."""

    kind: Literal["approval", "input"]
    id: ItemId


RETENTION_CLASS_PATTERN = r"^[a-z0-9-]{1,32}$(?![\s\S])"


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds of one run."""

    cancel_grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    retention: Annotated[str, Meta(pattern=RETENTION_CLASS_PATTERN)] | None = None
    """The class that says how long the finished run stays in the log. None: its tenant's."""


MAX_QUORUM = 20
MAX_NOT_BY = 100

MAX_MODEL_NAME = 256
ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_NAME)]
"""A model as its provider calls it; a provider by its name in OpenTelemetry (`openai`, `aws.bedrock`), else its own."""

SideEffect = Literal["none", "idempotent", "unsafe"]
Decision = Literal["approved", "rejected", "modified", "expired", "revoked"]


# --- session, run, turn, plan -----------------------------------------------------------------------------


class SessionStarted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "session.started"
    title: ContentText | None = None


class RunCreated(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.created"
    agent: AgentName
    input: Content = always(None)
    pool: PoolName = always("default")
    dispatch: Literal["pool", "external"] = always("pool")
    deadline_at: Timestamp | None = None
    limits: Limits | None = None
    parent_run_id: RunId | None = None


class RunLeased(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.leased"
    lease_epoch: int
    worker_id: WorkerId
    attempt: int = always(1)


class RunStarted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.started"


class RunWaiting(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.waiting"
    on: tuple[WaitingFor, ...] = always(())


class RunResumed(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.resumed"


class RunPauseRequested(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.pause_requested"


class RunPaused(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.paused"


class RunCancelRequested(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.cancel_requested"
    deadline_at: Timestamp
    reason: ContentText | None = None


class RunLeaseLost(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.lease_lost"
    lease_epoch: int
    cause: Literal["expired", "released", "fenced"] = always("expired")


class RunCompleted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.completed"
    output: Content = None
    usage: Json | None = None


class RunFailed(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.failed"
    error: Problem


class RunCancelled(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.cancelled"
    reason: ContentText | None = None


class TurnStarted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "turn.started"
    ITEM: ClassVar[tuple[str, str] | None] = ("turn", "turn_id")
    turn_id: ItemId


class TurnCompleted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "turn.completed"
    ITEM: ClassVar[tuple[str, str] | None] = ("turn", "turn_id")
    turn_id: ItemId
    usage: Json | None = None


class PlanUpdated(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "plan.updated"
    version: int
    steps: Content


# --- message, reasoning -----------------------------------------------------------------------------------


class MessageStarted(Payload, frozen=True, kw_only=True):
    """`model` is the one that was asked; in `message.completed` the one that answered, where that is known."""

    TYPE: ClassVar[str] = "message.started"
    ITEM: ClassVar[tuple[str, str] | None] = ("message", "message_id")
    message_id: ItemId
    role: str
    model: ModelName | None = None
    provider: ModelName | None = None


class MessageCompleted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "message.completed"
    ITEM: ClassVar[tuple[str, str] | None] = ("message", "message_id")
    message_id: ItemId
    role: str
    content: Content
    preview_id: ItemId | None = None
    model: ModelName | None = None
    provider: ModelName | None = None


class MessageFailed(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "message.failed"
    ITEM: ClassVar[tuple[str, str] | None] = ("message", "message_id")
    message_id: ItemId
    error: Problem


class MessageCancelled(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "message.cancelled"
    ITEM: ClassVar[tuple[str, str] | None] = ("message", "message_id")
    message_id: ItemId
    reason: ContentText | None = None


class ReasoningStarted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "reasoning.started"
    ITEM: ClassVar[tuple[str, str] | None] = ("reasoning", "reasoning_id")
    reasoning_id: ItemId
    redacted: bool | None = None


class ReasoningCompleted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "reasoning.completed"
    ITEM: ClassVar[tuple[str, str] | None] = ("reasoning", "reasoning_id")
    reasoning_id: ItemId
    content: Content = None
    summary: Content = None
    preview_id: ItemId | None = None


class ReasoningFailed(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "reasoning.failed"
    ITEM: ClassVar[tuple[str, str] | None] = ("reasoning", "reasoning_id")
    reasoning_id: ItemId
    error: Problem


class ReasoningCancelled(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "reasoning.cancelled"
    ITEM: ClassVar[tuple[str, str] | None] = ("reasoning", "reasoning_id")
    reasoning_id: ItemId
    reason: ContentText | None = None


# --- tool -------------------------------------------------------------------------------------------------


class ToolRequested(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.requested"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId
    name: str
    arguments: Content
    attempt: int = always(1)
    retry_of: ItemId | None = None
    action_digest: str = always("")
    side_effect: SideEffect = always("none")
    operation_id: str | None = None


class ToolRunning(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.running"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId


class ToolCompleted(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.completed"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId
    result: Content = None
    content_ref: ContentRef | None = None
    preview_id: ItemId | None = None


class ToolFailed(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.failed"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId
    error: Problem


class ToolCancelled(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.cancelled"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId
    reason: ContentText | None = None


class ToolOutcomeUnknown(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.outcome_unknown"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId
    operation_id: str


class ToolReconciled(Payload, frozen=True, kw_only=True):
    """`result`: what the call gave, if that was found out too; only of one that was executed."""

    TYPE: ClassVar[str] = "tool.reconciled"
    ITEM: ClassVar[tuple[str, str] | None] = ("tool", "tool_call_id")
    tool_call_id: ItemId
    outcome: Literal["executed", "not_executed"]
    by: str
    note: ContentText | None = None
    result: Content = None


# --- approval, input --------------------------------------------------------------------------------------


class ApprovalRequested(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "approval.requested"
    ITEM: ClassVar[tuple[str, str] | None] = ("approval", "approval_id")
    approval_id: ItemId
    description: ContentText
    risk: str
    version: int
    action_digest: str
    tool_call_id: ItemId | None = None
    data: Content = None
    editable: bool = always(False)
    expires_at: Timestamp | None = None
    quorum: Annotated[int, Meta(ge=1, le=MAX_QUORUM)] = 1
    """How many different people have to approve the same action."""
    not_by: Annotated[tuple[str, ...], Meta(max_length=MAX_NOT_BY)] = ()
    """Who may not decide: whoever wished for the action, say."""
    reason_again: ContentText | None = None
    """Why an action that was rejected before in this run is asked for again."""


class ApprovalVoted(Payload, frozen=True, kw_only=True):
    """One of several approvals that are needed; the question is still open."""

    TYPE: ClassVar[str] = "approval.voted"
    ITEM: ClassVar[tuple[str, str] | None] = ("approval", "approval_id")
    approval_id: ItemId
    decision: Literal["approved", "modified"]
    by: str
    version: int
    action_digest: str
    data: Content = None
    reason: ContentText | None = None


class ApprovalResolved(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "approval.resolved"
    ITEM: ClassVar[tuple[str, str] | None] = ("approval", "approval_id")
    approval_id: ItemId
    decision: Decision
    decided_by: str
    version: int
    data: Content = None
    reason: ContentText | None = None
    action_digest: str | None = None
    approved_by: tuple[str, ...] = ()
    """Everybody whose approval it took, where it took several."""


class InputRequested(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "input.requested"
    ITEM: ClassVar[tuple[str, str] | None] = ("input", "input_id")
    input_id: ItemId
    prompt: ContentText
    schema: Json | None = None
    expires_at: Timestamp | None = None


class InputProvided(Payload, frozen=True, kw_only=True):
    """`secret_value` takes the place of `value` when the asked-for schema says `writeOnly` or `format: password`."""

    TYPE: ClassVar[str] = "input.provided"
    ITEM: ClassVar[tuple[str, str] | None] = ("input", "input_id")
    input_id: ItemId
    by: str
    value: Content = None
    secret_value: SecretValue = None


class InputCancelled(Payload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "input.cancelled"
    ITEM: ClassVar[tuple[str, str] | None] = ("input", "input_id")
    input_id: ItemId
    reason: ContentText | None = None


# --- task, artifact ---------------------------------------------------------------------------------------


class _Task(Payload, frozen=True, kw_only=True):
    ITEM: ClassVar[tuple[str, str] | None] = ("task", "task_id")
    task_id: ItemId
    title: ContentText | None = None
    description: ContentText | None = None
    status: str | None = None
    detail: Content = None


class TaskCreated(_Task, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "task.created"


class TaskUpdated(_Task, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "task.updated"


class TaskCompleted(_Task, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "task.completed"
    result: Content = None


class TaskFailed(_Task, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "task.failed"
    error: Problem


class TaskCancelled(_Task, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "task.cancelled"
    reason: ContentText | None = None


class _Artifact(Payload, frozen=True, kw_only=True):
    ITEM: ClassVar[tuple[str, str] | None] = ("artifact", "artifact_id")
    artifact_id: ItemId
    name: ContentText | None = None
    media_type: str | None = None
    content: Content = None
    content_ref: ContentRef | None = None


class ArtifactCreated(_Artifact, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "artifact.created"


class ArtifactUpdated(_Artifact, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "artifact.updated"


class ArtifactCompleted(_Artifact, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "artifact.completed"


class ArtifactFailed(_Artifact, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "artifact.failed"
    error: Problem


# --- log --------------------------------------------------------------------------------------------------


class LogQuarantined(Payload, frozen=True, kw_only=True):
    """Stands where a fact failed validation, under that fact's `sequence`."""

    TYPE: ClassVar[str] = "log.quarantined"
    reason: str
    event_id: EventId | None = None


ERASED_ALL = "*"
"""In `log.compacted.erased`: the content of the whole run."""


class LogCompacted(Payload, frozen=True, kw_only=True):
    """What was before it is in the archive, no longer in the log: the only hole a reader may pass.

    `sha256` is that of the archive's manifest, `snapshot_ref` where the state at `to_sequence` is read. `status` is
    how the run ended. `erased` names the items (``kind:id``) whose content is gone for good, or ``*`` for all.
    """

    TYPE: ClassVar[str] = "log.compacted"
    from_sequence: int
    to_sequence: int
    snapshot_ref: str
    sha256: str
    policy: str
    reason: Literal["retention", "erasure"]
    status: str | None = None
    erased: tuple[str, ...] = ()


PAYLOADS: dict[str, type[Payload]] = {
    cls.TYPE: cls
    for cls in (
        SessionStarted,
        RunCreated, RunLeased, RunStarted, RunWaiting, RunResumed, RunPauseRequested, RunPaused,
        RunCancelRequested, RunLeaseLost, RunCompleted, RunFailed, RunCancelled,
        TurnStarted, TurnCompleted,
        PlanUpdated,
        MessageStarted, MessageCompleted, MessageFailed, MessageCancelled,
        ReasoningStarted, ReasoningCompleted, ReasoningFailed, ReasoningCancelled,
        ToolRequested, ToolRunning, ToolCompleted, ToolFailed, ToolCancelled, ToolOutcomeUnknown,
        ToolReconciled,
        ApprovalRequested, ApprovalVoted, ApprovalResolved,
        InputRequested, InputProvided, InputCancelled,
        TaskCreated, TaskUpdated, TaskCompleted, TaskFailed, TaskCancelled,
        ArtifactCreated, ArtifactUpdated, ArtifactCompleted, ArtifactFailed,
        LogQuarantined, LogCompacted,
    )
}  # fmt: skip

TERMINAL_RUN = frozenset({"run.completed", "run.failed", "run.cancelled"})
"""After one of these a run takes no fact but `log.*`."""

RESERVED = frozenset({"run.created", "run.leased", "run.lease_lost", "run.cancel_requested",
                      "run.pause_requested", "approval.voted", "approval.resolved", "input.provided",
                      "log.quarantined", "log.compacted"})  # fmt: skip
"""Facts that only the platform's services state; a producer that sends one is refused."""

_MUST_UNDERSTAND = frozenset({"run", "approval", "input", "log"})


def must_understand(type_: str) -> bool:
    """Whether a client that does not know `type_` has to stop instead of showing a generic item."""
    return type_.split(".", 1)[0] in _MUST_UNDERSTAND


def is_known(type_: str) -> bool:
    """Whether this version of the contract has `type_`."""
    return type_ in PAYLOADS


MAX_NESTING = 128
"""How deep a payload may nest. Every language and every stack can hold, copy and hash that."""

_DECODERS = {name: msgspec.json.Decoder(cls) for name, cls in PAYLOADS.items()}
_decode_any = msgspec.json.Decoder().decode


def decode_payload(type_: str, raw: bytes | Raw) -> Payload | UnknownPayload:
    """Decode one payload; an unknown type becomes a value.

    Raises:
        msgspec.ValidationError: the type is known and the payload does not fit it, or nests too deep.
        msgspec.DecodeError: not JSON.
    """
    data = bytes(raw)
    if nests_too_deep(data):
        raise msgspec.ValidationError(f"nests deeper than {MAX_NESTING} levels")
    decoder = _DECODERS.get(type_)
    if decoder is None:
        return UnknownPayload(type=type_, raw=Raw(data))
    return decoder.decode(data)


def nests_too_deep(data: bytes) -> bool:
    """Whether a JSON text nests deeper than `MAX_NESTING`.

    Raises:
        msgspec.DecodeError: not JSON, if it had to be looked at closely.
    """
    if len(data) <= MAX_NESTING or data.count(b"[") + data.count(b"{") <= MAX_NESTING:
        return False
    try:
        level: list[Any] = [_decode_any(data)]
    except RecursionError:
        return True
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _inside(outer)]
    return any(isinstance(value, (dict, list)) for value in level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def item_of(type_: str, payload: Payload) -> tuple[str, str] | None:
    """The kind and id of the item that `payload` is about, or None."""
    cls = PAYLOADS.get(type_)
    if cls is None or cls.ITEM is None:
        return None
    kind, field = cls.ITEM
    return kind, getattr(payload, field)


def marked_fields(cls: type[Struct], mark: Mark) -> tuple[str, ...]:
    """The fields of a payload that carry `mark`."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(name for name in cls.__struct_fields__ if mark in _marks(hints[name]))


def _marks(hint: Any) -> set[Mark]:
    found: set[Mark] = set()
    if get_origin(hint) is Annotated:
        for meta in hint.__metadata__:
            if isinstance(meta, Meta) and meta.extra and "mark" in meta.extra:
                found.add(meta.extra["mark"])
    for part in get_args(hint):
        found |= _marks(part)
    return found
