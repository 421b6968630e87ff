"""Windowed publishing to JetStream: many acknowledgements under way, each with its own future.

nats-py's own asynchronous publish never resolves on a server error and loses its futures on a reconnect. Here
every future ends: with the acknowledgement, with the server's error, at its deadline, or when the link breaks.
"""

import asyncio
from types import TracebackType
from typing import Protocol, Self

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from runlane.kernel.connection import PENDING_BYTES, Connection, as_kernel_error
from runlane.kernel.errors import KernelError, Permanent, Retryable
from runlane.kernel.jetstream import error_in, meaning

_SWEEP_S = 0.1
HEADER_SLACK = 64 * 1024
_CALM_BYTES = PENDING_BYTES // 2  # what the client buffers before it makes publishers wait for the socket


class PubAck(Struct, frozen=True):
    """The message is stored. `duplicate`: it was there already, at `seq`."""

    stream: str
    seq: int
    duplicate: bool = False


_ACK = msgspec.json.Decoder(PubAck)

AckFuture = asyncio.Future[PubAck]


class Publisher(Protocol):
    """What the log and the buckets need of a publisher."""

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck:
        """As `WindowedPublisher.publish`."""
        ...


class WindowedPublisher:
    """At most `window` publishes are unanswered; the next one waits for its turn.

    Holds no payload: what is sent and unanswered is its caller's to repeat, under the same `Nats-Msg-Id`.
    Serves one event loop. Works from construction on; `close()` fails what is still under way.
    """

    def __init__(self, connection: Connection, *, window: int = 512) -> None:
        self._connection = connection
        self._nc = connection.nc
        self._window = window
        self._prefix = connection.new_inbox() + "."
        self._prefix_length = len(self._prefix)
        self._pending: dict[str, tuple[AckFuture, float]] = {}
        self._token = 0
        self._slots = asyncio.Semaphore(window)
        self._starting = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._forget_listener = connection.add_disconnect_listener(self._link_lost)

    @property
    def in_flight(self) -> int:
        """How many publishes wait for their answer."""
        return len(self._pending)

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck:
        """Publish and wait until the message is stored.

        Raises:
            Conflict: an expected sequence in the headers does not hold.
            Overloaded: the stream is full.
            Retryable: no answer; the message may or may not be stored.
            Permanent: it can never be stored.
        """
        return await (await self.send(subject, data, headers, timeout_s=timeout_s))

    async def send(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> AckFuture:
        """Publish and return the future acknowledgement, to have many under way. Sends in the order of calls.

        Raises:
            Retryable: there is no connection; nothing was sent.
            Permanent: it can never be stored.
        """
        if self._subscription is None:
            await self._start()
        await self._slots.acquire()
        self._token += 1
        token = str(self._token)
        loop = self._loop
        future: AckFuture = loop.create_future()
        nc, size = self._nc, len(data)
        try:
            if self._closed or not nc.is_connected:
                # A publish while disconnected would be buffered and delivered at some later time.
                raise Retryable("not connected", retry_after_s=0.2)  # noqa: TRY301 - the slot is given back below
            self._pending[token] = (future, loop.time() + timeout_s)
            if size + nc.pending_data_size < _CALM_BYTES and size < nc.max_payload - HEADER_SLACK:
                await nc.publish(subject, data, self._prefix + token, headers)
            else:
                check_size(self._connection, subject, data, headers)
                await send_now(self._connection, subject, data, self._prefix + token, headers)
        except nats.errors.Error as exc:
            self._take_back(token, future)
            raise as_kernel_error(exc, subject) from exc
        except BaseException:
            self._take_back(token, future)
            raise
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)
        return future

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._pending:
            await asyncio.wait([future for future, _ in self._pending.values()])

    async def close(self) -> None:
        """Fail what is under way and unsubscribe."""
        self._closed = True
        self._forget_listener()
        self._fail_all("the publisher was closed")
        if self._sweep is not None:
            self._sweep.cancel()
        await self._connection.unsubscribe(self._subscription)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def _take_back(self, token: str, future: AckFuture) -> None:
        if self._pending.pop(token, None) is not None or not future.done():
            self._slots.release()
        if not future.cancel() and not future.cancelled():
            future.exception()  # failed while it was being sent: the caller gets this error instead

    async def _start(self) -> None:
        async with self._starting:
            if self._subscription is None:
                if self._closed or not self._nc.is_connected:
                    raise Retryable("not connected", retry_after_s=0.2)
                try:
                    self._subscription = await self._nc.subscribe(self._prefix + "*", cb=self._on_answer)
                except nats.errors.Error as exc:
                    raise as_kernel_error(exc, "publisher") from exc

    async def _on_answer(self, message: Msg) -> None:
        entry = self._pending.pop(message.subject[self._prefix_length :], None)
        if entry is None:
            return  # came after its deadline
        self._slots.release()
        future = entry[0]
        if future.done():
            return
        data = message.data
        if b'"error"' not in data and data:
            try:
                future.set_result(_ACK.decode(data))
            except msgspec.MsgspecError as exc:
                future.set_exception(Permanent(f"not an acknowledgement: {exc}"))
            return
        future.set_exception(_refusal(message))

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        late = [token for token, (_, deadline) in self._pending.items() if deadline <= now]
        for token in late:
            self._fail(token, Retryable("no acknowledgement in time"))
        if self._pending:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)

    def _link_lost(self) -> None:
        self._fail_all("the connection was lost before the acknowledgement came")

    def _fail_all(self, reason: str) -> None:
        for token in tuple(self._pending):
            self._fail(token, Retryable(reason, retry_after_s=0.2))

    def _fail(self, token: str, error: KernelError) -> None:
        future, _ = self._pending.pop(token)
        self._slots.release()
        if not future.done():
            future.set_exception(error)


async def send_now(
    connection: Connection, subject: str, data: bytes, reply: str, headers: dict[str, str] | None
) -> None:
    """Hand one message to the client. A cancellation that the client swallows under back-pressure is raised."""
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    try:
        await connection.nc.publish(subject, data, reply=reply, headers=headers)
    except nats.errors.Error as exc:
        raise as_kernel_error(exc, subject) from exc
    if task is not None and task.cancelling() > cancelled_before:
        raise asyncio.CancelledError


def check_size(connection: Connection, subject: str, data: bytes, headers: dict[str, str] | None) -> None:
    """Refuse what the server would answer by closing the connection: it counts headers too.

    Raises:
        Permanent: larger than the server takes.
    """
    size, limit = len(data), connection.max_payload
    if size <= limit - HEADER_SLACK:
        return
    if headers:
        size += 12 + sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
    if size > limit:
        raise Permanent(f"{subject}: {size} bytes with headers, the server takes {limit}")


def _refusal(message: Msg) -> KernelError:
    status = (message.headers or {}).get("Status")
    if status == "503":
        return Retryable(f"{message.subject}: no stream takes it at the moment")
    error = error_in(message.data)
    if error is not None:
        return meaning(error, "publish")
    return Retryable(f"an empty answer, status {status}")
