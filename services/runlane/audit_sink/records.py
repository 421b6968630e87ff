"""What a message of each source says for the audit. Pure: the same message always gives the same entries.

Names and codes only. Of a payload nothing is taken but ids and decisions; of who acts only what the platform itself
established: a worker's facts are its lease's, whatever actor they claim.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from runlane.audit_sink.chain import SINK
from runlane_contracts import events
from runlane_contracts.audit import PLATFORM, AuditEntry, Category, Target
from runlane_contracts.codec import (
    decode_command,
    decode_commit,
    decode_ledger_entry,
    decode_refusal,
    timestamp_of_ns,
)
from runlane_contracts.commands import Command, LedgerEntry, LedgerStatus
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.ids import is_tenant

LEASE_EPOCH = "lease_epoch_"
"""How the owner of a run begins that is known by its lease alone; `owners.py` puts its worker before that."""

RECORDED, ACCEPTED, UNREADABLE, LOST, REPLACED = "recorded", "accepted", "unreadable", "lost", "replaced"

_SUPERVISOR = Actor(kind="service", id="run_supervisor")
_SAFE = re.compile(r"^[A-Za-z0-9_.@:-]{1,128}$(?![\s\S])")
_SAFE_SUBJECT = re.compile(r"^[A-Za-z0-9_.@:$*>-]{1,128}$(?![\s\S])")
_DECISIONS = frozenset({"approval", "input"})
_ALSO = {"tool.reconciled": "decision", "tool.outcome_unknown": "decision"}


class SourceMessage(Struct, frozen=True):
    """A stored message of a source."""

    stream: str
    seq: int
    time_ns: int
    subject: str
    data: bytes

    @property
    def position(self) -> str:
        """How a record names it."""
        return f"{self.stream}/{self.seq}"

    @property
    def time(self) -> str:
        """When the broker stored it."""
        return timestamp_of_ns(self.time_ns)


Entries = list[AuditEntry]
Read = Callable[[SourceMessage], Entries]


def safe(text: str) -> str:
    """An id as it is, or, where it is none, a hash of it: what anybody may name can hold anything."""
    return text if _SAFE.match(text) else "hash_" + hashlib.sha256(text.encode()).hexdigest()[:24]


def _safe_target(kind: str, id_: str) -> str:
    """An id, or a subject of the broker, which has wildcards."""
    return id_ if kind == "subject" and _SAFE_SUBJECT.match(id_) else safe(id_)


# --- the log ------------------------------------------------------------------------------------------------


def of_commit(message: SourceMessage) -> Entries:
    """Decisions, lease changes and turns of a run's life in one commit."""
    _, tenant_id, run_id = message.subject.rsplit(".", 2)
    try:
        commit = decode_commit(message.data)
    except (msgspec.MsgspecError, RecursionError):
        return [_unreadable(message, tenant_id, Target(kind="run", id=safe(run_id)))]
    return [
        _of_fact(message, tenant_id, run_id, fact, category)
        for fact in commit.facts
        if (category := category_of(fact.type)) is not None
    ]


def category_of(type_: str) -> Category | None:
    """Where a fact belongs; None: it is work, not a decision about it."""
    family = type_.partition(".")[0]
    if type_ in {"run.leased", "run.lease_lost"}:
        return "lease"
    if family in _DECISIONS or type_ in _ALSO:
        return "decision"
    if family == "run":
        return "run"
    return "audit" if family == "log" else None


def _of_fact(message: SourceMessage, tenant_id: str, run_id: str, fact: Fact, category: Category) -> AuditEntry:
    try:
        payload: Any = events.decode_payload(fact.type, fact.payload)
    except (msgspec.MsgspecError, RecursionError):
        payload = None
    return AuditEntry(
        tenant_id=tenant_id,
        category=category,
        time=message.time,
        actor=_actor(fact),
        action=fact.type if events.is_known(fact.type) else safe(fact.type),
        target=_target(fact, payload, run_id),
        outcome=_outcome(payload),
        source_position=message.position,
        causes=(safe(fact.event_id), *map(safe, fact.causation_ids)),
    )


def _actor(fact: Fact) -> Actor:
    if fact.lease_epoch:
        return Actor(kind="agent", id=f"{LEASE_EPOCH}{fact.lease_epoch}")
    return Actor(kind=fact.actor.kind, id=safe(fact.actor.id))


def _target(fact: Fact, payload: Any, run_id: str) -> Target:
    if isinstance(payload, events.RunLeased):
        return Target(kind="lease", id=safe(payload.worker_id), run_id=safe(run_id))
    if isinstance(payload, events.RunLeaseLost):
        return Target(kind="lease", id=f"{LEASE_EPOCH}{payload.lease_epoch}", run_id=safe(run_id))
    item = None if payload is None else events.item_of(fact.type, payload)
    if item is None:
        return Target(kind="run", id=safe(run_id), run_id=safe(run_id))
    return Target(kind=item[0], id=safe(item[1]), run_id=safe(run_id))


