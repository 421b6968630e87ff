"""What goes out, as bytes of one wire format. Pure; encoded once per run and filter, shared by all who watch it."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from runlane.edge_gateway.type_filter import TypeFilter
from runlane.edge_gateway.view import ViewCommit
from runlane_contracts import codec
from runlane_contracts.cursor import CursorKeys, Position, Scope
from runlane_contracts.subjects import RunAddress

HEARTBEAT = b":\n\n"
_LINE_ENDS = tuple((chr(code).encode(), b"\\u%04x" % code) for code in (0x85, 0x2028, 0x2029))


class Wire(Protocol):
    """A wire format. Bytes that it makes are the same for everyone, so that they can be shared."""

    @property
    def name(self) -> str:
        """Unique among the formats."""
        ...

    def frame(self, event: str, data: bytes, cursor: str | None = None) -> bytes:
        """One frame. `data`: a JSON object. `cursor`: continues after it; facts and snapshots have one."""
        ...


class Sse:
    """Server-sent events."""

    name = "sse"

    def frame(self, event: str, data: bytes, cursor: str | None = None) -> bytes:
        """See `Wire.frame`."""
        return frame(event, data, id_=cursor)


SSE = Sse()


def frame(event: str, data: bytes, *, id_: str | None = None) -> bytes:
    """One SSE frame, its data in one line."""
    data = one_line(data)
    if id_ is None:
        return b"event: %b\ndata: %b\n\n" % (event.encode(), data)
    return b"event: %b\nid: %b\ndata: %b\n\n" % (event.encode(), id_.encode(), data)


def one_line(data: bytes) -> bytes:
    """The same JSON without anything that a reader may take for the end of a line.

    Line breaks can only be white space between tokens. What Unicode calls a line end can only be part of a text; the
    standard of server-sent events lets it pass, but readers that split text by lines (httpx's, Java's) end there.
    """
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return data


def struct_frame(event: str, data: Struct) -> bytes:
    """One SSE frame without an id."""
    return frame(event, codec.encode(data))


def retry_hint(retry_after_ms: int) -> bytes:
    """Tells `EventSource` how long to wait before it reconnects."""
    return b"retry: %d\n" % retry_after_ms


class Chunk:
    """Frames for many connections, joined at most once."""

    __slots__ = ("_data", "_framed", "frames", "size_bytes")

    def __init__(self, *frames: bytes) -> None:
        self.frames = frames
        self.size_bytes = sum(map(len, frames))
        self._data: bytes | None = None
        self._framed: bytes | None = None

    @property
    def data(self) -> bytes:
        """All frames, joined; the same object for everyone."""
        if self._data is None:
            self._data = b"".join(self.frames)
        return self._data

    @property
    def framed(self) -> bytes:
        """As one chunk of an HTTP/1.1 response; the same object for everyone."""
        if self._framed is None:
            self._framed = b"%x\r\n%b\r\n" % (self.size_bytes, b"".join(self.frames))
        return self._framed


@dataclass(frozen=True, slots=True)
class EncodedFacts:
    """Frames, one for each fact that passed the filter, and the facts' sequences."""

    frames: tuple[bytes, ...]
    sequences: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of the frames."""
        return sum(map(len, self.frames))

    def first(self, count: int) -> "EncodedFacts":
        """So many of them."""
        return EncodedFacts(self.frames[:count], self.sequences[:count])

    def after(self, sequence: int) -> "EncodedFacts":
        """Those of the facts after a sequence."""
        start = bisect_right(self.sequences, sequence)
        return EncodedFacts(self.frames[start:], self.sequences[start:]) if start else self


class FactFrames:
    """Encodes the facts of one run that pass one filter, in one wire format."""

    __slots__ = ("_keys", "_scope", "key", "types", "wire")

    def __init__(self, keys: CursorKeys, run: RunAddress, types: TypeFilter, wire: Wire = SSE) -> None:
        self._keys = keys
        self._scope = Scope(run.tenant_id, run.run_id, "ui", types.hash)
        self.types = types
        self.wire = wire
        self.key = f"{wire.name}:{types.hash}"
        """Encoders of one run with the same key make the same bytes."""

    def cursor(self, position: Position) -> str:
        """The text for a position, bound to this run and filter."""
        return self._keys.seal(position, self._scope)

    def position(self, cursor: str) -> Position:
        """The position in a text. Raises CursorInvalid, CursorForeign."""
        return self._keys.open(cursor, self._scope)

    def struct(self, event: str, data: Struct) -> bytes:
        """A frame that has no cursor."""
        return self.wire.frame(event, codec.encode(data))

    def encode(self, commit: ViewCommit, *, after: int) -> EncodedFacts:
        """The frames of a commit's facts after a sequence."""
        facts: Iterator[tuple[int, bytes]]
        if self.types.types:
            facts = ((fact.sequence, fact.raw) for fact in commit.facts() if self.types.matches(fact.type))
        else:
            facts = commit.numbered()
        frames: list[bytes] = []
        sequences: list[int] = []
        for sequence, raw in facts:
            if sequence > after:
                cursor = self.cursor(Position(commit.epoch, commit.stream_seq, sequence))
                frames.append(self.wire.frame("fact", raw, cursor))
                sequences.append(sequence)
        return EncodedFacts(tuple(frames), tuple(sequences))
