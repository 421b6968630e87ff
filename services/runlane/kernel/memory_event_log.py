"""The event log in memory, for tests and for those who embed the kernel without a broker.

It passes the same suite as the log on JetStream. `faults` lets a test lose an answer, refuse, or let somebody else
write first.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from runlane.kernel.clock import Now, utc_now
from runlane.kernel.errors import Conflict, StreamReplaced
from runlane.kernel.event_log import NOTHING, StoredCommit
from runlane_contracts import codec
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit
from runlane_contracts.subjects import RunAddress


@dataclass
class MemoryEventLog:
    """Everything in one process; `epoch` is this object's incarnation."""

    epoch: str = "memory"
    now: Now = utc_now
    faults: deque[Callable[[Commit], None]] = field(default_factory=deque)
    """Called once each, in order, before a commit: raise to refuse it."""

    def __post_init__(self) -> None:
        self._runs: dict[RunAddress, list[StoredCommit]] = {}
        self._last_seq = 0
        self._grown = asyncio.Condition()

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        if self.faults:
            self.faults.popleft()(commit)
        run = RunAddress(commit.tenant_id, commit.run_id)
        stored = self._runs.setdefault(run, [])
        last = stored[-1] if stored else None
        if last is not None and last.commit.commit_id == commit.commit_id:
            return last.position
        head = last.position if last is not None else NOTHING
        if (after.stream_seq, after.sequence) != (head.stream_seq, head.sequence) or (after.epoch and after.epoch != self.epoch):
            raise Conflict(f"the run is at {head.sequence}, not at {after.sequence}", current_seq=head.stream_seq)
        self._last_seq += 1
        position = Position(self.epoch, self._last_seq, commit.last_sequence)
        copy = codec.decode_commit(codec.encode(commit))
        stored.append(StoredCommit(position=position, commit=copy, recorded_at=codec.timestamp(self.now())))
        async with self._grown:
            self._grown.notify_all()
        return position

    async def head(self, run: RunAddress) -> StoredCommit | None:
        stored = self._runs.get(run)
        return stored[-1] if stored else None

    async def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncIterator[StoredCommit]:
        self._check(after)
        for stored in list(self._runs.get(run, ())):
            if stored.position.sequence > after.sequence:
                yield stored

    async def tail(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncIterator[StoredCommit]:
        while True:
            async for stored in self.read(run, after=after):
                yield stored
                after = stored.position
            async with self._grown:
                known = self._runs.get(run, [])
                if not known or known[-1].position.sequence <= after.sequence:
                    await self._grown.wait()

    def _check(self, position: Position) -> None:
        if position.epoch and position.epoch != self.epoch:
            raise StreamReplaced(f"a position of {position.epoch!r} in {self.epoch!r}")
