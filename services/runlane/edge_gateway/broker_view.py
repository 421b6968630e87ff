"""The view on JetStream: direct-get reads, and the subject to which the broker republishes what it stored."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from opentelemetry.trace import SpanKind

from runlane.edge_gateway.shared_ask import SharedAsk
from runlane.edge_gateway.view import OnCommit, OnPreviews, Page, StreamStart, ViewCommit
from runlane.hosting.spans import happened
from runlane.hosting.telemetry import is_tracing
from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.direct import DirectReader, StoredMessage, StreamState
from runlane_contracts.codec import decode_raw_commit
from runlane_contracts.cursor import Position
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE, LOG_POSITION, NATS_SEQUENCE, TRACEPARENT
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import Attribute, Span

PAGE_MESSAGES = 1000
EPOCH_AGE_S = 5.0
LIVE_PENDING_BYTES = 16 * 1024 * 1024
PREVIEW_PENDING_BYTES = 1024 * 1024
SETTLE_POLL_S = (0.005, 0.1)


class BrokerView:
    """A `View` and a `Feed` over one connection."""

    def __init__(self, connection: Connection, reader: DirectReader, layout: Layout) -> None:
        self._connection = connection
        self._reader = reader
        self._layout = layout
        self._is_traced = is_tracing()
        self._epochs: dict[str, tuple[str, float]] = {}
        self._swept: dict[str, StreamState] = {}
        self._shared: dict[str, tuple[SharedAsk[StreamState], SharedAsk[str]]] = {}

    # --- View ---------------------------------------------------------------------------------------------

    async def head(self, run: RunAddress) -> ViewCommit | None:
        """See `View.head`."""
        stream = self._layout.view_stream(run.run_id)
        epoch = await self._epoch(stream)
        message = await self._reader.last(stream, self._layout.subjects.view(*run))
        return None if message is None else _commit(message, epoch)

    async def page(self, run: RunAddress, *, start: StreamStart, max_bytes: int) -> Page:
        """See `View.page`."""
        stream = self._layout.view_stream(run.run_id)
        epoch = await self._epoch(stream)
        found = await self._reader.page(
            stream, self._layout.subjects.view(*run), start.stream_seq if start.epoch == epoch else 1,
            max_messages=PAGE_MESSAGES, max_bytes=max_bytes,
        )  # fmt: skip
        return Page([_commit(message, epoch) for message in found.messages], exhausted=not found.pending)

    async def newer(self, known: Mapping[RunAddress, Position]) -> Mapping[RunAddress, int]:
        """See `View.newer`. Asks only for what was stored since it last asked."""
        by_stream: dict[str, list[RunAddress]] = {}
        for run in known:
            by_stream.setdefault(self._layout.view_stream(run.run_id), []).append(run)
        moved: dict[RunAddress, int] = {}
        states: dict[str, StreamState] = {}
        for stream, runs in by_stream.items():
            states[stream] = await self._state(stream)
            moved.update(await self._newer_in(states[stream], runs))
        self._swept |= states  # only now: what was found before a failure would not be looked for again
        return {run: last for run, last in moved.items() if last > known[run].sequence}

    async def _newer_in(self, state: StreamState, runs: list[RunAddress]) -> dict[RunAddress, int]:
        before = self._swept.get(state.name)
        looked_through = before.last_seq if before is not None and before.epoch == state.epoch else 0
        if looked_through == state.last_seq:
            return {}
        subjects = [self._layout.subjects.view(*run) for run in runs]
        found = await self._reader.multi_last(state.name, subjects, from_seq=looked_through + 1)
        return {self._layout.subjects.run_of(subject): _last_sequence(message) for subject, message in found.items()}

    async def settle(self, run: RunAddress, *, within_s: float) -> bool:
        """See `View.settle`. Of the log it learns the position only; everybody who asks at a time shares the asks."""
        try:
            async with asyncio.timeout(within_s):
                await self._settled(self._layout.log_stream(run.run_id), self._layout.view_stream(run.run_id))
        except TimeoutError:
            return False
        return True

    async def ends(self) -> Mapping[str, StreamStart]:
        """See `View.ends`."""
        layout = self._layout
        streams = [(layout.log_stream_at(at), layout.view_stream_at(at)) for at in range(layout.log_streams)]
        for log_stream, view_stream in streams:
            await self._settled(log_stream, view_stream)
        ends = [await self._state(view_stream) for _, view_stream in streams]
        return {end.name: StreamStart(end.epoch, end.last_seq) for end in ends}

    async def _settled(self, log_stream: str, view_stream: str) -> None:
        log_of, derived_of = self._asks(log_stream, view_stream)
        log = await log_of()
        delay_s, longest_s = SETTLE_POLL_S
        while not _has_derived(await derived_of(), log):
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 1.5, longest_s)

    def _asks(self, log_stream: str, view_stream: str) -> "tuple[SharedAsk[StreamState], SharedAsk[str]]":
        asks = self._shared.get(log_stream)
        if asks is None:
            asks = self._shared[log_stream] = (
                SharedAsk(lambda: self._reader.stream_state(log_stream)),
                SharedAsk(lambda: self._derived(view_stream)),
            )
        return asks

    async def _derived(self, view_stream: str) -> str:
        """The log position of the last message of a view."""
        state = await self._state(view_stream)
        last = await self._reader.get(view_stream, state.last_seq) if state.last_seq else None
        return "" if last is None else last.headers.get(LOG_POSITION, "")

    async def _epoch(self, stream: str) -> str:
        epoch, until = self._epochs.get(stream, ("", 0.0))
        if asyncio.get_running_loop().time() < until:
            return epoch
        return (await self._state(stream)).epoch

    async def _state(self, stream: str) -> StreamState:
        state = await self._reader.stream_state(stream)
        self._epochs[stream] = (state.epoch, asyncio.get_running_loop().time() + EPOCH_AGE_S)
        return state

    # --- Feed ---------------------------------------------------------------------------------------------

    async def commits(self, run: RunAddress, deliver: OnCommit) -> "_Subscribed":
        """See `Feed.commits`. What is asked afterwards over the same connection finds it active."""
        stream = self._layout.view_stream(run.run_id)

        async def arrived(message: Any) -> None:
            began_ns = time.time_ns()
            commit = _live_commit(message, self._epochs.get(stream, ("", 0.0))[0])
            if commit is not None:
                deliver(commit)
                if self._is_traced:
                    _leave_span(message, run, commit, began_ns)

        return await self._subscribe(self._layout.subjects.live(*run), arrived, LIVE_PENDING_BYTES)

    async def previews(self, run: RunAddress, deliver: OnPreviews) -> "_Subscribed":
        """See `Feed.previews`."""

        async def arrived(message: Any) -> None:
            deliver(message.data)

        subscribed = await self._subscribe(self._layout.subjects.preview_view(*run), arrived, PREVIEW_PENDING_BYTES)
        await self._flush()  # nothing is asked afterwards, and nothing repairs what is missed
        return subscribed

    async def _subscribe(self, subject: str, arrived: Callable[[Any], Awaitable[None]], pending: int) -> "_Subscribed":
        try:
            return _Subscribed(await self._connection.nc.subscribe(subject, cb=arrived, pending_bytes_limit=pending))
        except Exception as exc:
            raise as_kernel_error(exc, subject) from exc

    async def _flush(self) -> None:
        try:
            await self._connection.nc.flush(timeout=2)
        except Exception as exc:
            raise as_kernel_error(exc, "subscribe") from exc


def _leave_span(message: Any, run: RunAddress, commit: ViewCommit, began_ns: int) -> None:
    """A commit reached everybody who watches its run here."""
    happened(
        Span.DELIVER, "rl.live", [(message.headers or {}).get(TRACEPARENT)], began_ns=began_ns, kind=SpanKind.CONSUMER,
        attributes={
            Attribute.TENANT_ID: run.tenant_id, Attribute.RUN_ID: run.run_id,
            Attribute.MESSAGING_CONVERSATION: run.run_id, Attribute.SEQUENCE: commit.first_sequence,
        },
    )  # fmt: skip


def _has_derived(derived: str, log: StreamState) -> bool:
    epoch, _, seq = derived.rpartition(":")
    return log.last_seq == 0 or (epoch == log.epoch and seq.isdigit() and int(seq) >= log.last_seq)


class _Subscribed:
    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    async def close(self) -> None:
        try:
            await self._subscription.unsubscribe()
        except Exception as exc:  # noqa: BLE001 - a connection that is gone has no subscriptions
            self.failed = exc


def _commit(message: StoredMessage, epoch: str) -> ViewCommit:
    first, last = _range(message.headers, message.data)
    return ViewCommit(epoch, message.seq, first, last, message.data)


def _last_sequence(message: StoredMessage) -> int:
    return _range(message.headers, message.data)[1]


def _live_commit(message: Any, epoch: str) -> ViewCommit | None:
    headers = message.headers or {}
    seq = headers.get(NATS_SEQUENCE, "")
    if not seq.isdigit():
        return None
    first, last = _range(headers, message.data)
    return ViewCommit(epoch, int(seq), first, last, message.data)


def _range(headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
    first, last = headers.get(FIRST_SEQUENCE, ""), headers.get(LAST_SEQUENCE, "")
    if first.isdigit() and last.isdigit():
        return int(first), int(last)
    commit = decode_raw_commit(body)
    return commit.first_sequence, commit.last_sequence
