"""A VIEW stream, read without a consumer: what the fold needs to begin, to catch up and to look again."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from runlane.kernel.direct import DirectReader, Page, StoredMessage
from runlane.kernel.errors import Retryable
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
        """Every message of one run up to a stream sequence, in order, some at a time."""
        ...


class DirectView:
    """A VIEW stream by batched direct get."""

    def __init__(self, reader: DirectReader, layout: Layout, index: int) -> None:
        self.stream = layout.view_stream_at(index)
        self._reader = reader
        self._subjects = layout.subjects
        self._all = layout.subjects.all_of("view")

    async def state(self) -> ViewState:
        """What the stream holds now."""
        found = await self._reader.stream_state(self.stream)
        return ViewState(found.epoch, found.first_seq, found.last_seq)

    async def read(self, *, after: int, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message after a stream sequence up to another, in order, some at a time."""
        async for messages in self._pages(self._all, after, through):
            yield messages

    async def read_run(self, run: RunAddress, *, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message of one run up to a stream sequence, in order, some at a time."""
        async for messages in self._pages(self._subjects.view(run.tenant_id, run.run_id), 0, through):
            yield messages

    async def _pages(self, subject: str, after: int, through: int) -> AsyncIterator[list[ViewMessage]]:
        reached = after
        async for page in self._reader.pages(self.stream, subject, after + 1):
            reached = page.messages[-1].seq
            messages = [one for one in _of_page(self._subjects, page) if one.stream_seq <= through]
            if messages:
                yield messages
            if reached >= through:
                return
        # A replica that is behind ends early; only the leader knows that there is nothing more.
        following = await self._reader.next_from_leader(self.stream, subject, reached + 1)
        if following is not None and following.seq <= through:
            raise Retryable(f"{self.stream}: a replica is behind", retry_after_s=0.2)


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
