"""The chain: how a record is sealed, and how a chain that was changed is told from one that was not. Pure.

Stored bytes are the canonical JSON of a record, so any other spelling is a change. `hash` is the SHA-256 of the
canonical JSON of everything but itself; `prev_hash` is that of the record before. A checkpoint signs a head.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from runlane_contracts.audit import AuditEntry, AuditRecord, Checkpoint
from runlane_contracts.canonical import canonical_json, sha256_of
from runlane_contracts.codec import decode_audit_record
from runlane_contracts.envelope import Actor

SINK = Actor(kind="service", id="audit_sink")

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]
"""Whether a signature is of these bytes."""


class Head(NamedTuple):
    """The last record of a chain."""

    sequence: int
    hash: str


BEGINNING = Head(0, "sha256:" + "0" * 64)


def seal(entry: AuditEntry, head: Head, progress: str, checkpoint: Checkpoint | None = None) -> AuditRecord:
    """The record that follows `head`."""
    record = AuditRecord(
        sequence=head.sequence + 1,
        tenant_id=entry.tenant_id,
        category=entry.category,
        time=entry.time,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        outcome=entry.outcome,
        source_position=entry.source_position,
        progress_digest=digest_of(progress),
        prev_hash=head.hash,
        hash="",
        causes=entry.causes,
        count=entry.count,
        checkpoint=checkpoint,
    )
    return msgspec.structs.replace(record, hash=hash_of(record))


def hash_of(record: AuditRecord) -> str:
    """What its `hash` has to be."""
    fields = msgspec.to_builtins(record)
    del fields["hash"]
    return sha256_of(fields)


def encoded(record: AuditRecord) -> bytes:
    """As it is stored."""
    return canonical_json(record)


def digest_of(progress: str) -> str:
    """Of the progress header, as the record has it."""
    return hashlib.sha256(progress.encode()).hexdigest()[:16]


def statement(tenant_id: str, head: Head) -> bytes:
    """What a checkpoint signs."""
    return b"runlane audit checkpoint\n" + canonical_json(
        {"tenant_id": tenant_id, "sequence": head.sequence, "hash": head.hash}
    )


def export_statement(manifest_sha256: str) -> bytes:
    """What the seal of an export signs."""
    return b"runlane audit export\n" + manifest_sha256.encode()


def checkpoint_of(tenant_id: str, head: Head, key_id: str, sign: Sign) -> Checkpoint:
    """A signature over everything up to `head`."""
    signature = sign(statement(tenant_id, head)).hex()
    return Checkpoint(sequence=head.sequence, hash=head.hash, key_id=key_id, signature=signature)


# --- looking for what was changed ---------------------------------------------------------------------------


class Fault(NamedTuple):
    """The first bad record: whose chain, which place in it, where it lies, and what is wrong."""

    tenant_id: str
    sequence: int
    where: str
    reason: str

    def __str__(self) -> str:
        """One line for people."""
        return f"tenant {self.tenant_id}, record {self.sequence} ({self.where}): {self.reason}"


class ChainFault(Exception):
    """The audit is not what was written."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Chains:
    """Follows the chains of all tenants, record by record, in the order they lie.

    `keys` by key id. A checkpoint of a key that is not among them is a fault.
    """

    def __init__(self, keys: Mapping[str, Verify]) -> None:
        self._keys = dict(keys)
        self.heads: dict[str, Head] = {}
        self.covered: dict[str, int] = {}
        """By tenant: up to which record a signature vouches for the chain."""
        self.records = 0

    def take(self, tenant_id: str, data: bytes, where: str, *, progress: str | None = None) -> AuditRecord:
        """The next record, of the tenant its place names.

        Raises:
            ChainFault: it is not what was written.
        """
        head = self.heads.get(tenant_id, BEGINNING)

        def fault(reason: str) -> ChainFault:
            return ChainFault(Fault(tenant_id, head.sequence + 1, where, reason))

        try:
            record = decode_audit_record(data)
            spelt = encoded(record)
        except (msgspec.MsgspecError, RecursionError, ValueError) as exc:
            raise fault("it is no record") from exc
        reason = self._what_is_wrong(record, head, tenant_id)
        if reason is None and spelt != data:
            reason = "it is not spelt as it was written"
        if reason is None and progress is not None and digest_of(progress) != record.progress_digest:
            reason = "its progress header was changed"
        if reason is not None:
            raise fault(reason)
        self.heads[tenant_id] = Head(record.sequence, record.hash)
        if record.checkpoint is not None:
            self.covered[tenant_id] = record.checkpoint.sequence
        self.records += 1
        return record

    def _what_is_wrong(self, record: AuditRecord, head: Head, tenant_id: str) -> str | None:
        if record.hash != hash_of(record):
            return "its hash does not fit its content"
        if record.tenant_id != tenant_id:
            return f"it belongs to tenant {record.tenant_id}"
        if record.sequence > head.sequence + 1:
            return f"it is missing: record {record.sequence} comes next"
        if record.sequence <= head.sequence:
            return f"record {record.sequence} comes again"
        if record.prev_hash != head.hash:
            return "the chain is broken: it does not follow from the record before"
        return self._what_is_wrong_with_checkpoint(record, head)

    def _what_is_wrong_with_checkpoint(self, record: AuditRecord, head: Head) -> str | None:
        found = record.checkpoint
        if found is None:
            return "it is a checkpoint without a signature" if record.category == "checkpoint" else None
        if Head(found.sequence, found.hash) != head:
            return "its signature is about another head"
        verify = self._keys.get(found.key_id)
        if verify is None:
            return f"it is signed with key {found.key_id}, which is not known"
        try:
            signature = bytes.fromhex(found.signature)
        except ValueError:
            return "its signature is no signature"
        return None if verify(statement(record.tenant_id, head), signature) else "its signature is wrong"
