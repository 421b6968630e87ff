"""A VIEW stream, read without a consumer: what the fold needs to begin, to catch up and to look again."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader, Page, StoredMessage
from runlane.kernel.errors import Retryable
from runlane.kernel.jetstream import api
from runlane.projector.fold import ViewMessage
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress, Subjects


class ViewState(Struct, frozen=True):
    """What the stream holds now. `epoch` changes when the stream is made anew."""

    epoch: str
    first_seq: int
    last_seq: int


class View(Protocol):
    """One VIEW stream. Reads are complete up to where they were asked for, or raise `Retryable`."""

    stream: str

    async def state(self) -> ViewState:
        """What the stream holds now."""
        ...

    def read(self, *, after: int, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message after a stream sequence up to another, in order, some at a time."""
        ...

    def read_run(self, run: RunAddress, *, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message of one run up to one of its own, in order, some at a time."""
        ...


class _State(Struct, frozen=True):
    first_seq: int = 0
    deleted: tuple[int, ...] = ()


class _Info(Struct, frozen=True):
    state: _State


class DirectView:
    """A VIEW stream by batched direct get. A replica that is behind is noticed, not believed."""

    def __init__(self, connection: Connection, reader: DirectReader, layout: Layout, index: int) -> None:
        self.stream = layout.view_stream_at(index)
        self._connection = connection
        self._reader = reader
        self._subjects = layout.subjects
        self._all = layout.subjects.all_of("view")

    async def state(self) -> ViewState:
        """What the stream holds now."""
        found = await self._reader.stream_state(self.stream)
        return ViewState(found.epoch, found.first_seq, found.last_seq)

    async def read(self, *, after: int, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message after a stream sequence up to another, in order, some at a time."""
        reached = after
        async for messages in self._pages(self._all, after, through):
            yield messages
            reached = messages[-1].stream_seq
        if reached < through and not await self._nothing_between(reached, through):
            raise Retryable(f"{self.stream}: a replica is behind {through}", retry_after_s=0.2)

    async def read_run(self, run: RunAddress, *, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message of one run up to one of its own, in order, some at a time."""
        reached = 0
        async for messages in self._pages(self._subjects.view(run.tenant_id, run.run_id), 0, through):
            yield messages
            reached = messages[-1].stream_seq
        if reached < through:
            raise Retryable(f"{self.stream}: a replica is behind {through}", retry_after_s=0.2)

    async def _pages(self, subject: str, after: int, through: int) -> AsyncIterator[list[ViewMessage]]:
        async for page in self._reader.pages(self.stream, subject, after + 1):
            messages = [one for one in _of_page(self._subjects, page) if one.stream_seq <= through]
            if messages:
                yield messages
            if page.messages[-1].seq >= through:
                return

    async def _nothing_between(self, reached: int, through: int) -> bool:
        """Whether the stream's leader has nothing after one sequence up to another: purged, or deleted by hand."""
        info = await api(self._connection, f"STREAM.INFO.{self.stream}", {"deleted_details": True}, answer=_Info)
        gone = set(info.state.deleted)
        return all(seq < info.state.first_seq or seq in gone for seq in range(reached + 1, through + 1))


def _of_page(subjects: Subjects, page: Page) -> list[ViewMessage]:
    return [_of_stored(subjects, one) for one in page.messages]


def _of_stored(subjects: Subjects, stored: StoredMessage) -> ViewMessage:
    return view_message(subjects, stored.subject, stored.seq, stored.headers, stored.data)


def view_message(
    subjects: Subjects, subject: str, stream_seq: int, headers: Mapping[str, str], data: bytes
) -> ViewMessage:
    """A message as the fold takes it, wherever it came from."""
    return ViewMessage(
        subjects.run_of(subject), stream_seq, _number(headers, FIRST_SEQUENCE), _number(headers, LAST_SEQUENCE), data
    )


def _number(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
