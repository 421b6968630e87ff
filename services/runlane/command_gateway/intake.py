"""Commands in: recorded in the ledger, then handed to the supervisor; and what became of them.

The same key with the same content is the same command, however often it is sent: the ledger entry is made by
compare-and-set before anything is published, and publishing again is recognised by its message id. The entry keeps the
command until it has an outcome, so that whoever finds it recorded and not decided can send it (`strays.py`).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from runlane.command_gateway.outcomes import Outcomes
from runlane.hosting.spans import sending
from runlane.hosting.telemetry import current_traceparent, is_tracing
from runlane.kernel.clock import NewId, Now
from runlane.kernel.ledger import Ledger
from runlane.kernel.publisher import PubAck
from runlane_contracts import headers
from runlane_contracts.canonical import sha256_of
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.commands import (
    Command,
    CommandPayload,
    IdempotencyKey,
    LedgerEntry,
    LedgerStatus,
    ReExecuteRun,
    StartRun,
    command_id_of,
)
from runlane_contracts.envelope import Actor
from runlane_contracts.events import MAX_NESTING, nests_too_deep
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress, Subjects
from runlane_contracts.tracing import own_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What somebody wants of a run."""

    run: RunAddress
    payload: CommandPayload
    by: Actor
    idempotency_key: IdempotencyKey
    session_id: str | None = None
    meta: dict[str, Any] | None = None
    traceparent: str | None = None

    @property
    def command_id(self) -> str:
        """Follows from the tenant and the key."""
        return command_id_of(self.run.tenant_id, self.idempotency_key)

    @property
    def fingerprint(self) -> str:
        """Equal for the same intent, whoever sends it and however it is spelt."""
        content = {"type": self.payload.TYPE, "run_id": self.run.run_id, "payload": self.payload}
        return sha256_of(content if self.session_id is None else content | {"session_id": self.session_id})


class Publish(Protocol):
    """Stores a message in its stream; see `WindowedPublisher.publish`."""

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck: ...


class Intake:
    """Accepts commands and knows their outcome."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        publisher: Publish,
        outcomes: Outcomes,
        subjects: Subjects,
        now: Now,
        new_id: NewId,
        sample_ratio: float = 1.0,
        stream: str = "RL_COMMAND",
    ) -> None:
        self._ledger, self._publisher, self._outcomes = ledger, publisher, outcomes
        self._subjects, self._now, self.new_id = subjects, now, new_id
        self.accepted = 0
        self._sample_ratio = sample_ratio
        self._stream = stream

    async def submit(self, intent: Intent, *, wait_s: float) -> LedgerEntry:
        """Accept a command, durably, and wait up to `wait_s` for its outcome.

        Raises:
            Refused: it can never be applied, or the key was used for something else.
            Retryable: not known whether it was accepted; the same request may be sent again.
        """
        if nests_too_deep(msgspec.json.encode(intent.payload)):
            raise Refused(Code.INVALID_REQUEST, f"payload: nests deeper than {MAX_NESTING} levels")
        with self._outcomes.expecting(intent.run.tenant_id, intent.command_id) as outcome:
            entry = await self._accept(intent)
            if entry.status is not LedgerStatus.ACCEPTED or wait_s <= 0:
                return entry
            return await outcome.within(wait_s) or entry

    async def known(self, tenant_id: str, command_id: str) -> LedgerEntry | None:
        """The ledger's entry. Raises Retryable."""
        return await self._ledger.find(tenant_id, command_id)

    async def _accept(self, intent: Intent) -> LedgerEntry:
        asked = _command(self._traced(intent), timestamp(self._now()))
        entry, is_new = await self._ledger.accept(_entry(intent, asked))
        if entry.fingerprint != intent.fingerprint:
            raise Refused(Code.IDEMPOTENCY_CONFLICT, f"the key belongs to {entry.type} of run {entry.run_id}")
        if entry.status is LedgerStatus.ACCEPTED:
            with sending(self._stream, message_id=intent.command_id, run=intent.run):
                # Who repeats a request repeats the first one's, whoever asks.
                first = entry.command or replace(asked, issued_at=entry.accepted_at)
                await self._publish(replace(first, traceparent=self._traced(intent).traceparent) if is_new else first)
            self.accepted += 1
        return entry

    async def send_again(self, entry: LedgerEntry) -> None:
        """Send what was recorded and may never have been sent. Sent twice, it is decided once. Raises Retryable."""
        if entry.status is LedgerStatus.ACCEPTED and entry.command is not None:
            await self._publish(entry.command)

    async def _publish(self, command: Command) -> None:
        sent = {headers.COMMIT_ID: command.command_id}
        if command.traceparent is not None:
            sent[headers.TRACEPARENT] = command.traceparent
        await self._publisher.publish(self._subjects.command(command.tenant_id, command.run_id), encode(command), sent)

    def _traced(self, intent: Intent) -> Intent:
        """In the span that sends it, if there is one, else in the trace of who asked.

        A run that nobody brought a trace for gets its own; whether it is recorded is decided here, once.
        """
        if is_tracing():
            return dataclasses.replace(intent, traceparent=current_traceparent() or intent.traceparent)
        if intent.traceparent is not None or not isinstance(intent.payload, (StartRun, ReExecuteRun)):
            return intent
        context = own_context(*intent.run, ratio=self._sample_ratio)
        return dataclasses.replace(intent, traceparent=context.traceparent)


def _entry(intent: Intent, asked: Command) -> LedgerEntry:
    return LedgerEntry(
        command_id=intent.command_id,
        idempotency_key=intent.idempotency_key,
        type=intent.payload.TYPE,
        tenant_id=intent.run.tenant_id,
        run_id=intent.run.run_id,
        fingerprint=intent.fingerprint,
        status=LedgerStatus.ACCEPTED,
        accepted_at=asked.issued_at,
        command=asked,
    )


def _command(intent: Intent, at: str) -> Command:
    return Command(
        command_id=intent.command_id,
        idempotency_key=intent.idempotency_key,
        type=intent.payload.TYPE,
        tenant_id=intent.run.tenant_id,
        run_id=intent.run.run_id,
        session_id=intent.session_id,
        issued_at=at,
        issued_by=intent.by,
        payload=Raw(msgspec.json.encode(intent.payload)),
        meta=intent.meta,
        traceparent=intent.traceparent,
    )
