"""The newest commits of one run, bounded by bytes, encoded once per filter. Pure.

A watcher is only a position in here; one that is behind the oldest entry reads history instead.
"""

from bisect import bisect_right
from collections.abc import Iterator

from runlane.edge_gateway.frames import EncodedFacts, FactFrames
from runlane.edge_gateway.view import ViewCommit
from runlane_contracts.cursor import Position


class RingEntry:
    """One commit and its frames, per filter."""

    __slots__ = ("_frames", "commit", "cost_bytes")

    def __init__(self, commit: ViewCommit) -> None:
        self.commit = commit
        self.cost_bytes = len(commit.body)
        self._frames: dict[str, EncodedFacts] = {}

    @property
    def position(self) -> Position:
        """The place after this commit."""
        return self.commit.position

    def frames(self, encoder: FactFrames, *, after: int, keep: bool) -> EncodedFacts:
        """The frames after a sequence; `keep` them for the next reader."""
        kept = self._frames.get(encoder.key)
        if kept is None:
            if not keep:
                return encoder.encode(self.commit, after=after)
            kept = self._frames[encoder.key] = encoder.encode(self.commit, after=0)
            self.cost_bytes += kept.size_bytes
        return kept.after(after)


class CommitRing:
    """Contiguous commits up to the head. Appending past the byte bound forgets the oldest, never the newest.

    Frames count as well. Those of many different filters are not all kept: they may add as much again, no more.
    """

    __slots__ = ("_entries", "_lasts", "_max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        # Lists, so that a reader's place is found by bisection; deleting at the front moves a few pointers.
        self._entries: list[RingEntry] = []
        self._lasts: list[int] = []
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def forget(self) -> None:
        """Let go of everything; who is behind reads history."""
        self._entries, self._lasts, self.size_bytes = [], [], 0

    def append(self, commit: ViewCommit) -> None:
        """Add the next commit. Raises ValueError when it does not follow the last one."""
        if self._entries and commit.first_sequence != self._lasts[-1] + 1:
            raise ValueError(f"{commit.first_sequence} does not follow {self._lasts[-1]}")
        self._entries.append(RingEntry(commit))
        self._lasts.append(commit.last_sequence)
        self.size_bytes += len(commit.body)
        self.shrink_to(self._max_bytes)

    def holds(self, sequence: int) -> bool:
        """Whether everything after `sequence` is in here."""
        return bool(self._entries) and self._entries[0].commit.first_sequence <= sequence + 1

    def after(self, sequence: int) -> Iterator[RingEntry]:
        """The entries with facts after `sequence`, oldest first. Only if `holds(sequence)`; not while appending."""
        for place in range(bisect_right(self._lasts, sequence), len(self._entries)):
            yield self._entries[place]

    def frames(self, entry: RingEntry, encoder: FactFrames, *, after: int) -> EncodedFacts:
        """The frames of an entry after a sequence."""
        before = entry.cost_bytes
        made = entry.frames(encoder, after=after, keep=self.size_bytes < 2 * self._max_bytes)
        self.size_bytes += entry.cost_bytes - before
        return made

    def shrink_to(self, max_bytes: int) -> None:
        """Forget the oldest until no more than so many bytes are left, or one entry."""
        count = 0
        while self.size_bytes > max_bytes and count < len(self._entries) - 1:
            self.size_bytes -= self._entries[count].cost_bytes
            count += 1
        if count:
            del self._entries[:count], self._lasts[:count]
