"""The preview lane of one run: best effort, bounded by bytes, every loss counted and said. Pure.

Previews of one `preview_id` are shown in order and never joined across a gap. What is repeated or comes too
late is not shown; what is missing becomes a `preview_gap` in its place. Once the fact that replaces a preview
was seen, nothing of that preview is shown any more.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct

from runlane.edge_gateway.frames import SSE, Wire
from runlane_contracts import codec
from runlane_contracts.previews import GapReason, PreviewGap

MAX_ACTIVE = 256
MAX_RETIRED = 1024


class _Merged(Struct, frozen=True):
    first_seq: int
    last_seq: int
    source_count: int = 1


class _PreviewHead(Struct, frozen=True):
    preview_id: str
    preview_seq: int
    fate: str | None = None
    coalesced: _Merged | None = None


class _RawBatch(Struct, frozen=True):
    previews: tuple[Raw, ...]


_decode_batch = msgspec.json.Decoder(_RawBatch).decode
_decode_head = msgspec.json.Decoder(_PreviewHead).decode


@dataclass(frozen=True, slots=True)
class PreviewEntry:
    """One frame in the lane. A gap that happened before the gateway is an entry too."""

    preview_id: str
    first_seq: int
    last_seq: int
    event: str
    data: bytes = field(repr=False)
    _frames: dict[str, bytes] = field(default_factory=dict, repr=False)

    def frame(self, wire: Wire) -> bytes:
        """Encoded once for all who are shown it over one wire format."""
        made = self._frames.get(wire.name)
        if made is None:
            made = self._frames[wire.name] = wire.frame(self.event, self.data)
        return made


@dataclass(slots=True)
class PreviewCounts:
    """What became of the fragments that arrived. `received` is the sum of the others, over one lane."""

    received: int = 0
    kept: int = 0
    repeated: int = 0
    retired: int = 0
    malformed: int = 0


@dataclass(slots=True)
class _Active:
    first_seq: int
    last_seq: int
    evicted_through: int = 0


class PreviewLane:
    """A ring of preview frames. Readers hold an index into it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: deque[PreviewEntry] = deque()
        self._active: OrderedDict[str, _Active] = OrderedDict()
        self._retired: OrderedDict[str, None] = OrderedDict()
        self._start = 0
        self.size_bytes = 0
        self.counts = PreviewCounts()

    @property
    def end(self) -> int:
        """The index of the next entry."""
        return self._start + len(self._entries)

    @property
    def held(self) -> int:
        """How many entries are held."""
        return len(self._entries)

    def append_batch(self, body: bytes) -> bool:
        """Take in one message of the preview subject; whether there is anything new to show."""
        before = self.end
        try:
            batch = _decode_batch(body).previews
        except msgspec.MsgspecError:
            self.counts.received += 1
            self.counts.malformed += 1
            return False
        for raw in batch:
            self._append(raw)
        return self.end > before

    def retire(self, preview_id: str) -> None:
        """The fact that replaces it was seen: it is shown no more."""
        self._active.pop(preview_id, None)
        self._retired[preview_id] = None
        if len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)

    def is_active(self, preview_id: str) -> bool:
        """Whether fragments of it were seen and no fate yet."""
        return preview_id in self._active

    def at(self, index: int) -> PreviewEntry:
        """The entry with an index that is still held."""
        return self._entries[index - self._start]

    def is_retired(self, preview_id: str) -> bool:
        """Whether the fact that replaces it was seen."""
        return preview_id in self._retired

    def standing(self) -> dict[str, int]:
        """The last `preview_seq` seen of each active preview."""
        return {preview_id: active.last_seq for preview_id, active in self._active.items()}

    def missed(self, index: int, shown: dict[str, int]) -> list[PreviewGap]:
        """What a reader at an index lost because it was too slow. `shown`: last `preview_seq` it was sent."""
        if index >= self._start:
            return []
        gaps = []
        for preview_id, active in self._active.items():
            first = max(shown.get(preview_id, 0) + 1, active.first_seq)
            if first <= active.evicted_through:
                gaps.append(_gap(preview_id, first, active.evicted_through, "slow_reader"))
        return gaps

    def dropped(self, index: int) -> int:
        """How many entries a reader at an index did not get."""
        return max(self._start - index, 0)

    def _append(self, raw: Raw) -> None:
        counts = self.counts
        counts.received += 1
        try:
            head = _decode_head(raw)
        except msgspec.MsgspecError:
            counts.malformed += 1
            return
        if head.preview_id in self._retired:
            counts.retired += 1
            return
        first = head.coalesced.first_seq if head.coalesced else head.preview_seq
        active = self._active.get(head.preview_id)
        # One that overlaps cannot be taken apart, so it is lost as a whole; the next one shows the gap.
        if active is not None and first <= active.last_seq:
            counts.repeated += 1
            return
        self._admit(head, first, active, bytes(raw))

    def _admit(self, head: _PreviewHead, first: int, active: _Active | None, raw: bytes) -> None:
        self.counts.kept += 1
        if active is None:
            self._active[head.preview_id] = active = _Active(first, head.preview_seq)
            if len(self._active) > MAX_ACTIVE:
                self._active.popitem(last=False)
        elif first > active.last_seq + 1:
            missing = _gap(head.preview_id, active.last_seq + 1, first - 1, "lost")
            self._push(PreviewEntry(
                head.preview_id, missing.from_, missing.to, "preview_gap", codec.encode(missing)
            ))  # fmt: skip
        active.last_seq = head.preview_seq
        self._push(PreviewEntry(head.preview_id, first, head.preview_seq, "preview", raw))

    def _push(self, entry: PreviewEntry) -> None:
        self._entries.append(entry)
        self.size_bytes += len(entry.data)
        while self.size_bytes > self._max_bytes and len(self._entries) > 1:
            evicted = self._entries.popleft()
            self._start += 1
            self.size_bytes -= len(evicted.data)
            active = self._active.get(evicted.preview_id)
            if active is not None:
                active.evicted_through = evicted.last_seq


