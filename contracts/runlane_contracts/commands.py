"""Intents: what someone asks of a run. Each is decided once; the ledger remembers the answer."""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from runlane_contracts.envelope import Actor
from runlane_contracts.events import Limits
from runlane_contracts.ids import (
    AgentName,
    CommandId,
    ItemId,
    PoolName,
    RunId,
    SessionId,
    TenantId,
    Timestamp,
)

IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=200)]


class CommandPayload(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all command payloads."""

    TYPE: ClassVar[str] = ""


class StartRun(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.start"
    agent: AgentName
    input: Any = None
    pool: PoolName = "default"
    dispatch: Literal["pool", "external"] = "pool"
    deadline_at: Timestamp | None = None
    limits: Limits | None = None
    parent_run_id: RunId | None = None


class ReExecuteRun(CommandPayload, frozen=True, kw_only=True):
    """A new run from an old one that is over. What is not said here is as it was there, but for the deadline."""

    TYPE: ClassVar[str] = "run.re_execute"
    parent_run_id: RunId
    from_: Literal["input", "checkpoint"] = msgspec.field(default="input", name="from")
    allow_unsafe: bool = False
    """Also when the old run executed tools with the side effect `unsafe`."""
    session_id: SessionId | None = None
    pool: PoolName | None = None
    dispatch: Literal["pool", "external"] | None = None
    deadline_at: Timestamp | None = None
    limits: Limits | None = None


class CancelRun(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.cancel"
    reason: str | None = None


class PauseRun(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.pause"


class ResumeRun(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "run.resume"


class ResolveApproval(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "approval.resolve"
    approval_id: ItemId
    decision: Literal["approved", "rejected", "modified"]
    data: Any = None
    expected_version: int | None = None
    action_digest: str | None = None
    reason: str | None = None


class RevokeApproval(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "approval.revoke"
    approval_id: ItemId
    reason: str


class RetryTool(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.retry"
    tool_call_id: ItemId


class ReconcileTool(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "tool.reconcile"
    tool_call_id: ItemId
    outcome: Literal["executed", "not_executed"]
    note: str
    result: Any = None


class ProvideInput(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "input.provide"
    input_id: ItemId
    value: Any


class SendMessage(CommandPayload, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "message.send"
    content: Any


COMMANDS: dict[str, type[CommandPayload]] = {
    cls.TYPE: cls
    for cls in (StartRun, CancelRun, PauseRun, ResumeRun, ResolveApproval, RevokeApproval, RetryTool,
                ReconcileTool, ProvideInput, SendMessage, ReExecuteRun)
}  # fmt: skip

GIVE_UP = "command.give_up"
"""The type of what a gateway sends in the place of a command that was never sent, as far as it can tell: under its id,
and without a payload. Nobody can ask for it over HTTP."""

STARTING = frozenset({StartRun.TYPE, ReExecuteRun.TYPE})
"""Commands that begin the run they are about."""


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command as it lies in the COMMAND stream."""

    command_id: CommandId
    idempotency_key: IdempotencyKey
    type: str
    tenant_id: TenantId
    run_id: RunId
    issued_at: Timestamp
    issued_by: Actor
    payload: Raw
    session_id: SessionId | None = None
    meta: dict[str, Any] | None = None
    traceparent: str | None = None


class LedgerStatus(StrEnum):
    """``accepted → applied | rejected | expired``."""

    ACCEPTED = "accepted"
    APPLIED = "applied"
    REJECTED = "rejected"
    EXPIRED = "expired"


class Rejection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a command was refused: a code of `problems`, and what was recorded instead, where there is some."""

    code: str
    detail: str
    recorded: dict[str, Any] | None = None


class LedgerEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a command. `applied_sequence` is the run's sequence after it was applied."""

    command_id: CommandId
    idempotency_key: IdempotencyKey
    type: str
    tenant_id: TenantId
    run_id: RunId
    fingerprint: str
    status: LedgerStatus
    accepted_at: Timestamp
    settled_at: Timestamp | None = None
    applied_sequence: int | None = None
    log_stream_seq: int | None = None
    rejection: Rejection | None = None


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def derived_id(prefix: str, *parts: str) -> str:
    """``<prefix>_`` and 26 characters that follow from `parts`: who repeats a request names the same thing."""
    number = int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:16], "big")
    return prefix + "_" + "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))


def command_id_of(tenant_id: TenantId, idempotency_key: IdempotencyKey) -> CommandId:
    """The id of the command that a tenant gave this key: looking it up by key needs no index."""
    return derived_id("cmd", tenant_id, idempotency_key)


_DECODERS = {name: msgspec.json.Decoder(cls) for name, cls in COMMANDS.items()}


def decode_command_payload(type_: str, raw: bytes | Raw) -> CommandPayload:
    """Decode one command's payload.

    Raises:
        KeyError: no such command.
        msgspec.ValidationError: the payload does not fit the type.
    """
    return _DECODERS[type_].decode(raw)
