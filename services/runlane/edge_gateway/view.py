"""What the gateway needs of the VIEW: pages of a run's history, its head, and what comes live.

Ports with an in-memory twin beside them (`memory_view`); `broker_view` is the real one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from runlane.kernel.event_log import compaction_in
from runlane_contracts import codec
from runlane_contracts.cursor import Position
from runlane_contracts.events import LogCompacted
from runlane_contracts.subjects import RunAddress


class ViewFact(Struct, frozen=True):
    """One fact as it came, and the few things about it that the gateway looks at."""

    sequence: int
    type: str
    raw: bytes
    preview_id: str | None = None


@dataclass(frozen=True, slots=True)
class ViewCommit:
    """One message of the VIEW: one commit as people may see it."""

    epoch: str
    stream_seq: int
    first_sequence: int
    last_sequence: int
    body: bytes = field(repr=False)

    @property
    def position(self) -> Position:
        """The place after its last fact."""
        return Position(self.epoch, self.stream_seq, self.last_sequence)

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """Its facts by sequence, unread: a commit is gapless."""
        facts = codec.decode_raw_commit(self.body).facts
        return ((sequence, bytes(raw)) for sequence, raw in enumerate(facts, self.first_sequence))

    def compaction(self) -> LogCompacted | None:
        """What its first fact says was archived before it."""
        return compaction_in(codec.decode_raw_commit(self.body))

    def facts(self) -> list[ViewFact]:
        """Its facts, in order."""
        return [_view_fact(raw) for raw in codec.decode_raw_commit(self.body).facts]


class _PreviewRef(Struct):
    preview_id: str | None = None


class _FactRef(Struct):
    payload: _PreviewRef


_decode_reference = msgspec.json.Decoder(_FactRef).decode


def _view_fact(raw: Raw) -> ViewFact:
    head = codec.decode_fact_head(raw)
    text = bytes(raw)
    return ViewFact(head.sequence, head.type, text, _preview_id(text))


def _preview_id(text: bytes) -> str | None:
    if b'"preview_id"' not in text:
        return None
    try:
        return _decode_reference(text).payload.preview_id
    except msgspec.ValidationError:
        return None  # a payload of another shape that only mentions the name


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where to begin reading. In another epoch than the stream's own, it means its beginning."""

    epoch: str
    stream_seq: int


BEGINNING = StreamStart("", 1)
"""Of the run, wherever it lies: in the archive, if it was archived."""
RELOCATED = StreamStart("-", 1)
"""Of what the stream holds: the place that was asked for is not there any more."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some commits of one run in stream order. `exhausted`: there was nothing after them."""

    commits: Sequence[ViewCommit]
    exhausted: bool


class View(Protocol):
    """Reading what is stored. Every call raises `Retryable` when the broker does not answer in time."""

    async def head(self, run: RunAddress) -> ViewCommit | None:
        """The run's last commit, or None when the view holds nothing of it."""
        ...

    async def page(self, run: RunAddress, *, start: StreamStart, max_bytes: int) -> Page:
        """Commits from a place in the stream on; at least one if there is one."""
        ...

    async def newer(self, known: Mapping[RunAddress, Position]) -> Mapping[RunAddress, int]:
        """Those of the runs that went past the position known of them, and their last sequence."""
        ...

    async def settle(self, run: RunAddress, *, within_s: float) -> bool:
        """Wait until the view holds everything that is in the log of this run's stream now; False: it took too long."""
        ...

    async def ends(self) -> Mapping[str, StreamStart]:
        """Where each stream of the view ends, once all hold what the log held when this was asked.

        Waits as long as that takes: the caller bounds it.
        """
        ...


OnCommit = Callable[[ViewCommit], None]
OnPreviews = Callable[[bytes], None]


class Subscription(Protocol):
    """Something that comes by itself until it is closed."""

    async def close(self) -> None:
        """Stop. Never raises."""
        ...


class Feed(Protocol):
    """What comes live, at most once: the caller repairs what it misses."""

    async def commits(self, run: RunAddress, deliver: OnCommit) -> Subscription:
        """Deliver each commit after it was stored; active when this returns."""
        ...

    async def previews(self, run: RunAddress, deliver: OnPreviews) -> Subscription:
        """Deliver the bytes of each batch of previews; active when this returns."""
        ...
