"""Server-sent events as bytes. Pure; encoded once per run and filter, shared by everyone who watches it."""

from collections.abc import Iterator

from msgspec import Struct

from runlane.edge_gateway.type_filter import TypeFilter
from runlane.edge_gateway.view import ViewCommit
from runlane_contracts import codec
from runlane_contracts.cursor import CursorKeys, Position, Scope
from runlane_contracts.subjects import RunAddress

HEARTBEAT = b":\n\n"
FACT_EVENT = b"event: fact\n"
"""Begins every fact frame, and occurs nowhere else: JSON holds no raw line break."""


def frame(event: str, data: bytes, *, id_: str | None = None) -> bytes:
    """One frame. Line breaks can only be white space between JSON tokens; they would end the `data` line."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    if id_ is None:
        return b"event: %b\ndata: %b\n\n" % (event.encode(), data)
    return b"event: %b\nid: %b\ndata: %b\n\n" % (event.encode(), id_.encode(), data)


def struct_frame(event: str, data: Struct) -> bytes:
    """One frame without an id."""
    return frame(event, codec.encode(data))


def retry_hint(retry_after_ms: int) -> bytes:
    """Tells `EventSource` how long to wait before it reconnects."""
    return b"retry: %d\n" % retry_after_ms


class FactFrames:
    """Encodes the facts of one run that pass one filter."""

    __slots__ = ("_keys", "_scope", "types")

    def __init__(self, keys: CursorKeys, run: RunAddress, types: TypeFilter) -> None:
        self._keys = keys
        self._scope = Scope(run.tenant_id, run.run_id, "ui", types.hash)
        self.types = types

    def cursor(self, position: Position) -> str:
        """The text for a position, bound to this run and filter."""
        return self._keys.seal(position, self._scope)

    def position(self, cursor: str) -> Position:
        """The position in a text. Raises CursorInvalid, CursorForeign."""
        return self._keys.open(cursor, self._scope)

    def encode(self, commit: ViewCommit, *, after: int, through: int) -> bytes:
        """The frames of a commit's facts with ``after < sequence <= through``."""
        facts: Iterator[tuple[int, bytes]]
        if self.types.types:
            facts = ((fact.sequence, fact.raw) for fact in commit.facts() if self.types.matches(fact.type))
        else:
            facts = commit.numbered()
        return b"".join(
            frame("fact", raw, id_=self.cursor(Position(commit.epoch, commit.stream_seq, sequence)))
            for sequence, raw in facts
            if after < sequence <= through
        )
