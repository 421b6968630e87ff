"""Previews on their way out: merged within a window, bounded in bytes, dropped and counted when that is not enough.

Nobody waits for a preview and no failure of one is an error: the receiver sees its `preview_seq` skip.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec import Struct

from runlane.client.errors import RequestRefused, Unreachable
from runlane_contracts.codec import encode
from runlane_contracts.previews import Coalesced, Preview

WINDOW_S = 0.04
MAX_OUTBOX_BYTES = 256 * 1024
MAX_BATCH_BYTES = 64 * 1024
MAX_BATCH_FRAGMENTS = 128
MAX_MERGED_CHARS = 32 * 1024
_ENVELOPE_BYTES = 200

Send = Callable[[Sequence[Preview]], Awaitable[None]]


class _Entry(Struct):
    newest: Preview
    parts: list[str]
    first_seq: int
    source_count: int
    weight: int

    def merged(self) -> Preview:
        if self.source_count == 1:
            return self.newest
        newest = self.newest
        return Preview(
            preview_id=newest.preview_id,
            subject=newest.subject,
            preview_seq=newest.preview_seq,
            operation=newest.operation,
            data="".join(self.parts) if newest.operation == "append" else newest.data,
            lease_epoch=newest.lease_epoch,
            base_revision=newest.base_revision,
            encoding=newest.encoding,
            coalesced=Coalesced(first_seq=self.first_seq, last_seq=newest.preview_seq, source_count=self.source_count),
        )


class PreviewOutbox:
    """Fragments of one run that have not left yet."""

    def __init__(self, send: Send, *, window_s: float = WINDOW_S, max_bytes: int = MAX_OUTBOX_BYTES) -> None:
        self.dropped = 0
        """Fragments that did not leave: no room, no connection, or refused."""
        self._send = send
        self._window_s = window_s
        self._max_bytes = max_bytes
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._sending = asyncio.Lock()

    def offer(self, preview: Preview) -> None:
        """Take one fragment. Returns at once."""
        if not self._merge(preview):
            weight = _weight(preview)
            parts = [preview.data] if isinstance(preview.data, str) else []
            self._entries.append(_Entry(preview, parts, preview.preview_seq, 1, weight))
            self._bytes += weight
        while self._bytes > self._max_bytes and self._entries:
            oldest = self._entries.popleft()
            self._bytes -= oldest.weight
            self.dropped += oldest.source_count
        if self._entries:
            self._filled.set()

    def _merge(self, preview: Preview) -> bool:
        if not self._entries or preview.fate is not None:
            return False
        last = self._entries[-1]
        before = last.newest
        if (
            before.preview_id != preview.preview_id
            or before.operation != preview.operation
            or before.fate is not None
            or preview.preview_seq != before.preview_seq + 1
        ):
            return False
        if preview.operation == "append":
            return self._merge_append(last, preview)
        if preview.operation != "latest_value":
            return False
        self._bytes -= last.weight
        last.weight = _weight(preview)
        self._bytes += last.weight
        last.newest, last.source_count = preview, last.source_count + 1
        return True

    def _merge_append(self, last: _Entry, preview: Preview) -> bool:
        if not isinstance(preview.data, str) or not last.parts or last.weight > MAX_MERGED_CHARS:
            return False
        last.parts.append(preview.data)
        last.newest, last.source_count = preview, last.source_count + 1
        last.weight += len(preview.data)
        self._bytes += len(preview.data)
        return True

    async def run(self) -> None:
        """Send what is there, one window after another, for ever."""
        while True:
            await self._filled.wait()
            await asyncio.sleep(self._window_s)
            await self.flush()

    async def flush(self) -> None:
        """Send what is there now; never raises for what could not be sent."""
        async with self._sending:
            self._filled.clear()
            if not self._entries:
                return
            entries = list(self._entries)
            self._entries.clear()
            self._bytes = 0
            for batch in _batches(entries):
                try:
                    await self._send([entry.merged() for entry in batch])
                except (Unreachable, RequestRefused):
                    self.dropped += sum(entry.source_count for entry in batch)

    def clear(self) -> None:
        """Drop what has not left."""
        self.dropped += sum(entry.source_count for entry in self._entries)
        self._entries.clear()
        self._bytes = 0
        self._filled.clear()


def _batches(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    batch: list[_Entry] = []
    weight = 0
    for entry in entries:
        if batch and (weight + entry.weight > MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_FRAGMENTS):
            yield batch
            batch, weight = [], 0
        batch.append(entry)
        weight += entry.weight
    if batch:
        yield batch


def _weight(preview: Preview) -> int:
    size = len(preview.data) if isinstance(preview.data, str) else len(encode(preview.data))
    return size + _ENVELOPE_BYTES
