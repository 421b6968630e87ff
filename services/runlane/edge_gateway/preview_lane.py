"""The preview lanes of one run: best effort, bounded by bytes, every loss counted and said. Pure.

Previews of one `preview_id` are shown in order and never joined across a gap. What is repeated or comes too
late is not shown; what is missing becomes a `preview_gap` in its place. Once the fact that replaces a preview
was seen, nothing of that preview is shown any more.
"""

import contextlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct

from runlane.edge_gateway.frames import Wire
from runlane_contracts import codec
from runlane_contracts.previews import GapReason, Preview, PreviewGap

MAX_ACTIVE = 256
MAX_RETIRED = 1024
MAX_FORMATS = 4
"""In so many wire formats a frame is kept; for further ones it is made anew."""
WHEN_SHORT = 8
"""A lane keeps one byte in so many of what it may have, when all together have too much."""
STATUS_SHARE = 4
"""Of the bytes for previews, one in so many is for status."""


class _Merged(Struct, frozen=True):
    first_seq: int
    last_seq: int
    source_count: int = 1


class PreviewHead(Struct, frozen=True):
    """What the lanes look at."""

    preview_id: str
    preview_seq: int
    operation: str = "append"
    fate: str | None = None
    coalesced: _Merged | None = None


class _RawBatch(Struct, frozen=True):
    previews: tuple[Raw, ...]


_decode_batch = msgspec.json.Decoder(_RawBatch).decode
_decode_head = msgspec.json.Decoder(PreviewHead).decode
_decode_preview = msgspec.json.Decoder(Preview).decode


class PreviewEntry:
    """One frame in a lane. A gap that happened before the gateway is an entry too."""

    __slots__ = ("_frames", "_preview", "_tried", "data", "event", "first_seq", "last_seq", "preview_id", "starts_at")

    def __init__(self, preview_id: str, first_seq: int, last_seq: int, event: str, data: bytes, starts_at: int) -> None:
        self.preview_id = preview_id
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.event = event
        self.data = data
        self.starts_at = starts_at
        """How many bytes the lane had taken in before."""
        self._frames: dict[str, bytes] = {}
        self._preview: Preview | None = None
        self._tried = False

    def frame(self, wire: Wire) -> bytes:
        """Encoded once for all who are shown it over one wire format."""
        made = self._frames.get(wire.name)
        if made is None:
            made = wire.frame(self.event, self.data)
            if len(self._frames) < MAX_FORMATS:
                self._frames[wire.name] = made
        return made

    @property
    def preview(self) -> Preview | None:
        """The fragment, for merging; None for a gap, or what cannot be read as one."""
        if not self._tried and self.event == "preview":
            self._tried = True
            with contextlib.suppress(msgspec.MsgspecError):
                self._preview = _decode_preview(self.data)
        return self._preview


@dataclass(slots=True)
class PreviewCounts:
    """What became of the fragments that arrived. `received` is the sum of the others, over one run."""

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


