"""A page of facts as JSON, around facts that stay as they are."""

from collections.abc import Iterable

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.view import ViewCommit
from runlane_contracts.cursor import Position

MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_SCANNED_FACTS = 50_000
"""A page with a filter that matches little ends here; the cursor goes on."""
_READ_BYTES = 512 * 1024


class EventPage:
    """Facts after a position, as far as limit and size allow."""

    def __init__(self, encoder: FactFrames, after: Position, limit: int) -> None:
        self.position = after
        self._encoder = encoder
        self._limit = limit
        self._facts: list[bytes] = []
        self._size = 0
        self._scanned = 0

    def wants_more(self) -> bool:
        """Whether nothing passed the filter so far, though more may be looked at."""
        return not self._facts and not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether it takes no more."""
        return len(self._facts) >= self._limit or self._size >= MAX_PAGE_BYTES or self._scanned >= MAX_SCANNED_FACTS

    async def fill(self, history: History, head: Position) -> None:
        """Read up to the head. A hole after the first facts ends the page; the next one reports it. Raises Hole."""
        after = self.position
        while self.position.sequence < head.sequence and not self.is_full:
            try:
                commits = await history.next(min(_READ_BYTES, 4096 + 1024 * self._limit))
            except Hole:
                if self.position != after:
                    return
                raise
            if not commits:
                return
            self.take(commits)

    def take(self, commits: Iterable[ViewCommit]) -> None:
        """Take in commits that follow, in order."""
        for commit in commits:
            for fact in commit.facts():
                if self.is_full:
                    return
                if fact.sequence <= self.position.sequence:
                    continue
                self._scanned += 1
                if self._encoder.types.matches(fact.type):
                    self._facts.append(fact.raw)
                    self._size += len(fact.raw)
                self.position = Position(commit.epoch, commit.stream_seq, fact.sequence)

    def body(self, head: Position, *, ended: bool | None = None, cursor: str | None = None) -> bytes:
        """The page. `ended`: whether the run is over and has no more, where known. `cursor`: instead of a new one."""
        has_more = b"true" if self.position.sequence < head.sequence else b"false"
        said = b"" if ended is None else b',"ended":%b' % (b"true" if ended else b"false")
        sealed = (cursor or self._encoder.cursor(self.position)).encode()
        return b'{"events":[%b],"cursor":"%b","has_more":%b%b}' % (b",".join(self._facts), sealed, has_more, said)
