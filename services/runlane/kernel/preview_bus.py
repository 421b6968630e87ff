"""The preview lane: bounded, coalescing, counting. Nothing here is ever waited for, stored, or retried.

Publishing side: `PreviewBus.publish` returns nothing. Fragments wait at most one window; consecutive appends of one
preview become one fragment that names its sources, and of `latest_value` only the latest is kept. Receiving side:
`PreviewInbox` keeps the newest messages within a byte bound. Whatever is lost on either side is counted.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from runlane.kernel.preview_merge import merged, sources
from runlane_contracts import codec
from runlane_contracts.previews import Preview, PreviewBatch
from runlane_contracts.subjects import RunAddress, Subjects

WINDOW_S = 0.04
MAX_BATCH_BYTES = 64 * 1024
MAX_PENDING_BYTES = 512 * 1024
MAX_INBOX_BYTES = 16 * 1024 * 1024

Send = Callable[[str, bytes], Awaitable[None]]


@dataclass(slots=True)
class PreviewCounts:
    """Fragments since the start: ``accepted = sent + dropped + what still waits``, counted in source fragments."""

    accepted: int = 0
    sent: int = 0
    dropped: int = 0
    messages: int = 0
    coalesced: int = 0


class PreviewBus:
    """One process's way out for the previews of all its runs."""

    def __init__(
        self,
        send: Send,
        subjects: Subjects,
        *,
        window_s: float = WINDOW_S,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.counts = PreviewCounts()
        self._send, self._subjects = send, subjects
        self._window_s, self._max_batch_bytes, self._max_pending_bytes = window_s, max_batch_bytes, max_pending_bytes
        self._runs: dict[RunAddress, _Pending] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def publish(self, run: RunAddress, preview: Preview) -> None:
        """Show a fragment; it may vanish, and nobody waits for it."""
        self.counts.accepted += sources(preview)
        pending = self._runs.get(run)
        if pending is None:
            pending = self._runs[run] = _Pending()
            pending.timer = asyncio.get_running_loop().call_later(self._window_s, self._flush_soon, run)
        self.counts.coalesced += pending.add(preview)
        while pending.size > self._max_pending_bytes:
            self.counts.dropped += pending.drop_oldest()
        if preview.fate is not None or pending.size > self._max_batch_bytes:
            self._flush_soon(run)

    async def flush(self, run: RunAddress | None = None) -> None:
        """Send what waits, of one run or of all; returns when it left this process or was dropped."""
        for address in [run] if run is not None else list(self._runs):
            self._flush_soon(address)
        while self._sending:
            await asyncio.gather(*self._sending, return_exceptions=True)

    def _flush_soon(self, run: RunAddress) -> None:
        pending = self._runs.get(run)
        if pending is None or pending.busy:
            return
        if pending.timer is not None:
            pending.timer.cancel()
            pending.timer = None
        pending.busy = True
        task = asyncio.create_task(self._send_all(run, pending))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_all(self, run: RunAddress, pending: "_Pending") -> None:
        try:
            while previews := pending.take(self._max_batch_bytes):
                await self._send_batch(run, previews)
        finally:
            if self._runs.get(run) is pending:
                del self._runs[run]

    async def _send_batch(self, run: RunAddress, previews: list[Preview]) -> None:
        batch = PreviewBatch(tenant_id=run.tenant_id, run_id=run.run_id, previews=tuple(previews))
        count = sum(map(sources, previews))
        try:
            await self._send(self._subjects.preview_raw(*run), codec.encode(batch))
        except asyncio.CancelledError:
            self.counts.dropped += count
            raise
        except Exception:  # noqa: BLE001 - a preview that cannot be sent is lost, and counted, whatever the cause
            self.counts.dropped += count
        else:
            self.counts.sent += count
            self.counts.messages += 1


class _Pending:
    """The fragments of one run that wait, merged as they come."""

    __slots__ = ("_previews", "busy", "size", "timer")

    def __init__(self) -> None:
        self._previews: OrderedDict[str, list[Preview]] = OrderedDict()
        self.size = 0
        self.busy = False
        self.timer: asyncio.TimerHandle | None = None

    def add(self, preview: Preview) -> int:
        """Take one fragment in; how many it was merged with (0 or 1)."""
        waiting = self._previews.setdefault(preview.preview_id, [])
        joined = merged(waiting[-1], preview) if waiting else None
        if joined is None:
            waiting.append(preview)
            self.size += _weight(preview)
            return 0
        self.size += _weight(joined) - _weight(waiting[-1])
        waiting[-1] = joined
        return 1

    def drop_oldest(self) -> int:
        """Forget the oldest fragment; how many sources it had."""
        preview_id, waiting = next(iter(self._previews.items()))
        gone = waiting.pop(0)
        if not waiting:
            del self._previews[preview_id]
        self.size -= _weight(gone)
        return sources(gone)

    def take(self, max_bytes: int) -> list[Preview]:
        """The oldest fragments up to a size, at least one if there is any."""
        taken: list[Preview] = []
        size = 0
        while self._previews and (not taken or size < max_bytes):
            preview_id, waiting = next(iter(self._previews.items()))
            taken.append(waiting.pop(0))
            size += _weight(taken[-1])
            if not waiting:
                del self._previews[preview_id]
        self.size -= size
        return taken


def _weight(preview: Preview) -> int:
    data = preview.data
    return 160 + (len(data) if isinstance(data, str) else len(codec.encode(data)))


class PreviewInbox:
    """The newest messages of a subscription, within a byte bound; the oldest give way, counted in `dropped`."""

    def __init__(self, *, max_bytes: int = MAX_INBOX_BYTES) -> None:
        self.received = 0
        self.dropped = 0
        self._max_bytes = max_bytes
        self._messages: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._arrived = asyncio.Event()

    def put(self, subject: str, data: bytes) -> None:
        """Take a message in. Never blocks."""
        self.received += 1
        self._messages.append((subject, data))
        self._size += len(data)
        while self._size > self._max_bytes and self._messages:
            self._size -= len(self._messages.popleft()[1])
            self.dropped += 1
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            while self._messages:
                subject, data = self._messages.popleft()
                self._size -= len(data)
                yield subject, data
            self._arrived.clear()
            await self._arrived.wait()
