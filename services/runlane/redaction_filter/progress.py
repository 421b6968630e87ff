"""How far the outputs are: read from their own last messages, which is the only record of progress there is."""

import asyncio
from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from runlane.kernel.direct import DirectReader, StoredMessage
from runlane.kernel.errors import Retryable
from runlane_contracts.headers import LAST_SEQUENCE, LOG_POSITION

_LOOKS_AT_REPLICAS = 5
_REPLICA_LAG_S = 0.1
_PAGE = 1024


class LogReplaced(Exception):
    """An output was derived from another log than the one there is. They are never mixed: a person has to decide."""


class Reached(Struct, frozen=True, order=True):
    """A place in a LOG stream: a message, and the last fact of it that is out. Ordered."""

    log_seq: int = 0
    sequence: int = 0


class End(Struct, frozen=True):
    """Where an output stream ends, and up to where it was derived. None: it holds nothing that says so."""

    last_seq: int
    reached: Reached | None


class Outputs:
    """Reads the ends of the outputs of one LOG stream incarnation.

    Every method raises `LogReplaced` when an output belongs to another log, and `Retryable` when there is no answer.
    """

    def __init__(self, direct: DirectReader, *, log_epoch: str) -> None:
        self._direct = direct
        self._epoch = log_epoch

    async def view_end(self, stream: str, subjects: str) -> End:
        """Of a VIEW stream, all of whose messages come from this log."""
        state = await self._direct.stream_state(stream)
        if state.messages == 0:
            return End(state.last_seq, None)
        last = await self._last(stream, subjects, state.last_seq)
        return End(state.last_seq, self.reached(stream, last))

    async def signal_end(self, stream: str, subjects: str, *, is_shared: bool) -> End:
        """Of the SIGNAL stream. When it is shared, its last message may be another log's."""
        state = await self._direct.stream_state(stream)
        if state.messages == 0:
            return End(state.last_seq, None)
        if not is_shared:
            last = await self._last(stream, subjects, state.last_seq)
            return End(state.last_seq, self.reached(stream, last))
        async for message in self._backwards(stream, subjects, state.first_seq, state.last_seq):
            if _epoch_of(message) == self._epoch:
                return End(state.last_seq, self.reached(stream, message))
        return End(state.last_seq, None)

    async def last_where(
        self, stream: str, subjects: str, last_seq: int, is_before: Callable[[StoredMessage], bool]
    ) -> StoredMessage | None:
        """The last message of a stream of which `is_before` holds, if it holds of a first part of the stream."""
        low, high, found = 1, last_seq, None
        while low <= high:
            middle = (low + high) // 2
            page = await self._direct.page(stream, subjects, middle, max_messages=1)
            message = page.messages[0] if page.messages else None
            if message is not None and message.seq <= high and is_before(message):
                found, low = message, message.seq + 1
            else:
                high = middle - 1
        return found

    def reached(self, stream: str, message: StoredMessage) -> Reached:
        """Up to where a message of an output brings it. Raises LogReplaced."""
        epoch, _, seq = message.headers.get(LOG_POSITION, "").partition(":")
        if epoch != self._epoch or not seq.isdigit():
            raise LogReplaced(f"{stream} was derived from log {epoch or 'unknown'}, the log is {self._epoch}")
        sequence = message.headers.get(LAST_SEQUENCE, "")
        return Reached(int(seq), int(sequence) if sequence.isdigit() else 0)

    async def _last(self, stream: str, subjects: str, last_seq: int) -> StoredMessage:
        for _ in range(_LOOKS_AT_REPLICAS):
            message = await self._direct.get(stream, last_seq)
            if message is not None:
                return message
            await asyncio.sleep(_REPLICA_LAG_S)  # a replica may be a moment behind
        # The last message was deleted. What comes before it says how far the view is; the rest is derived again.
        async for message in self._backwards(stream, subjects, 1, last_seq):
            return message
        raise Retryable(f"{stream}: the last message cannot be read")

    async def _backwards(self, stream: str, subjects: str, first: int, last: int) -> AsyncIterator[StoredMessage]:
        """The messages of a stream from its end on, page by page."""
        while last >= first:
            start = max(first, last - _PAGE + 1)
            found: list[StoredMessage] = []
            async for page in self._direct.pages(stream, subjects, start, max_messages=_PAGE):
                found += [message for message in page.messages if message.seq <= last]
                if page.messages[-1].seq >= last:
                    break
            for message in reversed(found):
                yield message
            last = start - 1


def _epoch_of(message: StoredMessage) -> str:
    return message.headers.get(LOG_POSITION, "").partition(":")[0]
