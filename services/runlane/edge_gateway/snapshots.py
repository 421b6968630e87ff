"""States at a sequence, encoded: folded once for all who ask at a time, and kept for a moment for who asks next.

A slider that is drawn over a record asks for many, and several people at once for the same.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary

from runlane.edge_gateway.run_state import EncodedSnapshot, RunStates, encoded_snapshot
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress

KEPT_BYTES = 16 * 1024 * 1024
KEPT_S = 30.0
"""Not for longer: what is taken out of a record must not live on here."""
_LARGE_FACTS = 2000
"""From so many on, encoding takes long enough to keep others waiting."""

_Key = tuple[RunAddress, int, Position]


class Snapshots:
    """Of exact sequences, as the view is at its head; bounded in bytes, the least recently asked for goes first."""

    def __init__(
        self, states: RunStates, *, monotonic: Callable[[], float], kept_bytes: int = KEPT_BYTES, kept_s: float = KEPT_S
    ) -> None:
        self._states = states
        self._monotonic = monotonic
        self._kept_bytes = kept_bytes
        self._kept_s = kept_s
        self._kept: OrderedDict[_Key, tuple[float, EncodedSnapshot]] = OrderedDict()
        self._bytes = 0
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()

    async def at(self, run: RunAddress, sequence: int, head: Position) -> EncodedSnapshot:
        """The state after exactly the facts 1…`sequence`.

        Raises:
            Hole: neither the read store nor the view holds what it takes.
            ViewQuarantined: it cannot be folded that far.
            Retryable: one of them does not answer.
        """
        key = (run, sequence, head)
        lock = self._locks.setdefault(key, asyncio.Lock())  # goes with the last who asks
        async with lock:
            kept = self._found(key)
            if kept is None:
                kept = await self._make(run, sequence)
                self._keep(key, kept)
            return kept

    async def _make(self, run: RunAddress, sequence: int) -> EncodedSnapshot:
        at = await self._states.at(run, sequence)
        if sequence < _LARGE_FACTS:
            return encoded_snapshot(run, at)
        return await asyncio.to_thread(encoded_snapshot, run, at)

    def _found(self, key: _Key) -> EncodedSnapshot | None:
        found = self._kept.get(key)
        if found is None:
            return None
        until, snapshot = found
        if self._monotonic() >= until:
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        return snapshot

    def _keep(self, key: _Key, snapshot: EncodedSnapshot) -> None:
        self._kept[key] = (self._monotonic() + self._kept_s, snapshot)
        self._bytes += snapshot.size
        while self._bytes > self._kept_bytes and len(self._kept) > 1:  # the newest stays for those who wait for it
            self._forget(next(iter(self._kept)))

    def _forget(self, key: _Key) -> None:
        _, snapshot = self._kept.pop(key)
        self._bytes -= snapshot.size
