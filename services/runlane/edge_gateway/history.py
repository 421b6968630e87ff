"""Reads a run's stored commits after a position, in order, without a hole."""

import asyncio
from dataclasses import dataclass

from runlane.edge_gateway.view import BEGINNING, RELOCATED, StreamStart, View, ViewCommit
from runlane.kernel.errors import Retryable
from runlane_contracts.cursor import Position
from runlane_contracts.events import LogCompacted
from runlane_contracts.subjects import RunAddress

_BEHIND_ASKS = 20
_BEHIND_POLL_S = 0.05
SMALL_PAGE_BYTES = 64 * 1024


class Hole(Exception):
    """Facts between `expected` and `got` are not in the view: archived, if the record says so, or lost."""

    def __init__(self, run: RunAddress, expected: int, got: int, compaction: LogCompacted | None = None) -> None:
        why = "archived" if compaction is not None else "the record does not say why"
        super().__init__(f"{run.run_id}: expected sequence {expected}, the view goes on at {got}: {why}")
        self.expected = expected
        self.got = got
        self.compaction = compaction

    @property
    def is_declared(self) -> bool:
        """Whether the record says that they were archived. Else they are lost, which is a fault."""
        return self.compaction is not None


@dataclass(slots=True)
class HistoryRoom:
    """What all readers together hold of history. When it is used up, they read little at a time."""

    max_bytes: int
    used_bytes: int = 0

    def page_bytes(self, wanted_bytes: int) -> int:
        """How much one may read now."""
        return wanted_bytes if self.used_bytes < self.max_bytes else min(wanted_bytes, SMALL_PAGE_BYTES)


class History:
    """Pages of what follows a position. Where the position's stream place is wrong, it looks from the beginning.

    A cursor's stream place is believed once the commit that holds its sequence is found there. `trusted`: it is the
    end of a commit that was read here.
    """

    def __init__(self, view: View, run: RunAddress, after: Position, *, trusted: bool = False) -> None:
        self._view = view
        self._run = run
        self._start = StreamStart(after.epoch, after.stream_seq + trusted) if after.stream_seq > 0 else BEGINNING
        self._proven = trusted or self._start == BEGINNING
        self.sequence = after.sequence
        self.exhausted = False
        """Whether the last page was the last one, when it was read."""

    async def next(self, max_bytes: int) -> list[ViewCommit]:
        """The next commits with facts after `sequence`; empty when the view has no more just now.

        Raises:
            Hole: what follows is not there.
            Retryable: the broker does not answer.
        """
        while True:
            page = await self._view.page(self._run, start=self._start, max_bytes=max_bytes)
            self.exhausted = page.exhausted
            self._proven = self._proven or any(self._holds_place(commit) for commit in page.commits)
            found = [commit for commit in page.commits if commit.last_sequence > self.sequence]
            if not found and not page.exhausted:
                self._begin_after(page.commits[-1])
            elif not self._proven and (not found or found[0].first_sequence > self.sequence + 1):
                self._start, self._proven = RELOCATED, True
            else:
                return self._take(found)

    async def must_go_on(self, max_bytes: int) -> list[ViewCommit]:
        """As `next`, where the view is known to hold more: a replica that is behind is waited for, never believed.

        Raises: as `next` does.
        """
        for _ in range(_BEHIND_ASKS):
            found = await self.next(max_bytes)
            if found:
                return found
            await asyncio.sleep(_BEHIND_POLL_S)
        raise Retryable("a replica of the view is behind", retry_after_s=0.5)

    def _holds_place(self, commit: ViewCommit) -> bool:
        return commit.first_sequence <= self.sequence <= commit.last_sequence

    def _take(self, found: list[ViewCommit]) -> list[ViewCommit]:
        in_order: list[ViewCommit] = []
        for commit in found:
            if commit.last_sequence <= self.sequence:
                continue
            if commit.first_sequence > self.sequence + 1:
                if in_order:  # hand out what is whole; the next call reports the hole
                    break
                raise Hole(self._run, self.sequence + 1, commit.first_sequence, commit.compaction())
            in_order.append(commit)
            self.sequence = commit.last_sequence
        if in_order:
            self._proven = True
            self._begin_after(in_order[-1])
        return in_order

    def _begin_after(self, commit: ViewCommit) -> None:
        self._start = StreamStart(commit.epoch, commit.stream_seq + 1)
