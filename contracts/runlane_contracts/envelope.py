"""Who, what, where in the run, why, and how secret: the envelope around every fact.

The payload stays raw bytes here: services that move facts never decode what they do not read. `events`
decodes it on demand. Optional fields that are not set are left out of the JSON.
"""

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from runlane_contracts.classification import Classification
from runlane_contracts.defaults import always
from runlane_contracts.ids import CommandId, EventId, ItemId, RunId, SessionId, TenantId, Timestamp


class Actor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who did it."""

    kind: Literal["agent", "user", "service", "system"]
    id: str


class ItemRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The item a fact is about. `revision` rises with each fact about the item."""

    kind: str
    id: str
    revision: int = always(1)


class Redaction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a view left out. `path` is an RFC 6901 pointer into the payload."""

    path: str
    rule: str
    action: Literal["masked", "removed", "vaulted"]
    content_ref: str | None = None
    sha256: str | None = None
    """Of the payload that was there, where an erasure removed it."""


ERASURE_RULE = "erasure"


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One authoritative event. `sequence` is 1, 2, 3 … within the run, no gap, no repeat."""

    event_id: EventId
    type: str
    schema_version: int
    tenant_id: TenantId
    run_id: RunId
    sequence: int
    lease_epoch: int  # 0: written by a service that holds no lease
    actor: Actor
    occurred_at: Timestamp
    classification: Classification
    payload: Raw
    session_id: SessionId | None = None
    subject: ItemRef | None = None
    agent_id: str | None = None
    task_id: ItemId | None = None
    turn_id: ItemId | None = None
    parent_id: ItemId | None = None
    correlation_id: str | None = None
    causation_ids: tuple[EventId | CommandId, ...] = ()
    recorded_at: Timestamp | None = None  # when the broker stored it; filled on the way to the view
    traceparent: str | None = None
    redactions: tuple[Redaction, ...] = ()


def is_erased(fact: Fact) -> bool:
    """Whether an erasure took the fact's payload: the fact stands for its place and its proof only."""
    return any(one.rule == ERASURE_RULE and one.path == "" and one.action == "removed" for one in fact.redactions)


class Commit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One log message: 1…N facts of one run, visible all at once."""

    commit_id: str
    tenant_id: TenantId
    run_id: RunId
    first_sequence: int
    facts: tuple[Fact, ...]

    @property
    def last_sequence(self) -> int:
        """The `sequence` of the last fact."""
        return self.first_sequence + len(self.facts) - 1


class RawCommit(Struct, frozen=True, kw_only=True):
    """A commit whose facts stay bytes, for those who only pass them on."""

    commit_id: str
    tenant_id: str
    run_id: str
    first_sequence: int
    facts: tuple[Raw, ...]

    @property
    def last_sequence(self) -> int:
        """The `sequence` of the last fact."""
        return self.first_sequence + len(self.facts) - 1


class FactHead(Struct, frozen=True, kw_only=True):
    """The few fields of a fact that routing needs."""

    type: str
    sequence: int
    event_id: str


EMPTY_PAYLOAD = msgspec.Raw(b"{}")