@dataclass(slots=True)
class PreviewBudget:
    """What the lanes of all runs may hold together. When it is used up, each keeps no more than its share of it."""

    max_bytes: int
    used_bytes: int = 0

    def is_over(self, size_bytes: int, max_bytes: int) -> bool:
        """Whether a lane of a size, that may have so much when there is enough, has to give back."""
        return size_bytes > max_bytes or (self.used_bytes > self.max_bytes and size_bytes > max_bytes // WHEN_SHORT)


class PreviewLane:
    """A ring of preview frames. Readers hold an index into it."""

    def __init__(self, max_bytes: int, counts: PreviewCounts, budget: PreviewBudget) -> None:
        self.counts = counts
        self._budget = budget
        self.size_bytes = 0
        self.taken_in_bytes = 0
        self.shared: dict[tuple[int, int, str, bool], object] = {}
        """What readers made of the entries for each other; empty again with every change."""
        self._max_bytes = max_bytes
        self._entries: deque[PreviewEntry] = deque()
        self._active: OrderedDict[str, _Active] = OrderedDict()
        self._retired: OrderedDict[str, None] = OrderedDict()
        self._start = 0

    @property
    def end(self) -> int:
        """The index of the next entry."""
        return self._start + len(self._entries)

    @property
    def held(self) -> int:
        """How many entries are held."""
        return len(self._entries)

    def bytes_after(self, index: int) -> int:
        """How much a reader at an index has not taken."""
        if index >= self.end:
            return 0
        return self.taken_in_bytes - self.at(max(index, self._start)).starts_at

    def retire(self, preview_id: str) -> None:
        """The fact that replaces it was seen: it is shown no more."""
        self._active.pop(preview_id, None)
        self._retired[preview_id] = None
        if len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)
        self.shared.clear()

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

    def append(self, head: PreviewHead, raw: bytes) -> None:
        """Take in one fragment."""
        if head.preview_id in self._retired:
            self.counts.retired += 1
            return
        first = head.coalesced.first_seq if head.coalesced else head.preview_seq
        active = self._active.get(head.preview_id)
        # One that overlaps cannot be taken apart, so it is lost as a whole; the next one shows the gap.
        if active is not None and first <= active.last_seq:
            self.counts.repeated += 1
            return
        self.counts.kept += 1
        self._admit(head, first, active, raw)

    def _admit(self, head: PreviewHead, first: int, active: _Active | None, raw: bytes) -> None:
        if active is None:
            self._active[head.preview_id] = active = _Active(first, head.preview_seq)
            if len(self._active) > MAX_ACTIVE:
                self._active.popitem(last=False)
        elif first > active.last_seq + 1:
            missing = _gap(head.preview_id, active.last_seq + 1, first - 1, "lost")
            self._push(head.preview_id, missing.from_, missing.to, "preview_gap", codec.encode(missing))
        active.last_seq = head.preview_seq
        self._push(head.preview_id, first, head.preview_seq, "preview", raw)

    def _push(self, preview_id: str, first: int, last: int, event: str, data: bytes) -> None:
        self._entries.append(PreviewEntry(preview_id, first, last, event, data, self.taken_in_bytes))
        self._hold(len(data))
        self.taken_in_bytes += len(data)
        while len(self._entries) > 1 and self._budget.is_over(self.size_bytes, self._max_bytes):
            evicted = self._entries.popleft()
            self._start += 1
            self._hold(-len(evicted.data))
            active = self._active.get(evicted.preview_id)
            if active is not None:
                active.evicted_through = evicted.last_seq
        self.shared.clear()

    def _hold(self, more_bytes: int) -> None:
        self.size_bytes += more_bytes
        self._budget.used_bytes += more_bytes

    def close(self) -> None:
        """Give back what it holds."""
        self._hold(-self.size_bytes)


@dataclass(slots=True)
class PreviewLanes:
    """Where a run's fragments go: status, of which only the newest counts (`latest_value`), and everything else."""

    max_bytes: int
    budget: PreviewBudget
    counts: PreviewCounts = field(default_factory=PreviewCounts)
    status: PreviewLane = field(init=False)
    previews: PreviewLane = field(init=False)

    def __post_init__(self) -> None:
        self.status = PreviewLane(self.max_bytes // STATUS_SHARE, self.counts, self.budget)
        self.previews = PreviewLane(self.max_bytes - self.max_bytes // STATUS_SHARE, self.counts, self.budget)

    def append_batch(self, body: bytes) -> bool:
        """Take in one message of the preview subject; whether there is anything new to show."""
        before = self.status.end + self.previews.end
        try:
            batch = _decode_batch(body).previews
        except msgspec.MsgspecError:
            self.counts.received += 1
            self.counts.malformed += 1
            return False
        for raw in batch:
            self._append(raw)
        return self.status.end + self.previews.end > before

    def retire(self, preview_id: str) -> None:
        """The fact that replaces it was seen: it is shown no more."""
        self.status.retire(preview_id)
        self.previews.retire(preview_id)

    def close(self) -> None:
        """Give back what they hold; nobody reads them any more."""
        self.status.close()
        self.previews.close()

    def _append(self, raw: Raw) -> None:
        self.counts.received += 1
        try:
            head = _decode_head(raw)
        except msgspec.MsgspecError:
            self.counts.malformed += 1
            return
        # A preview stays in the lane where it began: its fragments are in order only there.
        is_status = self.status.is_active(head.preview_id) or (
            head.operation == "latest_value" and not self.previews.is_active(head.preview_id)
        )
        (self.status if is_status else self.previews).append(head, bytes(raw))


def _gap(preview_id: str, first: int, last: int, reason: GapReason) -> PreviewGap:
    return PreviewGap(preview_id=preview_id, from_=first, to=last, dropped=last - first + 1, reason=reason)
