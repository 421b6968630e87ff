"""Following a stream: everything after a position, then what comes, in order, for ever.

A raw pull consumer of the tail's own, without acknowledgements, remade whenever something is wrong. nats-py's
own readers restart at the wrong sequence, take 19 s to notice a restarted server, or read a quarter as fast.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.delivery import delivery_of
from runlane.kernel.direct import DirectReader, StoredMessage
from runlane.kernel.errors import Retryable, StreamReplaced
from runlane.kernel.jetstream import API, ApiError, api

_log = logging.getLogger("runlane.kernel.tail")

Start = Literal["after", "last_per_subject", "new"]

HEARTBEAT_S = 2.0
SILENT_AFTER_HEARTBEATS = 2.5
PULL_EXPIRES_S = 20.0
INACTIVE_S = 60.0
_BACKOFF_S = (0.05, 2.0)
_HEALTHY_AFTER_S = 5.0
_OVERHEAD_BYTES = 64 * 1024
_NS = 1_000_000_000
_PULL_ENDED = ("Message Size Exceeds MaxBytes", "Batch Completed", "Exceeded MaxWaiting", "Exceeded MaxRequestBatch",
               "Exceeded MaxRequestExpires", "Exceeded MaxRequestMaxBytes")  # fmt: skip


class Tail:
    """Follows one stream, from `after_seq` on.

    `batches()` yields what has come since it was last asked, in the stream's order, each message once. At most
    `max_messages` and `max_bytes` wait (but never less than the largest message): beyond that the server keeps
    them. Lost deliveries, a lost consumer, a restarted or frozen server and
    a lost link are noticed and read again from the last message yielded.

    `epoch`: the incarnation that `after_seq` belongs to; without it the one found first. `start` says where to
    begin when `after_seq` is 0.
    """

    def __init__(  # noqa: PLR0913 - a subscription has this many sides; all but two are named
        self,
        connection: Connection,
        direct: DirectReader,
        *,
        stream: str,
        subjects: Sequence[str],
        after_seq: int = 0,
        epoch: str = "",
        start: Start = "after",
        max_messages: int = 2048,
        max_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self.stream = stream
        self.epoch = epoch
        self.position = after_seq
        self.caught_up = False
        """Whether everything that was there when the tail last (re)started has been yielded."""
        self._connection = connection
        self._direct = direct
        self._subjects = tuple(subjects)
        self._start: Start = start
        self._max_messages = max_messages
        self._max_bytes = max_bytes

    async def batches(self) -> AsyncGenerator[list[StoredMessage], None]:
        """What is new, for ever. An empty batch says that the tail (re)started and nothing was there to read.

        Raises:
            StreamReplaced: the stream was made anew; the position means nothing in it.
        """
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                async with contextlib.aclosing(self._one_consumer()) as batches:
                    async for batch in batches:
                        if batch:
                            self.position = batch[-1].seq
                        yield batch
            except Retryable as exc:
                _log.info("tail of %s: %s", self.stream, exc)
            # Only what held for a while counts as healthy; a consumer that dies at once must not spin.
            healthy = asyncio.get_running_loop().time() - began > _HEALTHY_AFTER_S
            failures = 0 if healthy else failures + 1
            await asyncio.sleep(_backoff_s(failures))

    async def _one_consumer(self) -> AsyncGenerator[list[StoredMessage], None]:
        """Until something is wrong with it; then it raises Retryable."""
        await self._check_epoch()
        pull = _Pull(
            self._connection, self.stream, self.position, max_messages=self._max_messages, max_bytes=self._max_bytes
        )
        try:
            self.caught_up = await pull.start(self._config()) == 0
            if self.caught_up:
                yield []
            while True:
                batch = await pull.next()
                self.caught_up = self.caught_up or pull.has_all
                yield batch
        finally:
            await pull.stop()

    async def _check_epoch(self) -> None:
        self._direct.forget_epoch(self.stream)
        epoch = await self._direct.epoch(self.stream)
        if self.epoch and epoch != self.epoch:
            raise StreamReplaced(f"{self.stream}: {self.epoch} is now {epoch}")
        self.epoch = epoch

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE_S * _NS),
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.position + 1,
        }
        if not self.position and self._start != "after":
            config["deliver_policy"] = self._start
            del config["opt_start_seq"]
        if len(self._subjects) == 1:
            config["filter_subject"] = self._subjects[0]
        else:
            config["filter_subjects"] = list(self._subjects)
        return config


class _Created(Struct, frozen=True):
    name: str
    num_pending: int = 0


class _Pull:
    """One consumer and what came from it."""

    def __init__(
        self, connection: Connection, stream: str, after_seq: int, *, max_messages: int, max_bytes: int
    ) -> None:
        self._connection = connection
        self._nc = connection.nc
        self._stream = stream
        self._last_seq = after_seq
        self._batch = max(1, max_messages // 2)
        self._max_messages = max_messages
        # A pull must be able to carry the largest message, or the server would refuse it for ever.
        self._pull_bytes = max(max_bytes // 2, connection.max_payload + _OVERHEAD_BYTES)
        self._max_bytes = max(max_bytes, self._pull_bytes)
        self._buffer: list[StoredMessage] = []
        self._buffer_bytes = 0
        self._outstanding = 0  # messages that the one pull under way may still bring
        self.has_all = False  # whether the last message that came was the last one there was
        self._expected_consumer_seq = 1
        self._lost: str | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._inbox = connection.new_inbox()
        self._name = "tail-" + self._inbox.rpartition(".")[2]
        self._subscription: Subscription | None = None
        self._forget_listener: Callable[[], None] = connection.add_disconnect_listener(self._link_lost)
        self._request = msgspec.json.encode({
            "batch": self._batch,
            "max_bytes": self._pull_bytes,
            "expires": int(PULL_EXPIRES_S * _NS),
            "idle_heartbeat": int(HEARTBEAT_S * _NS),
        })  # fmt: skip

    async def start(self, config: dict[str, Any]) -> int:
        """Make the consumer; returns how many messages wait for it."""
        try:
            self._subscription = await self._nc.subscribe(self._inbox, cb=self._on_message)
        except nats.errors.Error as exc:
            raise as_kernel_error(exc, "tail") from exc
        # With a single filter the subject belongs into the request, where permissions can see it.
        suffix = f".{config['filter_subject']}" if "filter_subject" in config else ""
        body = {"stream_name": self._stream, "action": "create", "config": {"name": self._name, **config}}
        try:
            created = await api(
                self._connection, f"CONSUMER.CREATE.{self._stream}.{self._name}{suffix}", body, answer=_Created
            )
        except ApiError as exc:  # "no such stream" among them: it may be on its way
            raise Retryable(str(exc)) from exc
        return created.num_pending

    async def next(self) -> list[StoredMessage]:
        """What has come; waits for the first. Raises Retryable when the consumer is lost and all was handed out."""
        while not self._buffer:
            if self._lost is not None:
                raise Retryable(self._lost)
            await self._pull_more()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._changed.wait()
            if self._outstanding and self._loop.time() - self._heard_at > SILENT_AFTER_HEARTBEATS * HEARTBEAT_S:
                self._lose("silence")
        batch, self._buffer, self._buffer_bytes = self._buffer, [], 0
        if self._lost is None:
            await self._pull_more()
        return batch

    async def stop(self) -> None:
        """Unsubscribe and delete the consumer, if anybody still listens."""
        self._forget_listener()
        if self._subscription is None or self._nc.is_closed:
            return
        with contextlib.suppress(nats.errors.Error):
            await self._subscription.unsubscribe()
            if self._nc.is_connected:
                await self._nc.publish(f"{API}.CONSUMER.DELETE.{self._stream}.{self._name}", b"")

    async def _pull_more(self) -> None:
        # One at a time: the server deals its messages to several pulls in turn, which would leave open how many
        # bytes may still come.
        if self._outstanding or len(self._buffer) > self._max_messages - self._batch:
            return
        if self._buffer and self._buffer_bytes + self._pull_bytes > self._max_bytes:
            return
        self._outstanding = self._batch
        self._heard_at = self._loop.time()
        try:
            await self._nc.publish(
                f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}", self._request, reply=self._inbox
            )
        except nats.errors.Error as exc:
            raise as_kernel_error(exc, "tail") from exc

    async def _on_message(self, message: Msg) -> None:
        self._heard_at = self._loop.time()
        headers = message.headers
        if headers is not None and not message.data and "Status" in headers and not message.reply.startswith("$JS.ACK"):
            self._on_status(headers)
            return
        if self._lost is not None:
            return
        try:
            delivery = delivery_of(message)
        except ValueError as exc:
            self._lose(str(exc))
            return
        if delivery.consumer_seq != self._expected_consumer_seq:
            self._lose(f"delivery {delivery.consumer_seq} came instead of {self._expected_consumer_seq}")
            return
        self._expected_consumer_seq += 1
        self._outstanding = max(0, self._outstanding - 1)
        if delivery.stream_seq <= self._last_seq:
            return  # a stream that lost its tail writes it again, and starts consumers at its end
        self._last_seq = delivery.stream_seq
        self.has_all = delivery.pending == 0
        self._buffer.append(
            StoredMessage(message.subject, delivery.stream_seq, delivery.time_ns, headers or {}, message.data)
        )
        self._buffer_bytes += len(message.data)
        self._changed.set()

    def _on_status(self, headers: dict[str, str]) -> None:
        status, text = headers.get("Status"), headers.get("Description", "")
        if status == "100":
            # A heartbeat says what was delivered: the last deliveries may have got lost, with none after them to tell.
            last = headers.get("Nats-Last-Consumer", "")
            if last.isdigit() and int(last) != self._expected_consumer_seq - 1:
                self._lose(f"{last} deliveries were made, {self._expected_consumer_seq - 1} came")
            return
        if status == "408" or (status == "409" and text in _PULL_ENDED):
            self._outstanding = 0
            self._changed.set()
            return
        self._lose(f"{status} {text}")

    def _link_lost(self) -> None:
        self._lose("the link was lost")

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
        self._changed.set()


def _backoff_s(failures: int) -> float:
    first, most = _BACKOFF_S
    return min(most, first * float(2 ** min(failures, 10))) * random.uniform(0.5, 1.0)  # noqa: S311
