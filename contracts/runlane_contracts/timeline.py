"""The record of a run as rows a person reads: a pure fold of its facts. Previews never enter it.

Calls of one tool that stand alike are one row with a count, as are stretches of reasoning and turns. A failure is
always a row of its own. Every fact belongs to exactly one row, and the row names it. Whether facts come one by one or
all at once, the rows are the same.

    timeline = Timeline()
    for fact in facts:
        timeline.apply(fact)
    page = timeline.rows(after=0, limit=100)
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from runlane_contracts import events, reducer
from runlane_contracts.codec import encode
from runlane_contracts.defaults import always
from runlane_contracts.envelope import Fact, is_erased
from runlane_contracts.ids import Timestamp

TIMELINE_VERSION = 1
"""Rises when the same facts would give other rows."""

MAX_FOLDED = 500
"""So many calls are one row at most; what follows is the next one."""
MAX_TEXT = 200
MAX_NAME = 100


class RowError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, shortened."""

    code: str
    message: str = ""


class TimelineRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row. `sequences` are the facts it came from; `items` the keys of the items in the run's state."""

    row_id: str
    """Follows from the first fact of the row, and stays as long as that fact leads it."""
    kind: str
    phase: str
    count: int = always(1)
    """How many items, or facts without an item, are folded into it."""
    failed: bool = always(False)
    open: bool = always(False)
    """Whether something in it is still going on."""
    name: str | None = None
    """Of the tool, the artifact, the agent; the role of a message."""
    text: str | None = None
    """The beginning of what it is about, where it is about one thing."""
    error: RowError | None = None
    items: tuple[str, ...] = always(())
    sequences: tuple[int, ...]
    first_sequence: int
    last_sequence: int
    started_at: Timestamp
    updated_at: Timestamp
    ended_at: Timestamp | None = None


class _Entry(Struct, kw_only=True):
    """One item, or one fact that is about none. `alone`: once true, it is never folded with others."""

    kind: str
    item: str | None
    phase: str
    verb: str
    """Of its last fact: what is left of `phase` when the content is erased."""
    sequences: list[int]
    started_at: str
    updated_at: str
    is_open: bool = False
    failed: bool = False
    alone: bool = True
    name: str | None = None
    text: str | None = None
    error: RowError | None = None

    @property
    def like(self) -> tuple[str, str | None, str]:
        """Entries with the same are folded."""
        return self.kind, self.name, self.phase


class _Group(Struct):
    start: int
    """Index of its first entry."""
    entries: list[_Entry] = field(default_factory=list)


class Timeline:
    """The rows of one run as far as its facts are applied."""

    def __init__(self) -> None:
        self.through_sequence = 0
        self._entries: list[_Entry] = []
        self._index: dict[str, int] = {}
        self._groups: list[_Group] = []
        self._breaks: list[int] = []
        self._stale_from = 0

    def apply(self, fact: Fact) -> None:
        """Take in the next fact. One that is in already changes nothing.

        Raises:
            SequenceGap: a predecessor is missing; nothing changed.
        """
        if fact.sequence <= self.through_sequence:
            return
        if fact.sequence != self.through_sequence + 1:
            raise reducer.SequenceGap(self.through_sequence + 1, fact.sequence)
        self.through_sequence = fact.sequence
        family, _, verb = fact.type.partition(".")
        if is_erased(fact):
            self._apply_erased(fact, family, verb)
            return
        payload = reducer.fitting_payload(fact)
        if payload is None:
            self._add(_entry(fact, "log", None, "quarantined", failed=True))
        elif family in {"run", "log"} or fact.type == "plan.updated":
            self._add(_of_fact(fact, family, verb, payload))
            self._forget(payload.get("erased") if family == "log" else None)
        else:
            kind, id_ = reducer.item_of(fact, payload)
            phase = None if fact.type == "approval.voted" else reducer.item_status(fact.type, verb, payload)
            self._apply_to_item(fact, (kind, id_), verb, phase, payload)

    def _apply_erased(self, fact: Fact, family: str, verb: str) -> None:
        """A fact without its payload still says when it was, and about which item."""
        item = None if family in {"run", "log", "plan"} else _item_of_erased(fact)
        if item is None:
            self._add(_of_fact(fact, family, verb, {}))
        else:
            self._apply_to_item(fact, item, verb, None if fact.type == "approval.voted" else verb, {})

    def _forget(self, erased: Any) -> None:
        """Take away what an erasure names, so that rows made before it and after it are the same."""
        if not isinstance(erased, list):
            return
        everything = events.ERASED_ALL in erased
        for at, entry in enumerate(self._entries):
            item = "plan:plan" if entry.kind == "plan" else entry.item
            if entry.kind != "log" and (everything or item in erased):
                entry.name = entry.text = entry.error = None
                _stand(entry, entry.verb)
                self._stale_from = min(self._stale_from, at)

    def rows(self, *, after: int = 0, limit: int | None = None) -> list[TimelineRow]:
        """Rows that begin after a sequence, in the order in which they began; at most `limit`."""
        self._regroup()
        first = bisect_left(self._groups, after + 1, key=lambda one: one.entries[0].sequences[0])
        last = None if limit is None else first + limit
        return [_row(one.entries) for one in self._groups[first:last]]

    def _add(self, entry: _Entry) -> None:
        if entry.item is not None:
            self._index[entry.item] = len(self._entries)
        self._stale_from = min(self._stale_from, len(self._entries))
        self._entries.append(entry)

    def _apply_to_item(
        self, fact: Fact, item: tuple[str, str], verb: str, phase: str | None, payload: reducer.State
    ) -> None:
        """`phase`: how the item stands now; None: as before."""
        kind, key = item[0], ":".join(item)
        at = self._index.get(key)
        if at is None:
            at = len(self._entries)
            self._add(_entry(fact, kind, key, verb))
        else:
            self._entries[at].sequences.append(fact.sequence)
        entry = self._entries[at]
        before = entry.like, entry.alone
        entry.updated_at = fact.recorded_at or fact.occurred_at
        if phase is not None:
            entry.verb = verb
            _stand(entry, phase)
            _describe(entry, payload)
        if before != (entry.like, entry.alone):
            self._stale_from = min(self._stale_from, at)

    def _regroup(self) -> None:
        """Group again from the break before the first entry that changed: what stands before it stays as it was."""
        if self._stale_from >= len(self._entries):
            return
        kept = bisect_left(self._breaks, self._stale_from)
        start = self._breaks[kept - 1] if kept else 0
        del self._breaks[max(kept - 1, 0) :]
        del self._groups[bisect_left(self._groups, start, key=lambda one: one.start) :]
        like: dict[tuple[str, str | None, str], _Group] = {}
        for index in range(start, len(self._entries)):
            entry = self._entries[index]
            if entry.alone:
                self._breaks.append(index)
                like.clear()
            group = None if entry.alone else like.get(entry.like)
            if group is None or len(group.entries) >= MAX_FOLDED:
                group = _Group(index)
                self._groups.append(group)
                if not entry.alone:
                    like[entry.like] = group
            group.entries.append(entry)
        self._stale_from = len(self._entries)