def _outcome(payload: Any) -> str:
    match payload:
        case None:
            return UNREADABLE
        case events.ApprovalResolved():
            return payload.decision
        case events.ToolReconciled():
            return payload.outcome
        case events.RunLeased():
            return f"{LEASE_EPOCH}{payload.lease_epoch}"
        case events.RunLeaseLost():
            return safe(payload.cause)
        case events.LogCompacted():
            return payload.reason
        case _:
            return RECORDED


# --- commands and what became of them -----------------------------------------------------------------------


def of_command(message: SourceMessage) -> Entries:
    """A command was accepted, from whom."""
    _, tenant_id, run_id = message.subject.rsplit(".", 2)
    try:
        command = decode_command(message.data)
    except (msgspec.MsgspecError, RecursionError):
        return [_unreadable(message, tenant_id, Target(kind="run", id=safe(run_id)))]
    actor = Actor(kind=command.issued_by.kind, id=safe(command.issued_by.id))
    return [_about(message, tenant_id, command, run_id, actor, ACCEPTED)]


def of_ledger(message: SourceMessage) -> Entries:
    """What became of a command. That it was accepted is said by the command itself."""
    tenant_id, _, command_id = message.subject.split(".", 2)[2].partition(".")
    if not message.data:
        return []  # it grew old
    try:
        entry = decode_ledger_entry(message.data)
    except (msgspec.MsgspecError, RecursionError):
        return [_unreadable(message, tenant_id, Target(kind="command", id=safe(command_id)))]
    if entry.status is LedgerStatus.ACCEPTED:
        return []
    code = "" if entry.rejection is None else "." + safe(entry.rejection.code)
    return [_about(message, tenant_id, entry, entry.run_id, _SUPERVISOR, entry.status.value + code)]


def _about(
    message: SourceMessage, tenant_id: str, command: Command | LedgerEntry, run_id: str, actor: Actor, outcome: str
) -> AuditEntry:
    return AuditEntry(
        tenant_id=tenant_id,
        category="command",
        time=message.time,
        actor=actor,
        action=safe(command.type),
        target=Target(kind="command", id=safe(command.command_id), run_id=safe(run_id)),
        outcome=outcome,
        source_position=message.position,
    )


# --- refusals -----------------------------------------------------------------------------------------------


def of_refusal(message: SourceMessage) -> Entries:
    """Somebody was not let in."""
    _, tenant_id, service = message.subject.rsplit(".", 2)
    if not is_tenant(tenant_id):
        tenant_id = PLATFORM
    try:
        found = decode_refusal(message.data)
    except (msgspec.MsgspecError, RecursionError):
        return [_unreadable(message, tenant_id, Target(kind="service", id=safe(service)))]
    run_id = None if found.target.run_id is None else safe(found.target.run_id)
    return [
        AuditEntry(
            tenant_id=tenant_id,
            category="access",
            time=found.time,
            actor=Actor(kind=found.actor.kind, id=safe(found.actor.id)),
            action=found.action[:128],
            target=Target(
                kind=safe(found.target.kind), id=_safe_target(found.target.kind, found.target.id), run_id=run_id
            ),
            outcome=safe(found.outcome),
            source_position=message.position,
            causes=(safe(service),),
            count=found.count,
        )
    ]


# --- what the sink itself has to say ------------------------------------------------------------------------


def _unreadable(message: SourceMessage, tenant_id: str, target: Target) -> AuditEntry:
    return AuditEntry(
        tenant_id=tenant_id if is_tenant(tenant_id) else PLATFORM,
        category="audit",
        time=message.time,
        actor=SINK,
        action="audit.read",
        target=target,
        outcome=UNREADABLE,
        source_position=message.position,
    )


def of_loss(stream: str, first: int, last: int, at: str) -> AuditEntry:
    """Messages of a source are gone that no record is about."""
    return AuditEntry(
        tenant_id=PLATFORM,
        category="audit",
        time=at,
        actor=SINK,
        action="audit.read",
        target=Target(kind="stream", id=f"{stream}:{first}-{last}"),
        outcome=LOST,
        source_position=f"{stream}/{last}",
        count=last - first + 1,
    )


def of_replacement(stream: str, epoch: str, at: str) -> AuditEntry:
    """A source was made anew; what comes from it now is of another incarnation."""
    return AuditEntry(
        tenant_id=PLATFORM,
        category="audit",
        time=at,
        actor=SINK,
        action="audit.read",
        target=Target(kind="stream", id=f"{stream}:{epoch}"),
        outcome=REPLACED,
        source_position=f"{stream}/0",
    )
