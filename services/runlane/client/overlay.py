"""Previews as they are shown: text that grows until a fact replaces it. Never part of the state.

An entry lives from its first fragment until one of three things: a fact carries its `preview_id`, its item
ends, or it is abandoned. Fragments that come later than that are ignored. A skip in `preview_seq` marks the
entry incomplete; nothing is ever joined across the hole.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from runlane_contracts.envelope import Fact
from runlane_contracts.previews import Preview, PreviewGap

Fate = Literal["committed", "superseded", "abandoned"]

MAX_ENTRIES = 256
MAX_SETTLED = 4096
MAX_TEXT_CHARS = 256 * 1024
"""Longer appended text keeps its end and is marked incomplete."""

_OPENING_VERBS = frozenset({"started", "requested", "running", "created", "updated", "outcome_unknown"})
_RUN_ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.lease_lost"})


@dataclass(slots=True)
class PreviewEntry:
    """What one preview shows now. `data` is text after appends, any value after a replacement."""

    preview_id: str
    kind: str
    id: str
    data: Any = None
    preview_seq: int = 0
    incomplete: bool = False
    lost_fragments: int = 0
    ends_at_hole: bool = False
    """What comes after `data` is missing: the next fragment starts anew."""


class PreviewOverlay:
    """All previews of one run that have no fate yet. Bounded: the oldest entry goes first."""

    def __init__(self) -> None:
        self.fates: dict[Fate, int] = {"committed": 0, "superseded": 0, "abandoned": 0}
        self.lost_fragments = 0
        self._entries: OrderedDict[str, PreviewEntry] = OrderedDict()
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._ended_items: OrderedDict[tuple[str, str], None] = OrderedDict()

    def entries(self) -> list[PreviewEntry]:
        """What to show, oldest first."""
        return list(self._entries.values())

    def of_item(self, kind: str, id_: str) -> PreviewEntry | None:
        """The newest preview of an item."""
        for entry in reversed(self._entries.values()):
            if (entry.kind, entry.id) == (kind, id_):
                return entry
        return None

    # -- fragments ----------------------------------------------------------------------------------------

    def apply(self, preview: Preview) -> PreviewEntry | None:
        """Take one fragment; the entry it changed, or None when it changed nothing."""
        item = (preview.subject.kind, preview.subject.id)
        if preview.preview_id in self._settled or item in self._ended_items:
            return None
        if preview.fate == "abandoned":
            self._settle(preview.preview_id, "abandoned")
            return None
        entry = self._entries.get(preview.preview_id)
        if entry is None:
            entry = self._open(preview)
        elif preview.preview_seq <= entry.preview_seq:
            return None  # a repeat, or one that was overtaken
        self._note_skip(entry, preview)
        self._merge(entry, preview)
        entry.preview_seq = preview.preview_seq
        return entry

    def apply_gap(self, gap: PreviewGap) -> PreviewEntry | None:
        """Take notice that fragments will not come."""
        entry = self._entries.get(gap.preview_id)
        if entry is None or gap.to <= entry.preview_seq:
            return None
        missing = gap.to - max(gap.from_ - 1, entry.preview_seq)
        entry.incomplete = entry.ends_at_hole = True
        entry.lost_fragments += missing
        self.lost_fragments += missing
        entry.preview_seq = gap.to
        return entry

    def _open(self, preview: Preview) -> PreviewEntry:
        older = self.of_item(preview.subject.kind, preview.subject.id)
        if older is not None:
            self._settle(older.preview_id, "superseded")
        entry = PreviewEntry(preview.preview_id, preview.subject.kind, preview.subject.id)
        self._entries[preview.preview_id] = entry
        while len(self._entries) > MAX_ENTRIES:
            self._settle(next(iter(self._entries)), "superseded")
        return entry

    def _note_skip(self, entry: PreviewEntry, preview: Preview) -> None:
        missing = preview.first_seq - entry.preview_seq - 1
        if missing > 0:
            entry.incomplete = entry.ends_at_hole = True
            entry.lost_fragments += missing
            self.lost_fragments += missing
        if preview.coalesced is not None and preview.coalesced.truncated:
            entry.incomplete = True

    def _merge(self, entry: PreviewEntry, preview: Preview) -> None:
        match preview.operation:
            case "append":
                if entry.ends_at_hole or not isinstance(entry.data, str):
                    entry.data = ""
                entry.data += preview.data if isinstance(preview.data, str) else str(preview.data)
                if len(entry.data) > MAX_TEXT_CHARS:
                    entry.data = entry.data[-MAX_TEXT_CHARS:]
                    entry.incomplete = True
            case "replace" | "latest_value":
                entry.data = preview.data
                # A whole value makes up for every fragment before it.
                entry.incomplete = preview.coalesced is not None and preview.coalesced.truncated
            case "patch":
                entry.data = preview.data
                entry.incomplete = True  # its base may differ from what we hold; show it, claim nothing
        entry.ends_at_hole = False

    # -- facts --------------------------------------------------------------------------------------------

    def settle(self, fact: Fact, payload: dict[str, Any]) -> None:
        """A fact arrived: it replaces the preview it names, and every preview of an item it ends."""
        named = payload.get("preview_id")
        if isinstance(named, str):
            self._settle(named, "committed")
        if fact.type in _RUN_ENDS:
            self.abandon_all()
            return
        if fact.subject is None or fact.type.rpartition(".")[2] in _OPENING_VERBS:
            return
        item = (fact.subject.kind, fact.subject.id)
        self._remember(self._ended_items, item)
        for entry in [e for e in self._entries.values() if (e.kind, e.id) == item]:
            self._settle(entry.preview_id, "superseded")

    def abandon_all(self) -> None:
        """The run ended, its lease was lost, or the state was reset: nothing that is shown will be committed."""
        for preview_id in list(self._entries):
            self._settle(preview_id, "abandoned")

    def _settle(self, preview_id: str, fate: Fate) -> None:
        if self._entries.pop(preview_id, None) is not None:
            self.fates[fate] += 1
        self._remember(self._settled, preview_id)

    @staticmethod
    def _remember(seen: OrderedDict[Any, None], key: Any) -> None:
        seen[key] = None
        while len(seen) > MAX_SETTLED:
            seen.popitem(last=False)
