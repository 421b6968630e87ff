"""The newest commits of one run, bounded by bytes, encoded once per filter. Pure.

A watcher is only a position in here; one that is behind the oldest entry reads history instead.
"""

from collections import deque
from collections.abc import Iterator

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.view import ViewCommit
from runlane_contracts.cursor import Position


class RingEntry:
    """One commit and its frames, per filter."""

    __slots__ = ("_frames", "commit", "cost_bytes")

    def __init__(self, commit: ViewCommit) -> None:
        self.commit = commit
        self.cost_bytes = len(commit.body)
        self._frames: dict[str, bytes] = {}

    @property
    def position(self) -> Position:
        """The place after this commit."""
        return self.commit.position

    def frames(self, encoder: FactFrames, *, after: int) -> tuple[bytes, int]:
        """The frames after a sequence, and by how many bytes this entry grew."""
        commit = self.commit
        if after >= commit.first_sequence:  # begins inside the commit: rare, not kept
            return encoder.encode(commit, commit.facts(), after=after, through=commit.last_sequence), 0
        kept = self._frames.get(encoder.types.hash)
        if kept is not None:
            return kept, 0
        made = encoder.encode(commit, commit.facts(), after=after, through=commit.last_sequence)
        self._frames[encoder.types.hash] = made
        self.cost_bytes += len(made)
        return made, len(made)


class CommitRing:
    """Contiguous commits up to the head. Appending past the byte bound forgets the oldest, never the newest."""

    __slots__ = ("_entries", "_max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._entries: deque[RingEntry] = deque()
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RingEntry]:
        return iter(self._entries)

    def append(self, commit: ViewCommit) -> RingEntry:
        """Add the next commit. Raises ValueError when it does not follow the last one."""
        if self._entries and commit.first_sequence != self._entries[-1].commit.last_sequence + 1:
            raise ValueError(f"{commit.first_sequence} does not follow {self._entries[-1].commit.last_sequence}")
        entry = RingEntry(commit)
        self._entries.append(entry)
        self.size_bytes += entry.cost_bytes
        self._shrink()
        return entry

    def holds(self, sequence: int) -> bool:
        """Whether everything after `sequence` is in here."""
        return bool(self._entries) and self._entries[0].commit.first_sequence <= sequence + 1

    def after(self, sequence: int) -> Iterator[RingEntry]:
        """The entries with facts after `sequence`, oldest first. Only if `holds(sequence)`."""
        newest_first = []
        for entry in reversed(self._entries):
            if entry.commit.last_sequence <= sequence:
                break
            newest_first.append(entry)
        return reversed(newest_first)

    def frames(self, entry: RingEntry, encoder: FactFrames, *, after: int) -> bytes:
        """The frames of an entry; what is encoded for the first time counts against the bound."""
        made, grown = entry.frames(encoder, after=after)
        if grown:
            self.size_bytes += grown
            self._shrink()
        return made

    def shrink_to(self, max_bytes: int) -> None:
        """Forget the oldest until no more than so many bytes are left, or one entry."""
        while self.size_bytes > max_bytes and len(self._entries) > 1:
            self.size_bytes -= self._entries.popleft().cost_bytes

    def _shrink(self) -> None:
        self.shrink_to(self._max_bytes)
