"""What the audit keeps: who did what to what, with which outcome. No content, no secret, no free text.

Each tenant has a chain of its own: `sequence` is 1, 2, 3 …, and every record holds the hash of the one before. From
time to time a record signs the chain so far. Refusals, and changes of API keys, reach the sink over the intake: no log
holds them.
"""

from typing import Literal

from msgspec import Struct

from runlane_contracts.envelope import Actor
from runlane_contracts.ids import Timestamp

PLATFORM = "_platform"
"""Whose chain holds what belongs to no tenant. No tenant can have this id."""

Category = Literal["command", "decision", "run", "lease", "access", "audit", "checkpoint"]

PROGRESS = "Rl-Audit-Progress"
"""Header of every record: how far each source is sealed once this record is stored."""


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What it was done to."""

    kind: str
    id: str
    run_id: str | None = None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A signature (Ed25519, hex) over the head of the chain: everything up to `sequence`."""

    sequence: int
    hash: str
    key_id: str
    signature: str


class AuditEntry(Struct, frozen=True, kw_only=True):
    """What is to be recorded, before it has a place in its tenant's chain."""

    tenant_id: str
    category: Category
    time: Timestamp
    actor: Actor
    action: str
    target: Target
    outcome: str
    source_position: str
    """``<stream>/<sequence>`` of the message that says so."""
    causes: tuple[str, ...] = ()
    """Commands and events that led to it."""
    count: int = 1
    """How often, where several are recorded as one."""


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One sealed record. `hash` is of the canonical JSON of all other fields."""

    sequence: int
    tenant_id: str
    category: Category
    time: Timestamp
    actor: Actor
    action: str
    target: Target
    outcome: str
    source_position: str
    progress_digest: str
    """Of the header `Rl-Audit-Progress`, so that it cannot be changed unseen either."""
    prev_hash: str
    hash: str
    causes: tuple[str, ...] = ()
    count: int = 1
    checkpoint: Checkpoint | None = None


class Refusal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody was not let in, or who may be let in was changed: one message of the intake.

    `count` over 1: so many were refused the same, and are recorded as one.
    """

    tenant_id: str
    time: Timestamp
    service: str
    actor: Actor
    action: str
    target: Target
    outcome: str
    count: int = 1
