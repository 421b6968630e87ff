"""What is due when, in memory: the next moment of each thing that is waited for, fired when it comes."""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from runlane.hosting.telemetry import about_run
from runlane.kernel.clock import Now
from runlane.kernel.errors import KernelError
from runlane_contracts.subjects import RunAddress

log = logging.getLogger(__name__)

LONGEST_NAP_S: Final = 1.0
"""The wall clock may be set; a nap is never longer."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 5.0
SHORTEST_PAUSE_S: Final = 0.05
"""Between two looks at the same thing, whatever moment it names."""


class Key(NamedTuple):
    """Something that is waited for: a `kind` of look at a run."""

    kind: str
    run: RunAddress


Fire = Callable[[RunAddress], Awaitable[datetime | None]]
"""Look at a run whose moment came; the next moment of the same kind, if there is one."""


class Timetable:
    """Moments by key; at most one for each. A look that fails is repeated, with back-off."""

    def __init__(self, fire: dict[str, Fire], *, now: Now, concurrency: int = 32) -> None:
        self._fire, self._now = fire, now
        self._due: dict[Key, datetime] = {}
        self._heap: list[tuple[datetime, Key]] = []
        self._firing: dict[Key, int] = {}  # key → failures in a row
        self._slots = asyncio.Semaphore(concurrency)
        self._changed = asyncio.Event()
        self.fired = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: Key, at: datetime | None) -> None:
        """Wait for a moment; None: for nothing any more."""
        if at is None:
            self._due.pop(key, None)
            return
        if self._due.get(key) == at:
            return
        self._due[key] = at
        heapq.heappush(self._heap, (at, key))
        if self._heap[0][1] == key:
            self._changed.set()

    async def run(self) -> None:
        """Fire what comes due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for key in self._take_due():
                    self._firing[key] = 0
                    tasks.create_task(self._look(key))
                await self._nap()

    def _take_due(self) -> list[Key]:
        now, taken = self._now(), []
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            # An entry of the heap that the table does not confirm was replaced or called off.
            if self._due.get(key) != at:
                continue
            if key in self._firing:
                continue  # it is being looked at; whoever looks sees the newest state and says what comes next
            del self._due[key]
            taken.append(key)
        self._prune()
        return taken

    def _prune(self) -> None:
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._due):
            self._heap = [(at, key) for key, at in self._due.items()]
            heapq.heapify(self._heap)

    async def _nap(self) -> None:
        left_s = LONGEST_NAP_S
        if self._heap:
            left_s = min(left_s, max(0.0, (self._heap[0][0] - self._now()).total_seconds()))
        try:
            async with asyncio.timeout(left_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _look(self, key: Key) -> None:
        try:
            async with self._slots:
                next_at = await self._look_until_it_works(key)
        finally:
            del self._firing[key]
        self.fired += 1
        waiting = self._due.pop(key, None)
        moments = [at for at in (next_at, waiting) if at is not None]
        if moments:
            self.set(key, max(min(moments), self._now() + timedelta(seconds=SHORTEST_PAUSE_S)))
        self._changed.set()

    async def _look_until_it_works(self, key: Key) -> datetime | None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                return await self._fire[key.kind](key.run)
            except KernelError as exc:
                log.info("%s of %s: %s", key.kind, key.run.run_id, exc, extra=about_run(key.run))
            except Exception:
                log.exception("%s of %s failed", key.kind, key.run.run_id, extra=about_run(key.run))
            self.failed += 1
            await asyncio.sleep(backoff_s)
            backoff_s = min(LONGEST_BACKOFF_S, backoff_s * 2)
