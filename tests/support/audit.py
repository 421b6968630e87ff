"""Audits for tests: entries, a stream in memory that behaves like RL_AUDIT, what the sink would write into it."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from itertools import count

from runlane.audit_sink.chain import Chains
from runlane.audit_sink.output import Sealed
from runlane.audit_sink.records import SourceMessage
from runlane.audit_sink.sealer import Sealer
from runlane.audit_sink.signing import Signer, verifier
from runlane.audit_sink.verify import Kept, StreamCheck, kept
from runlane.kernel.errors import Conflict
from runlane_contracts.audit import PROGRESS, AuditEntry, Target
from runlane_contracts.codec import decode_audit_record
from runlane_contracts.envelope import Actor
from runlane_contracts.subjects import Subjects

KEY = Signer(bytes(range(32)))
STREAM, EPOCH = "RL_LOG_0", "abcd2345"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def an_entry(tenant_id: str = "acme", action: str = "run.created", number: int = 1) -> AuditEntry:
    return AuditEntry(
        tenant_id=tenant_id, category="run", time="2026-03-01T00:00:00.000000Z", actor=Actor(kind="user", id="bob"),
        action=action, target=Target(kind="run", id=f"run_{number}"), outcome="recorded",
        source_position=f"{STREAM}/{number}",
    )  # fmt: skip


def a_message(seq: int, *entries: AuditEntry, stream: str = STREAM) -> tuple[SourceMessage, Sequence[AuditEntry]]:
    return SourceMessage(stream, seq, 0, "rl.log.00.acme.run_1", b""), entries


class MemoryAudit:
    """The stream: a write expects the last sequence. `fail`: raised once instead of the next write's answer."""

    def __init__(self) -> None:
        self.messages: list[Kept] = []
        self.fail: Exception | None = None
        self.store_before_failing = False
        self.writes = 0

    async def __call__(self, batch, *, last_seq: int) -> int:
        self.writes += 1
        failure, self.fail = self.fail, None
        if failure is not None and not self.store_before_failing:
            raise failure
        if last_seq != len(self.messages):
            raise Conflict("wrong last sequence", current_seq=len(self.messages))
        for subject, data, headers in batch:
            self.messages.append(kept(len(self.messages) + 1, subject, headers or {}, data))
        if failure is not None:
            raise failure
        return len(self.messages)

    async def last_seq(self) -> int:
        return len(self.messages)

    async def at(self, seq: int) -> Sealed | None:
        return _sealed(self.messages[seq - 1]) if 1 <= seq <= len(self.messages) else None

    async def last_of(self, subject: str) -> Sealed | None:
        prefix = subject.removesuffix("*")
        return next((_sealed(one) for one in reversed(self.messages) if one.subject.startswith(prefix)), None)

    async def between(self, first: int, last: int) -> AsyncIterator[Sealed]:
        for message in self.messages[first - 1 : last]:
            yield _sealed(message)

    def records(self, tenant_id: str | None = None):
        found = [decode_audit_record(one.data) for one in self.messages]
        return [one for one in found if tenant_id in {None, one.tenant_id}]


def _sealed(message: Kept) -> Sealed:
    return Sealed(message.seq, decode_audit_record(message.data), message.progress, NOW.timestamp())


def a_sealer(audit: MemoryAudit, *, checkpoint_records: int = 3, clock=None) -> Sealer:
    ticks = count()
    return Sealer(
        audit, audit, subjects=Subjects(), key=KEY, now=lambda: NOW, clock=clock or (lambda: float(next(ticks))),
        checkpoint_records=checkpoint_records,
    )  # fmt: skip


def check(messages: Sequence[Kept], last_seq: int | None = None) -> Chains:
    """Verify a copy of the stream. Raises ChainFault."""
    chains = Chains({KEY.key_id: verifier(KEY.public_key)})
    checking = StreamCheck(chains)
    for message in messages:
        checking.take(message)
    checking.finish(len(messages) if last_seq is None else last_seq)
    return chains


__all__ = ["EPOCH", "KEY", "NOW", "PROGRESS", "STREAM", "MemoryAudit", "a_message", "a_sealer", "an_entry", "check"]
