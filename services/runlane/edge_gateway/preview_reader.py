"""One reader's place in a preview lane, and what it is sent of it. Pure."""

from dataclasses import dataclass, field

from runlane.edge_gateway.frames import Chunk, Wire
from runlane.edge_gateway.preview_lane import MAX_ACTIVE, PreviewEntry, PreviewLane
from runlane.kernel.preview_merge import merged
from runlane_contracts import codec
from runlane_contracts.previews import Preview

MAX_SHARED = 16


@dataclass(slots=True)
class _Batch:
    """Entries as frames, for everyone at the same index."""

    next_index: int
    chunk: Chunk
    sent: int = 0
    superseded: int = 0
    merged: int = 0
    shown: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PreviewTotals:
    """What became of entries, over all readers. `losses`: how often something was dropped."""

    sent: int = 0
    merged: int = 0
    dropped: int = 0
    losses: int = 0


class PreviewReader:
    """A place in a lane. What came since it joined is `sent`, `merged`, `dropped`, `superseded` or pending."""

    __slots__ = ("_index", "_lane", "_shown", "_totals", "dropped", "merged", "sent", "superseded")

    def __init__(self, lane: PreviewLane, totals: PreviewTotals) -> None:
        self._lane = lane
        self._index = lane.end
        self._shown = lane.standing()
        self.sent = 0
        self.merged = 0
        self.dropped = 0
        self.superseded = 0
        self._totals = totals

    @property
    def pending(self) -> int:
        """How many entries came since the last `take`."""
        return self._lane.end - self._index

    @property
    def pending_bytes(self) -> int:
        """Of those that are still held."""
        return self._lane.bytes_after(self._index)

    def take(self, max_bytes: int, wire: Wire, *, merge: bool = False) -> Chunk | None:
        """The next frames, at most about so many bytes; first what was lost. `merge`: as few as may be."""
        gaps = self._missed(wire)
        batch = self._batch(max_bytes, wire, merge=merge)
        self._index = batch.next_index
        self._shown.update(batch.shown)
        self.sent += batch.sent
        self.merged += batch.merged
        self.superseded += batch.superseded
        self._totals.sent += batch.sent
        self._totals.merged += batch.merged
        if len(self._shown) > MAX_ACTIVE // 4:
            self._shown = {key: seq for key, seq in self._shown.items() if self._lane.is_active(key)}
        if gaps:
            return Chunk(*gaps, *batch.chunk.frames)
        return batch.chunk if batch.chunk.frames else None

    def _missed(self, wire: Wire) -> list[bytes]:
        lane = self._lane
        lost = lane.dropped(self._index)
        if not lost:
            return []
        gaps = lane.missed(self._index, self._shown)
        self._shown.update((gap.preview_id, gap.to) for gap in gaps)
        self.dropped += lost
        self._totals.dropped += lost
        self._totals.losses += 1
        self._index += lost
        return [wire.frame("preview_gap", codec.encode(gap)) for gap in gaps]

    def _batch(self, max_bytes: int, wire: Wire, *, merge: bool) -> _Batch:
        shared = self._lane.shared
        key = (self._index, max_bytes, wire.name, merge)
        known = shared.get(key)
        if not isinstance(known, _Batch):
            if len(shared) >= MAX_SHARED:
                shared.clear()
            known = shared[key] = _make_batch(self._lane, self._index, max_bytes, wire, merge=merge)
        return known


def _make_batch(lane: PreviewLane, index: int, max_bytes: int, wire: Wire, *, merge: bool) -> _Batch:
    batch = _Batch(index, Chunk())
    pieces: list[_Piece] = []
    last: dict[str, _Piece] = {}
    size = 0
    while batch.next_index < lane.end and size < max_bytes:
        entry = lane.at(batch.next_index)
        batch.next_index += 1
        if lane.is_retired(entry.preview_id):
            batch.superseded += 1
            continue
        batch.shown[entry.preview_id] = entry.last_seq
        piece = last.get(entry.preview_id) if merge else None
        if piece is not None:
            size -= piece.size
            if piece.takes(entry):
                size += piece.size
                batch.merged += 1
                continue
            size += piece.size
        last[entry.preview_id] = piece = _Piece(entry)
        pieces.append(piece)
        size += piece.size
    batch.sent = len(pieces)
    batch.chunk = Chunk(*(piece.frame(wire) for piece in pieces))
    return batch


class _Piece:
    """An entry, or several of one preview that became one."""

    __slots__ = ("_entry", "_merged", "size")

    def __init__(self, entry: PreviewEntry) -> None:
        self._entry = entry
        self._merged: Preview | None = None
        self.size = len(entry.data)

    def takes(self, entry: PreviewEntry) -> bool:
        """Whether the entry could be merged into it."""
        earlier, later = self._merged or self._entry.preview, entry.preview
        both = None if earlier is None or later is None else merged(earlier, later)
        if both is None:
            return False
        self._merged = both
        self.size = len(entry.data) if both.operation == "latest_value" else self.size + len(entry.data)
        return True

    def frame(self, wire: Wire) -> bytes:
        return self._entry.frame(wire) if self._merged is None else wire.frame("preview", codec.encode(self._merged))
