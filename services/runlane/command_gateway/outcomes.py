"""Waiting for what became of a command: woken by the supervisor; the ledger is looked at in case no wake-up came."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from runlane.kernel.errors import Retryable
from runlane_contracts.codec import decode_ledger_entry
from runlane_contracts.commands import LedgerEntry, LedgerStatus

Look = Callable[[str, str], Awaitable[LedgerEntry | None]]
"""Tenant and command id to the ledger's entry."""


class Outcomes:
    """All who wait in this process."""

    def __init__(self, look: Look, *, look_every_s: float) -> None:
        self._look, self._look_every_s = look, look_every_s
        self._waiting: dict[tuple[str, str], list[Outcome]] = {}

    @contextmanager
    def expecting(self, tenant_id: str, command_id: str) -> "Iterator[Outcome]":
        """Register before asking, so that an outcome that comes at once is not missed."""
        outcome = Outcome(self._look, tenant_id, command_id, self._look_every_s)
        key = (tenant_id, command_id)
        self._waiting.setdefault(key, []).append(outcome)
        try:
            yield outcome
        finally:
            self._waiting[key].remove(outcome)
            if not self._waiting[key]:
                del self._waiting[key]

    def wake(self, data: bytes) -> None:
        """A wake-up arrived: the settled entry."""
        try:
            entry = decode_ledger_entry(data)
        except msgspec.MsgspecError:
            return  # the ledger is the record; whoever waits looks there
        for outcome in self._waiting.get((entry.tenant_id, entry.command_id), ()):
            outcome.arrived(entry)

    @property
    def count(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))


class Outcome:
    """One who waits for one command."""

    def __init__(self, look: Look, tenant_id: str, command_id: str, look_every_s: float) -> None:
        self._look, self._tenant_id, self._command_id = look, tenant_id, command_id
        self._look_every_s = look_every_s
        self._entry: LedgerEntry | None = None
        self._arrived = asyncio.Event()

    def arrived(self, entry: LedgerEntry) -> None:
        """This is what became of it."""
        self._entry = entry
        self._arrived.set()

    async def within(self, wait_s: float) -> LedgerEntry | None:
        """The settled entry, or None: not settled in that time."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._settled()
        except TimeoutError:
            return None

    async def _settled(self) -> LedgerEntry:
        pause_s = self._look_every_s
        while self._entry is None:
            try:
                async with asyncio.timeout(pause_s):
                    await self._arrived.wait()
            except TimeoutError:
                await self._look_once()
                pause_s = min(8 * self._look_every_s, pause_s * 1.5)
        return self._entry

    async def _look_once(self) -> None:
        try:
            entry = await self._look(self._tenant_id, self._command_id)
        except Retryable:
            return  # the next look, or a wake-up
        if entry is not None and entry.status is not LedgerStatus.ACCEPTED:
            self.arrived(entry)
