"""What an erasure leaves of a fact: its place, its type, its envelope, and the SHA-256 of the payload. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Raw, Struct

from runlane_contracts import events
from runlane_contracts.archives import ArchiveLine, sha256_hex
from runlane_contracts.codec import decode_commit, decode_json, encode
from runlane_contracts.envelope import EMPTY_PAYLOAD, ERASURE_RULE, Commit, Fact, Redaction, is_erased
from runlane_contracts.events import ERASED_ALL

EVERYTHING = (ERASED_ALL,)


class Selection(Struct, frozen=True):
    """Which facts lose their payload. `keys`: the items, as `log.compacted.erased` names them."""

    keys: tuple[str, ...]
    sequences: frozenset[int] | None = None
    """None: all that say anything of the run's content."""

    def takes(self, fact: Fact) -> bool:
        """Whether the fact is one of them. The log's own facts hold nothing of anybody."""
        if fact.type.startswith("log."):
            return False
        return self.sequences is None or fact.sequence in self.sequences


def key_of(fact: Fact) -> str | None:
    """The key of the item that a fact is about, as states have it."""
    try:
        payload = events.decode_payload(fact.type, fact.payload)
    except msgspec.MsgspecError:
        return None
    item = None if isinstance(payload, events.UnknownPayload) else events.item_of(fact.type, payload)
    if item is None and fact.type == "plan.updated":
        return "plan:plan"
    if item is None and fact.subject is not None:
        item = (fact.subject.kind, fact.subject.id)
    return None if item is None else f"{item[0]}:{item[1]}"


class Selector:
    """Finds the facts of some items, and of the approvals that were asked about them, which show the same."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = set(keys)
        self._sequences: dict[str, set[int]] = {}
        self._calls: dict[str, str] = {}

    def look(self, fact: Fact) -> None:
        """Take in the next fact of the view."""
        key = key_of(fact)
        if key is None:
            return
        self._sequences.setdefault(key, set()).add(fact.sequence)
        if fact.type == events.ApprovalRequested.TYPE:
            asked = events.decode_payload(fact.type, fact.payload)
            if isinstance(asked, events.ApprovalRequested) and asked.tool_call_id is not None:
                self._calls[key] = f"tool:{asked.tool_call_id}"

    @property
    def missing(self) -> list[str]:
        """The items of which there is no fact."""
        return sorted(self._keys - self._sequences.keys())

    def selection(self) -> Selection:
        """What was found."""
        keys = self._keys | {approval for approval, call in self._calls.items() if call in self._keys}
        found = frozenset().union(*(self._sequences.get(key, set()) for key in keys))
        return Selection(tuple(sorted(keys)), found)


class Proofs:
    """The SHA-256 of each payload that was erased, by sequence: taken from the log, stated in the view too."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, fact: Fact) -> str:
        """Of this fact's payload, the first time it is asked for; one that was erased before keeps its own."""
        if is_erased(fact):
            stated = next((one.sha256 for one in fact.redactions if one.rule == ERASURE_RULE), None)
            return self._known.setdefault(fact.sequence, stated or "")
        return self._known.setdefault(fact.sequence, sha256_hex(bytes(fact.payload)))


def erased_line(line: ArchiveLine, selection: Selection, proofs: Proofs) -> ArchiveLine:
    """The same commit with the selected facts emptied. A line that has none of them stays byte for byte."""
    commit = decode_commit(line.commit)
    if not any(selection.takes(fact) for fact in commit.facts):
        return line
    facts = tuple(_emptied(fact, proofs) if selection.takes(fact) else fact for fact in commit.facts)
    body = encode(msgspec.structs.replace(commit, facts=facts))
    return ArchiveLine(recorded_at=line.recorded_at, commit=Raw(body))


def _emptied(fact: Fact, proofs: Proofs) -> Fact:
    mark = Redaction(path="", rule=ERASURE_RULE, action="removed", sha256=proofs.of(fact))
    return msgspec.structs.replace(fact, payload=EMPTY_PAYLOAD, redactions=(mark,))


def content_refs(commit: Commit, selection: Selection) -> Iterator[str]:
    """The addresses of content that selected facts point to."""
    for fact in commit.facts:
        if selection.takes(fact) and b"content_ref" in bytes(fact.payload):
            yield from _refs_in(decode_json(fact.payload))


def _refs_in(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _refs_in(one)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if name == "content_ref" and isinstance(one, Mapping) and isinstance(one.get("uri"), str):
                yield one["uri"]
            else:
                yield from _refs_in(one)
