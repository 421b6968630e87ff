"""The event log in memory: for tests and for those who try things out without a broker.

Passes the same suite as the one on JetStream. It can be harmed: `faults` are called once each, in order, before
a commit, and raise to refuse it; `settled_answers` and `lost_answers` say how many of the next commits are
written while their answer gets lost, found again by the log or left to its caller; `recreate` and `cut`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from runlane.kernel.clock import Now, utc_now
from runlane.kernel.errors import AheadOfStream, Compacted, Conflict, Gap, Permanent, Retryable, StreamReplaced
from runlane.kernel.event_log import NOTHING, StoredCommit, compaction_in
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit
from runlane_contracts.ids import is_id, is_tenant
from runlane_contracts.streams import MAX_COMMIT_BYTES
from runlane_contracts.subjects import RunAddress


class MemoryEventLog:
    """`EventLog` in one process; `epoch` is its incarnation."""

    def __init__(self, *, epoch: str = "memory", now: Now = utc_now) -> None:
        self.epoch = epoch
        self.faults: deque[Callable[[Commit], None]] = deque()
        self.settled_answers = 0
        self.lost_answers = 0
        self._now = now
        self._last_seq = 0
        self._runs: dict[RunAddress, list[StoredCommit]] = {}
        self._grown = asyncio.Event()

    def recreate(self) -> None:
        """Forget everything, as a stream that was made anew."""
        self.epoch += "+"
        self._last_seq = 0
        self._runs.clear()
        self._wake()

    def cut(self, run: RunAddress, index: int) -> None:
        """Take one commit out, so that the run has a hole."""
        del self._runs[run][index]

    def purge(self, run: RunAddress, *, before: Position) -> None:
        """Take out what was archived: every commit of the run before the one at a position."""
        self._runs[run] = [one for one in self._runs[run] if one.position.stream_seq >= before.stream_seq]

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        """See `EventLog.commit`."""
        await asyncio.sleep(0)
        self._check(commit, after)
        if self.faults:
            self.faults.popleft()(commit)
        run = RunAddress(commit.tenant_id, commit.run_id)
        there = self._following(run, after)
        if there is not None and there.commit.commit_id == commit.commit_id:
            return there.position
        head = self._head(run)
        if (after.epoch or self.epoch, after.stream_seq) != (self.epoch, head.stream_seq):
            raise Conflict("the run is elsewhere", current_seq=head.stream_seq)
        position = self._store(run, commit)
        if self.settled_answers:
            self.settled_answers -= 1
            return await self.commit(commit, after=after)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Retryable("no answer in time")
        return position

    async def head(self, run: RunAddress) -> StoredCommit | None:
        """See `EventLog.head`."""
        commits = self._runs.get(run)
        return commits[-1] if commits else None

    async def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """See `EventLog.read`."""
        if after.epoch and after.epoch != self.epoch:
            raise StreamReplaced(f"{after.epoch} is now {self.epoch}")
        if after.stream_seq > self._last_seq:
            raise AheadOfStream("the log has not got that far")
        commits = [stored for stored in self._runs.get(run, ()) if stored.position.stream_seq >= after.stream_seq]
        is_gone = bool(after.stream_seq and (not commits or commits[0].position.stream_seq != after.stream_seq))
        if is_gone and (not commits or compaction_in(commits[0].commit) is None):
            raise Gap(f"commit {after.stream_seq} is gone")
        sequence = after.sequence
        for stored in commits:
            if stored.position.stream_seq != after.stream_seq and stored.commit.first_sequence != sequence + 1:
                if compaction_in(stored.commit) is None:
                    raise Gap(f"{stored.commit.first_sequence} follows {sequence}")
                if sequence:
                    raise Compacted(f"what follows {sequence} was archived")
            if stored.position.sequence > sequence:
                sequence = stored.position.sequence
                yield stored

    async def tail(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """See `EventLog.tail`."""
        position = after
        while True:
            grown = self._grown
            async for stored in self.read(run, after=position):
                position = stored.position
                yield stored
            await grown.wait()

    def _check(self, commit: Commit, after: Position) -> None:
        if not (is_tenant(commit.tenant_id) and is_id(commit.run_id)):
            raise Permanent(f"not the address of a run: {commit.tenant_id!r} {commit.run_id!r}")
        if not commit.facts or commit.first_sequence != after.sequence + 1:
            raise Permanent(f"a commit that begins at {commit.first_sequence} cannot follow {after.sequence}")
        if len(encode(commit)) > MAX_COMMIT_BYTES:
            raise Permanent("more bytes than a commit may have")

    def _head(self, run: RunAddress) -> Position:
        commits = self._runs.get(run)
        return commits[-1].position if commits else NOTHING

    def _following(self, run: RunAddress, after: Position) -> StoredCommit | None:
        if after.epoch not in {"", self.epoch}:
            return None
        return next((s for s in self._runs.get(run, ()) if s.position.stream_seq > after.stream_seq), None)

    def _store(self, run: RunAddress, commit: Commit) -> Position:
        self._last_seq += 1
        position = Position(self.epoch, self._last_seq, commit.last_sequence)
        stored = StoredCommit(position=position, commit=commit, recorded_at=timestamp(self._now()))
        self._runs.setdefault(run, []).append(stored)
        self._wake()
        return position

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()
