"""What became of each command: ``accepted → applied | rejected | expired``, remembered for at least a day.

The entry of a command is made before it goes on its way, under an id that follows from the tenant's idempotency key;
so the second request with that key finds the first one's entry, whatever died in between.
"""

from typing import Protocol

import msgspec

from runlane.kernel.errors import Conflict
from runlane_contracts import codec
from runlane_contracts.commands import LedgerEntry, LedgerStatus


class LedgerRecord(Protocol):
    """A value and the revision a compare-and-set names."""

    @property
    def value(self) -> bytes: ...
    @property
    def revision(self) -> int: ...


class LedgerBucket(Protocol):
    """The few operations of a key-value bucket that a ledger needs."""

    async def get(self, key: str) -> LedgerRecord | None: ...
    async def create(self, key: str, value: bytes) -> int: ...
    async def update(self, key: str, value: bytes, revision: int) -> int: ...


class Ledger:
    """The command ledger of all tenants, in one bucket."""

    def __init__(self, bucket: LedgerBucket) -> None:
        self._bucket = bucket

    async def accept(self, entry: LedgerEntry) -> tuple[LedgerEntry, bool]:
        """The entry of this command id and whether it is new; durable when this returns. Raises Retryable."""
        key = _key(entry.tenant_id, entry.command_id)
        try:
            await self._bucket.create(key, codec.encode(entry))
        except Conflict:
            found = await self._bucket.get(key)
            if found is None:  # it aged out between the two calls
                return await self.accept(entry)
            return codec.decode_ledger_entry(found.value), False
        return entry, True

    async def find(self, tenant_id: str, command_id: str) -> LedgerEntry | None:
        """What is known of a command. None says "not known", never "not executed". Raises Retryable."""
        found = await self._bucket.get(_key(tenant_id, command_id))
        return codec.decode_ledger_entry(found.value) if found is not None else None

    async def settle(self, outcome: LedgerEntry) -> LedgerEntry:
        """Write an outcome, once: the entry as it stands, which is an earlier outcome if there was one.

        A command that is not in the ledger (it aged out) is entered with its outcome. Raises Retryable.
        """
        key = _key(outcome.tenant_id, outcome.command_id)
        while True:
            found = await self._bucket.get(key)
            try:
                if found is None:
                    await self._bucket.create(key, codec.encode(outcome))
                    return outcome
                known = codec.decode_ledger_entry(found.value)
                if known.status is not LedgerStatus.ACCEPTED:
                    return known
                # Only the gateway knows the fingerprint and when it accepted.
                settled = msgspec.structs.replace(outcome, fingerprint=known.fingerprint, accepted_at=known.accepted_at)
                await self._bucket.update(key, codec.encode(settled), found.revision)
            except Conflict:
                continue
            return settled


def _key(tenant_id: str, command_id: str) -> str:
    return f"{tenant_id}.{command_id}"
