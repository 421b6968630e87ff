"""Pipelined writing of a whole stream by one writer: every message expects the sequence before it.

Only the first and the last message of a batch ask for an acknowledgement: the first is told why a message at
its place cannot be stored (a full stream, say), the last is taken only if every sequence before it is taken.

What that proves. A message that was lost or refused leaves its place empty, and then no later one is taken: it
is noticed. Only somebody else's message can fill the place, so an acknowledged stream holds at each sequence
what some writer put there who expected exactly that place. Hence the rule for its users: the message at a
sequence must follow from what is before it alone. Two writers that derive alike then agree on every message,
whoever wins. One who writes without an expectation can still slip in unseen inside a batch; that such a writer
has no right to publish is the broker's permissions' part. (`Nats-Expected-Last-Msg-Id` would refuse it, but on
three replicas a mismatch halts the stream for good: server 2.15.1.)
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.errors import Conflict, KernelError, Permanent, Retryable
from runlane.kernel.jetstream import error_in, meaning
from runlane.kernel.publisher import HEADER_SLACK, PubAck, check_size
from runlane.kernel.wire import frame, send_frames
from runlane_contracts.headers import EXPECTED_LAST_SEQUENCE

ChainMessage = tuple[str, bytes, dict[str, str] | None]
"""Subject, data, headers."""

_ACK = msgspec.json.Decoder(PubAck)
_SWEEP_S = 0.1


class _Batch(NamedTuple):
    last_seq: int
    bytes: int
    deadline: float
    stored: "asyncio.Future[int]"


class ChainPublisher:
    """The one writer of a stream, from `last_seq` on.

    After the first failure everything under way and everything later fails with the same error: read where the
    stream is and open a new chain there. `last_seq` is the last sequence that is known to be stored. At most
    `window_bytes` are unacknowledged; `submit` waits beyond that.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        last_seq: int,
        window_batches: int = 64,
        window_bytes: int = 16 * 1024 * 1024,
        timeout_s: float = 10.0,
    ) -> None:
        self.last_seq = last_seq
        self._connection = connection
        self._window_batches = window_batches
        self._window_bytes = window_bytes
        self._timeout_s = timeout_s
        self._next = last_seq
        self._prefix = connection.new_inbox() + "."
        self._in_flight: deque[_Batch] = deque()
        self._in_flight_bytes = 0
        self._failure: KernelError | None = None
        self._sending = asyncio.Lock()
        self._room = asyncio.Event()
        self._subscription: Subscription | None = None
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None
        self._forget_listener = connection.add_disconnect_listener(self._link_lost)

    @property
    def failure(self) -> KernelError | None:
        """Why the chain is broken, if it is."""
        return self._failure

    async def write(self, batch: Sequence[ChainMessage]) -> int:
        """Append the messages, in order, right after all that was submitted before; return the last sequence.

        Raises:
            Conflict: the stream is not where this chain left it. Some of the batch may be stored.
            Overloaded: the stream is full.
            Retryable: no answer; what is stored is unknown.
            Permanent: a message is too large; nothing of the batch was sent and the chain is whole.
        """
        return await (await self.submit(batch))

    async def submit(self, batch: Sequence[ChainMessage]) -> "asyncio.Future[int]":
        """Send the messages and return the future last sequence, to have several batches under way."""
        if not batch:
            raise ValueError("an empty batch")
        size = self._checked_size(batch)
        async with self._sending:
            await self._wait_for_room(size)
            if self._subscription is None:
                await self._start()
            return await self._send(batch, size)

    async def close(self) -> None:
        """Fail what is under way and unsubscribe."""
        self._forget_listener()
        self._fail(Retryable("the chain was closed"))
        await self._connection.unsubscribe(self._subscription)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def _checked_size(self, batch: Sequence[ChainMessage]) -> int:
        # Checked before anything is sent: an oversized message would close the connection, or break the chain.
        unquestioned = self._connection.max_payload - HEADER_SLACK
        for subject, data, headers in batch:
            if len(data) > unquestioned:
                check_size(self._connection, subject, data, {**(headers or {}), EXPECTED_LAST_SEQUENCE: "9" * 20})
        return sum(len(data) for _, data, _ in batch)

    async def _wait_for_room(self, size: int) -> None:
        while self._failure is None and self._in_flight and (
            len(self._in_flight) >= self._window_batches or self._in_flight_bytes + size > self._window_bytes
        ):  # fmt: skip
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise _again(self._failure)

    async def _start(self) -> None:
        if not self._connection.is_connected:
            raise self._fail(Retryable("not connected", retry_after_s=0.2))
        try:
            self._subscription = await self._connection.nc.subscribe(self._prefix + "*", cb=self._on_answer)
        except nats.errors.Error as exc:
            raise self._fail(as_kernel_error(exc, "chain")) from exc

    async def _send(self, batch: Sequence[ChainMessage], size: int) -> "asyncio.Future[int]":
        before, last = self._next, self._next + len(batch)
        frames = [
            frame(
                subject,
                data,
                f"{self._prefix}{seq + 1}" if seq in {before, last - 1} else "",
                {**(headers or {}), EXPECTED_LAST_SEQUENCE: str(seq)},
            )
            for seq, (subject, data, headers) in enumerate(batch, before)
        ]
        stored: asyncio.Future[int] = self._loop.create_future()
        self._in_flight.append(_Batch(last, size, self._loop.time() + self._timeout_s, stored))
        self._in_flight_bytes += size
        self._next = last
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)
        try:
            await send_frames(self._connection, frames)
        except KernelError as exc:
            self._fail(exc)
        except BaseException:
            self._fail(Retryable("sending was interrupted in the middle of a batch"))
            raise
        return stored

    async def _on_answer(self, message: Msg) -> None:
        seq = int(message.subject.rpartition(".")[2])
        failure = _refusal(message, seq)
        if failure is not None:
            self._fail(failure)
            return
        while self._in_flight and self._in_flight[0].last_seq <= seq:
            batch = self._in_flight.popleft()
            self._in_flight_bytes -= batch.bytes
            self.last_seq = batch.last_seq
            if not batch.stored.done():
                batch.stored.set_result(batch.last_seq)
        self._room.set()

    def _expire(self) -> None:
        self._sweep = None
        if not self._in_flight:
            return
        if self._in_flight[0].deadline <= self._loop.time():
            self._fail(Retryable("no acknowledgement in time"))
        else:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)

    def _link_lost(self) -> None:
        self._fail(Retryable("the connection was lost before the acknowledgement came", retry_after_s=0.2))

    def _fail(self, error: KernelError) -> KernelError:
        if self._failure is None:
            self._failure = error
        while self._in_flight:
            batch = self._in_flight.popleft()
            if not batch.stored.done():
                batch.stored.set_exception(_again(self._failure))
        self._in_flight_bytes = 0
        self._room.set()
        return self._failure


def _refusal(message: Msg, seq: int) -> KernelError | None:
    if not message.data:
        return Retryable("chain: no stream takes it at the moment")
    error = error_in(message.data)
    if error is not None:
        return meaning(error, f"chain at {seq}")
    try:
        ack = _ACK.decode(message.data)
    except msgspec.MsgspecError as exc:
        return Permanent(f"not an acknowledgement: {exc}")
    if ack.seq != seq or ack.duplicate:
        return Conflict(f"stored at {ack.seq} instead of {seq}", current_seq=ack.seq)
    return None


def _again(error: KernelError) -> KernelError:
    # The same exception raised in several tasks would collect the tracebacks of all of them.
    match error:
        case Conflict():
            return Conflict(str(error), current_seq=error.current_seq)
        case Retryable():
            return type(error)(str(error), retry_after_s=error.retry_after_s)
        case _:
            return type(error)(str(error)) if type(error) is Permanent else Permanent(str(error))
