"""Accept a command once: into the ledger, on its way, and wait for what becomes of it.

The ledger entry is durable before anybody is told "accepted". A repeat that finds an unsettled entry sends the
command again, under the same message id and the same command id: the stream drops the first kind of duplicate, the
supervisor recognises the second.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from runlane.kernel.clock import Now
from runlane.kernel.ledger import Ledger
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts import codec, headers
from runlane_contracts.canonical import sha256_of
from runlane_contracts.commands import Command, LedgerEntry, LedgerStatus
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.subjects import Subjects


class Outcomes:
    """Who waits for which command's outcome. A wake-up says "look now"; the ledger says what."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = {}

    def wake(self, tenant_id: str, command_id: str) -> None:
        """Somebody said that this command is settled."""
        for event in self._waiting.get((tenant_id, command_id), ()):
            event.set()

    @contextmanager
    def waiting(self, tenant_id: str, command_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when the command's outcome was announced."""
        event = asyncio.Event()
        key = (tenant_id, command_id)
        self._waiting.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[key].discard(event)
            if not self._waiting[key]:
                del self._waiting[key]


class Acceptance:
    """The way in for every command."""

    def __init__(
        self,
        ledger: Ledger,
        publisher: WindowedPublisher,
        subjects: Subjects,
        outcomes: Outcomes,
        *,
        now: Now,
        poll_s: float,
    ) -> None:
        self._ledger, self._publisher, self._subjects = ledger, publisher, subjects
        self._outcomes, self._now, self._poll_s = outcomes, now, poll_s

    async def accept(self, command: Command, *, wait_s: float) -> LedgerEntry:
        """The command's ledger entry, settled if that happens within `wait_s` seconds.

        Raises:
            Refused: `idempotency_conflict`, the key was used for something else.
            Retryable: it may have been accepted; asking again with the same key is safe.
        """
        with self._outcomes.waiting(command.tenant_id, command.command_id) as announced:
            entry, is_new = await self._ledger.accept(self._entry(command))
            if not is_new and entry.fingerprint != fingerprint(command):
                raise Refused(Code.IDEMPOTENCY_CONFLICT, "the key was used for another request")
            if entry.status is not LedgerStatus.ACCEPTED:
                return entry
            await self._send(command)
            return await self._settled(entry, announced, wait_s)

    async def find(self, tenant_id: str, command_id: str) -> LedgerEntry | None:
        """What is known of a command."""
        return await self._ledger.find(tenant_id, command_id)

    def _entry(self, command: Command) -> LedgerEntry:
        return LedgerEntry(
            command_id=command.command_id,
            idempotency_key=command.idempotency_key,
            type=command.type,
            tenant_id=command.tenant_id,
            run_id=command.run_id,
            fingerprint=fingerprint(command),
            status=LedgerStatus.ACCEPTED,
            accepted_at=codec.timestamp(self._now()),
        )

    async def _send(self, command: Command) -> None:
        subject = self._subjects.command(command.tenant_id, command.run_id)
        await self._publisher.publish(subject, codec.encode(command), {headers.COMMIT_ID: command.command_id})

    async def _settled(self, entry: LedgerEntry, announced: asyncio.Event, wait_s: float) -> LedgerEntry:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while entry.status is LedgerStatus.ACCEPTED and (left := deadline - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(announced.wait(), min(self._poll_s, left))
            announced.clear()
            entry = await self._ledger.find(entry.tenant_id, entry.command_id) or entry
        return entry


def fingerprint(command: Command) -> str:
    """What must be equal for two requests under one key to be the same request."""
    payload = codec.decode_json(command.payload)
    return sha256_of(
        {"type": command.type, "run_id": command.run_id, "session_id": command.session_id, "payload": payload}
    )
