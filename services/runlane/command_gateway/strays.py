"""Commands that were recorded and never sent: their gateway died in between, and nobody repeated the request.

Every gateway reads the ledger behind its writers, each entry once, when it is old enough that it should long have been
sent. One that has no outcome then is given up under its own message id: where it was sent after all, the stream has it
before that, and it is decided as it was asked; where it was not, it ends as `expired`, and can be asked for again. What
is older than the ledger's last `LOOK_BACK` entries when a gateway starts is given up when somebody looks at it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from runlane.kernel.clock import Now
from runlane.kernel.direct import Page, StreamState
from runlane.kernel.errors import KernelError
from runlane_contracts.codec import decode_ledger_entry, parse_timestamp
from runlane_contracts.commands import LedgerEntry, LedgerStatus

log = logging.getLogger(__name__)

LOOK_BACK: Final = 100_000
"""How many of the ledger's last revisions are read at the start."""
PAGE_MESSAGES: Final = 256
AGAIN_AFTER_S: Final = 60.0
"""Who looks at a command again and again has it given up no more often."""
MAX_REMEMBERED: Final = 10_000

_ACCEPTED = b'"status":"accepted"'

GiveUp = Callable[[LedgerEntry], Awaitable[None]]


class LedgerStream(Protocol):
    """How the ledger's stream is read; see `DirectReader`."""

    async def stream_state(self, stream: str) -> StreamState: ...
    def pages(
        self, stream: str, subject: str, start_seq: int = 1, *, max_messages: int = PAGE_MESSAGES
    ) -> AsyncIterator[Page]: ...


class Strays:
    """Finds them and has them given up. `older_than_s`: a command that is younger may still be on its way."""

    def __init__(self, ledger: LedgerStream, bucket: str, give_up: GiveUp, *, now: Now, older_than_s: float) -> None:
        self._ledger, self._stream, self._subjects = ledger, f"KV_{bucket}", f"$KV.{bucket}.>"
        self._give_up, self._now, self._older_than = give_up, now, timedelta(seconds=older_than_s)
        self._epoch, self._next_seq = "", 1
        self._looked_at: OrderedDict[str, float] = OrderedDict()
        self.given_up = 0

    async def watch(self, every_s: float) -> None:
        """Sweep for ever. What cannot be read or written now is tried the next time."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.sweep()
            except KernelError as exc:
                log.info("the ledger could not be swept: %s", exc)

    async def sweep(self) -> None:
        """Give up what is old enough and has no outcome, of what was not read yet. Raises Retryable."""
        state = await self._ledger.stream_state(self._stream)
        if state.epoch != self._epoch:
            self._epoch, self._next_seq = state.epoch, max(state.first_seq, state.last_seq - LOOK_BACK + 1, 1)
        if state.last_seq < self._next_seq:
            return
        until_ns = (self._now() - self._older_than).timestamp() * 1e9
        async for page in self._ledger.pages(self._stream, self._subjects, self._next_seq, max_messages=PAGE_MESSAGES):
            for message in page.messages:
                if message.time_ns > until_ns:
                    return
                entry = _accepted(message.data)
                if entry is not None:
                    await self._end(entry)
                self._next_seq = message.seq + 1

    async def look(self, entry: LedgerEntry) -> None:
        """Somebody looks at a command: it is given up if it should have an outcome by now. Raises Retryable."""
        clock = asyncio.get_running_loop().time()
        if not self._is_old(entry) or clock - self._looked_at.get(entry.command_id, -AGAIN_AFTER_S) < AGAIN_AFTER_S:
            return
        self._looked_at[entry.command_id] = clock
        self._looked_at.move_to_end(entry.command_id)
        if len(self._looked_at) > MAX_REMEMBERED:
            self._looked_at.popitem(last=False)
        await self._end(entry)

    def _is_old(self, entry: LedgerEntry) -> bool:
        if entry.status is not LedgerStatus.ACCEPTED:
            return False
        try:
            return parse_timestamp(entry.accepted_at) + self._older_than < self._now()
        except ValueError:
            return False

    async def _end(self, entry: LedgerEntry) -> None:
        await self._give_up(entry)
        self.given_up += 1


def _accepted(data: bytes) -> LedgerEntry | None:
    if _ACCEPTED not in data:
        return None
    try:
        entry = decode_ledger_entry(data)
    except msgspec.MsgspecError:
        return None
    return entry if entry.status is LedgerStatus.ACCEPTED else None