class PreviewReader:
    """One watcher's place in a lane. What came since it joined is `sent`, `dropped`, `superseded` or pending."""

    __slots__ = ("_index", "_lane", "_shown", "dropped", "sent", "superseded")

    def __init__(self, lane: PreviewLane) -> None:
        self._lane = lane
        self._index = lane.end
        self._shown = lane.standing()
        self.sent = 0
        self.dropped = 0
        self.superseded = 0

    @property
    def pending(self) -> int:
        """How many entries came since the last `take`."""
        return self._lane.end - self._index

    def take(self, max_bytes: int, wire: Wire = SSE) -> list[bytes]:
        """The next frames, at most about so many bytes; first what was lost."""
        lane, frames, size = self._lane, self._missed(wire), 0
        while self._index < lane.end and size < max_bytes:
            entry = lane.at(self._index)
            self._index += 1
            if lane.is_retired(entry.preview_id):
                self.superseded += 1
                continue
            self._shown[entry.preview_id] = entry.last_seq
            self.sent += 1
            size += len(entry.data)
            frames.append(entry.frame(wire))
        if len(self._shown) > MAX_ACTIVE // 4:
            self._shown = {key: seq for key, seq in self._shown.items() if lane.is_active(key)}
        return frames

    def _missed(self, wire: Wire) -> list[bytes]:
        lane = self._lane
        lost = lane.dropped(self._index)
        if not lost:
            return []
        gaps = lane.missed(self._index, self._shown)
        self._shown.update((gap.preview_id, gap.to) for gap in gaps)
        self.dropped += lost
        self._index += lost
        return [wire.frame("preview_gap", codec.encode(gap)) for gap in gaps]


def _gap(preview_id: str, first: int, last: int, reason: GapReason) -> PreviewGap:
    return PreviewGap(preview_id=preview_id, from_=first, to=last, dropped=last - first + 1, reason=reason)
