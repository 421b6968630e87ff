"""Commands: decide, write, tell.

In this order, so that a crash between any two steps repeats work and loses nothing: the facts (recognised by the
command's id when they are decided again), the work for a worker, the ledger's outcome, the wake-up for who waits.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta

import msgspec
from msgspec.structs import replace

from runlane.hosting.spans import processing
from runlane.hosting.telemetry import current_traceparent
from runlane.kernel.clock import Now
from runlane.kernel.delivery import Delivery
from runlane.kernel.errors import Gap, Permanent, Retryable
from runlane.kernel.faults import trace_of
from runlane.kernel.ledger import Ledger
from runlane.kernel.run_log import RunLog, RunLogs
from runlane.kernel.verdict import DONE, DeadLetter, Verdict
from runlane.run_supervisor import machine
from runlane.run_supervisor.dispatch import Dispatcher
from runlane.run_supervisor.meters import Meters
from runlane.run_supervisor.re_execution import Parent
from runlane.run_supervisor.recovery import HandOut, recover
from runlane_contracts import headers
from runlane_contracts.codec import decode_command, encode, parse_timestamp, timestamp
from runlane_contracts.commands import (
    GIVE_UP,
    STARTING,
    CancelRun,
    Command,
    LedgerEntry,
    LedgerStatus,
    ReExecuteRun,
    Rejection,
)
from runlane_contracts.ids import is_id
from runlane_contracts.lifecycle import Refused, RunLifecycle
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress, Subjects
from runlane_contracts.telemetry import Attribute

log = logging.getLogger(__name__)

GROUP = "run-supervisor-v1"
"""Who processes commands, in traces; over several durables they are one group."""

Wake = Callable[[str, bytes], Awaitable[None]]
"""Publishes to a core subject; may be lost."""


class CommandHandler:
    """Settles one command after the other; those of one run never at the same time."""

    def __init__(
        self,
        *,
        run_logs: RunLogs,
        ledger: Ledger,
        dispatcher: Dispatcher,
        wake: Wake,
        subjects: Subjects,
        meters: Meters,
        expiry_s: float,
        now: Now,
    ) -> None:
        self._run_logs, self._ledger, self._dispatcher = run_logs, ledger, dispatcher
        self._wake, self._subjects, self._meters, self._now = wake, subjects, meters, now
        self._expiry = timedelta(seconds=expiry_s)

    async def handle(self, delivery: Delivery) -> Verdict:
        """One delivery of the COMMAND stream. Raises Retryable: it comes again."""
        try:
            command = decode_command(delivery.data)
        except msgspec.MsgspecError as exc:
            return DeadLetter(f"not a command: {exc}")
        run = RunAddress(command.tenant_id, command.run_id)
        if self._subjects.run_of(delivery.subject) != run:
            return DeadLetter("a command of another run than its subject names")
        with processing(
            delivery.stream,
            command.traceparent,
            durable=GROUP,
            message_id=command.command_id,
            run=run,
            more={Attribute.COMMAND_TYPE: command.type[:64]},
        ):
            # What follows from the command hangs under its processing, where that is recorded.
            settled = await self.settle(replace(command, traceparent=current_traceparent() or command.traceparent))
        await self._wake(self._subjects.outcome(command.tenant_id, command.command_id), encode(settled))
        return DONE

    async def buried(self, delivery: Delivery) -> None:
        """The delivery is given up, by a fault of ours: its command must not wait for ever. Raises Retryable."""
        tenant_id, _ = self._subjects.run_of(delivery.subject)
        command_id = delivery.headers.get(headers.COMMIT_ID, "")
        known = await self._ledger.find(tenant_id, command_id) if is_id(command_id) else None
        if known is None or known.status is not LedgerStatus.ACCEPTED:
            return
        settled = await self._ledger.settle(await self._given_up(known))
        self._meters.commands[settled.status.value] += 1
        await self._wake(self._subjects.outcome(tenant_id, command_id), encode(settled))

    async def _given_up(self, known: LedgerEntry) -> LedgerEntry:
        settled_at, detail = timestamp(self._now()), "a fault of the service; it has no effect"
        try:
            run = await self._run_logs.of(RunAddress(known.tenant_id, known.run_id)).load()
            applied = run.applied_commands.get(known.command_id)
        except Retryable:
            raise
        except Exception as exc:  # noqa: BLE001  very likely the fault that it was given up for
            log.error("command %s was given up, and its run cannot be read: %s", known.command_id, trace_of(exc))  # noqa: TRY400
            applied, detail = None, "a fault of the service; look at the run for whether it had an effect"
        if applied is not None:  # what it did is in the log; what was to follow is not done
            return msgspec.structs.replace(
                known, status=LedgerStatus.APPLIED, settled_at=settled_at, applied_sequence=applied
            )
        rejection = Rejection(code=Code.INTERNAL.value, detail=detail)
        return msgspec.structs.replace(known, status=LedgerStatus.REJECTED, settled_at=settled_at, rejection=rejection)

    async def settle(self, command: Command) -> LedgerEntry:
        """The command's outcome; durable, with everything it leads to, when this returns. Raises Retryable."""
        known = await self._ledger.find(command.tenant_id, command.command_id)
        if known is not None and known.status is not LedgerStatus.ACCEPTED:
            return known
        if command.type == GIVE_UP:
            return await self._give_up(command, known)
        settled = await self._ledger.settle(await self._outcome(command))
        self._meters.settled(command.type, settled.status.value, self._waited_s(command))
        return settled

    async def _give_up(self, command: Command, known: LedgerEntry | None) -> LedgerEntry:
        """Commands of a run come in the order of the stream: had it been sent before this, it would have an outcome."""
        if known is None:  # it aged out, and nobody waits for it
            return self._entry(command, LedgerStatus.EXPIRED, rejection=_NEVER_SENT)
        run = await self._run_logs.of(RunAddress(command.tenant_id, command.run_id)).load()
        if command.command_id in run.applied_commands:
            return known  # it was sent, and is being done: who does it says so when all that follows from it is done
        outcome = replace(known, status=LedgerStatus.EXPIRED, settled_at=timestamp(self._now()), rejection=_NEVER_SENT)
        settled = await self._ledger.settle(outcome)
        self._meters.settled(settled.type, settled.status.value, self._waited_s(command))
        return settled

    def _waited_s(self, command: Command) -> float:
        try:
            return max(0.0, (self._now() - parse_timestamp(command.issued_at)).total_seconds())
        except ValueError:
            return 0.0

    async def _outcome(self, command: Command) -> LedgerEntry:
        run_log = self._run_logs.of(RunAddress(command.tenant_id, command.run_id))
        try:
            if self._is_too_old(command) and command.command_id not in (await run_log.load()).applied_commands:
                return self._entry(command, LedgerStatus.EXPIRED, rejection=_EXPIRED)
            return await self._applied(command, run_log)
        except Refused as exc:
            return self._entry(command, LedgerStatus.REJECTED, rejection=exc.as_rejection())
        except msgspec.ValidationError as exc:
            # It asks for a fact that the contract does not allow: trying again would only hold up its run.
            detail = f"it would not be a fact: {exc}"
            rejection = Rejection(code=Code.INVALID_REQUEST.value, detail=detail)
            return self._entry(command, LedgerStatus.REJECTED, rejection=rejection)
        except Permanent as exc:
            # Nobody can ever apply it, and whoever waits must not wait for ever.
            log.error("command %s cannot be applied: %s", command.command_id, exc)  # noqa: TRY400  the text says it all
            detail = "the run's log cannot be written"
            return self._entry(
                command, LedgerStatus.REJECTED, rejection=Rejection(code=Code.INTERNAL.value, detail=detail)
            )

    async def _applied(self, command: Command, run_log: RunLog) -> LedgerEntry:
        parent = await self._parent_of(command)
        written = await run_log.transact(
            lambda run: machine.decide(run, command, now=self._now(), parent=parent),
            lease_epoch=0,
            actor=command.issued_by,
        )
        run = run_log.lifecycle
        if command.type in STARTING and run.attempt == 0:
            order = recover(run)
            if isinstance(order, HandOut):
                await self._dispatcher.hand_out(run, order)
        return self._entry(
            command,
            LedgerStatus.APPLIED,
            applied_sequence=run.applied_commands.get(command.command_id, written.lifecycle_sequence),
            log_stream_seq=written.position.stream_seq,
        )

    async def _parent_of(self, command: Command) -> Parent | None:
        if command.type != ReExecuteRun.TYPE:
            return None
        payload = machine.payload_of(command)
        assert isinstance(payload, ReExecuteRun)  # noqa: S101 - its type says so
        return await _read_parent(self._run_logs, RunAddress(command.tenant_id, payload.parent_run_id))

    def _is_too_old(self, command: Command) -> bool:
        try:
            return parse_timestamp(command.issued_at) + self._expiry < self._now()
        except ValueError:
            return False

    def _entry(
        self,
        command: Command,
        status: LedgerStatus,
        *,
        applied_sequence: int | None = None,
        log_stream_seq: int | None = None,
        rejection: Rejection | None = None,
    ) -> LedgerEntry:
        return LedgerEntry(
            command_id=command.command_id,
            idempotency_key=command.idempotency_key,
            type=command.type,
            tenant_id=command.tenant_id,
            run_id=command.run_id,
            fingerprint="",  # the gateway's, which the ledger keeps
            status=status,
            accepted_at=command.issued_at,
            settled_at=timestamp(self._now()),
            applied_sequence=applied_sequence,
            log_stream_seq=log_stream_seq,
            rejection=rejection,
        )


async def _read_parent(run_logs: RunLogs, address: RunAddress) -> Parent:
    """The whole record of a run that is to be executed again, as far as that needs it."""
    parent = Parent(run=RunLifecycle(tenant_id=address.tenant_id, run_id=address.run_id))
    try:
        async with aclosing(run_logs.read(address)) as commits:
            async for stored in commits:
                parent.take(stored.commit.facts)
    except Gap:
        parent.gone = True
    return parent


_EXPIRED = Rejection(code=Code.INVALID_STATE.value, detail="it was not applied in time, and has no effect")


_NEVER_SENT = Rejection(
    code=Code.INVALID_STATE.value,
    detail="it was recorded and never sent; it has no effect, and may be asked for again under another key",
)


def is_urgent(delivery: Delivery) -> bool:
    """Whether a command goes before those of its run that wait: a cancel does."""
    return b'"type":"' + CancelRun.TYPE.encode() + b'"' in delivery.data and _type_of(delivery.data) == CancelRun.TYPE


class _CommandHead(msgspec.Struct, frozen=True):
    type: str


_HEAD = msgspec.json.Decoder(_CommandHead)


def _type_of(data: bytes) -> str:
    try:
        return _HEAD.decode(data).type
    except msgspec.MsgspecError:
        return ""
