"""Joined frames for everyone who is at the same place of a run. Pure."""

from dataclasses import dataclass

from runlane.edge_gateway.frames import Chunk, EncodedFacts
from runlane.edge_gateway.lanes import Lane
from runlane.edge_gateway.view import ViewCommit
from runlane_contracts.cursor import Position


@dataclass(slots=True)
class Piece:
    """Frames to write now, all of one lane. Shared between readers: never changed."""

    lane: Lane
    chunk: Chunk
    sequences: tuple[int, ...] = ()
    """Of the facts in it."""

    @property
    def facts(self) -> int:
        """How many."""
        return len(self.sequences)


@dataclass(slots=True)
class Burst(Piece):
    """Some facts as frames, one each, and the place after them, beyond the last if what followed is filtered."""

    position: Position = Position("", 0, 0)  # noqa: RUF009  it is a tuple


class BurstMaker:
    """Collects frames of commits that follow each other. `max_facts` 0: no bound."""

    def __init__(self, position: Position, max_facts: int = 0) -> None:
        self.position = position
        self.size_bytes = 0
        self._left = max_facts or None
        self._frames: list[bytes] = []
        self._sequences: list[int] = []

    @property
    def full(self) -> bool:
        """Whether it holds as many facts as it may."""
        return self._left == 0

    def add(self, commit: ViewCommit, encoded: EncodedFacts) -> None:
        """Take in the commit's facts, as many as may be; the place is then inside of it."""
        taken = encoded if self._left is None else encoded.first(self._left)
        if self._left is not None:
            self._left -= len(taken.frames)
        self._frames += taken.frames
        self._sequences += taken.sequences
        self.size_bytes += taken.size_bytes
        if len(taken.frames) == len(encoded.frames):
            self.position = commit.position
        else:
            self.position = Position(commit.epoch, commit.stream_seq, taken.sequences[-1])

    def burst(self, lane: Lane) -> Burst:
        """What was collected."""
        return Burst(lane, Chunk(*self._frames), tuple(self._sequences), self.position)