def timeline_of(facts: Iterable[Fact]) -> list[TimelineRow]:
    """The rows of a record that is at hand. Raises SequenceGap."""
    timeline = Timeline()
    for fact in facts:
        timeline.apply(fact)
    return timeline.rows()


# --- entries ----------------------------------------------------------------------------------------------

_FOLDED = frozenset({"tool", "reasoning", "turn"})
_FAILED = frozenset({"failed", "outcome_unknown"})
_FAILED_FACTS = frozenset({"run.failed", "run.lease_lost", "log.quarantined"})


def _entry(fact: Fact, kind: str, item: str | None, phase: str, *, failed: bool = False) -> _Entry:
    at = fact.recorded_at or fact.occurred_at
    return _Entry(
        kind=kind, item=item, phase=phase, verb=phase, sequences=[fact.sequence], started_at=at, updated_at=at,
        failed=failed, alone=kind not in _FOLDED,
    )  # fmt: skip


def _item_of_erased(fact: Fact) -> tuple[str, str] | None:
    if fact.subject is not None:
        return fact.subject.kind, fact.subject.id
    cls = events.PAYLOADS.get(fact.type)
    return reducer.item_of(fact, {}) if cls is None or cls.ITEM is None else None


def _of_fact(fact: Fact, family: str, verb: str, payload: reducer.State) -> _Entry:
    entry = _entry(fact, family, None, verb, failed=fact.type in _FAILED_FACTS)
    _describe(entry, payload)
    return entry


def _stand(entry: _Entry, phase: str) -> None:
    """How an item stands now."""
    if entry.item is None:
        return
    entry.phase = phase
    entry.is_open = phase in reducer.OPEN_ITEM_STATUS and entry.kind != "session"
    entry.failed = phase in _FAILED
    entry.alone = entry.alone or entry.failed
    if not entry.failed:
        entry.error = None


_NAMES = ("name", "role", "agent", "worker_id", "title")
_TEXTS = ("content", "description", "prompt", "summary", "arguments", "input", "steps", "output", "reason")


def _describe(entry: _Entry, payload: reducer.State) -> None:
    for name in _NAMES:
        value = payload.get(name)
        if isinstance(value, str) and value:
            entry.name = value[:MAX_NAME]
            break
    for name in _TEXTS:
        value = payload.get(name)
        if value is not None and value != "":
            entry.text = excerpt(value)
            break
    error = payload.get("error")
    if isinstance(error, dict):
        entry.error = RowError(code=excerpt(error.get("code") or ""), message=excerpt(error.get("message") or ""))


def excerpt(value: Any) -> str:
    """The beginning of a value: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else encode(value).decode()
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


# --- rows -------------------------------------------------------------------------------------------------


def _row(entries: Sequence[_Entry]) -> TimelineRow:
    first, last = entries[0], max(entries, key=lambda one: one.sequences[-1])
    sequences = sorted(sequence for one in entries for sequence in one.sequences)
    is_open = any(one.is_open for one in entries)
    return TimelineRow(
        row_id=f"row_{first.sequences[0]}",
        kind=first.kind,
        phase=first.phase,
        count=len(entries),
        failed=first.failed,
        open=is_open,
        name=first.name,
        text=first.text if len(entries) == 1 else None,
        error=first.error,
        items=tuple(one.item for one in entries if one.item is not None),
        sequences=tuple(sequences),
        first_sequence=sequences[0],
        last_sequence=sequences[-1],
        started_at=first.started_at,
        updated_at=last.updated_at,
        ended_at=None if is_open else last.updated_at,
    )


__all__ = [
    "MAX_FOLDED", "MAX_TEXT", "TIMELINE_VERSION", "RowError", "Timeline", "TimelineRow", "excerpt", "timeline_of",
]  # fmt: skip
