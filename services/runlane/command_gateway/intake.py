"""Commands in: recorded in the ledger, then handed to the supervisor; and what became of them.

The same key with the same content is the same command, however often it is sent: the ledger entry is made by
compare-and-set before anything is published, and publishing again is recognised by its message id. The ledger holds
no content, so what was recorded and never sent can only be ended (`strays.py`).
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from msgspec import Raw

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
    GIVE_UP,
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

_GATEWAY = Actor(kind="service", id="command_gateway")


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
        at = timestamp(self._now())
        entry, _ = await self._ledger.accept(_entry(intent, at))
        if entry.fingerprint != intent.fingerprint:
            raise Refused(Code.IDEMPOTENCY_CONFLICT, f"the key belongs to {entry.type} of run {entry.run_id}")
        if entry.status is LedgerStatus.ACCEPTED:
            with sending(self._stream, message_id=intent.command_id, run=intent.run):
                await self._publish(_command(self._traced(intent), entry.accepted_at))
            self.accepted += 1
        return entry

    async def give_up(self, entry: LedgerEntry) -> None:
        """End a command that was recorded and seems to have never been sent. Raises Retryable.

        What is sent has the command's message id: if the command is in the stream, this is not stored, or comes after
        it. So the supervisor, which takes what is of one run in the stream's order, tells which it was.
        """
        await self._publish(
            Command(
                command_id=entry.command_id,
                idempotency_key=entry.idempotency_key,
                type=GIVE_UP,
                tenant_id=entry.tenant_id,
                run_id=entry.run_id,
                issued_at=entry.accepted_at,
                issued_by=_GATEWAY,
                payload=Raw(b"{}"),
            )
        )

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
            return replace(intent, traceparent=current_traceparent() or intent.traceparent)
        if intent.traceparent is not None or not isinstance(intent.payload, (StartRun, ReExecuteRun)):
            return intent
        context = own_context(*intent.run, ratio=self._sample_ratio)
        return replace(intent, traceparent=context.traceparent)


def _entry(intent: Intent, at: str) -> LedgerEntry:
    return LedgerEntry(
        command_id=intent.command_id,
        idempotency_key=intent.idempotency_key,
        type=intent.payload.TYPE,
        tenant_id=intent.run.tenant_id,
        run_id=intent.run.run_id,
        fingerprint=intent.fingerprint,
        status=LedgerStatus.ACCEPTED,
        accepted_at=at,
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
