"""Reading stored messages without a consumer: by sequence, the last of a subject, pages of a subject.

JetStream's direct get, batched, over one callback inbox. Any replica may answer, so on a replicated stream an
answer can be a moment behind; whoever must not miss what was just written checks the sequence it got and looks
again.
"""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.errors import KernelError, Permanent, Retryable
from runlane.kernel.jetstream import API, STREAM_NOT_FOUND, ApiError, api
from runlane.kernel.pulse import Pulse
from runlane_contracts.headers import NATS_LAST_SEQUENCE, NATS_SEQUENCE, NATS_SUBJECT, NATS_TIME_STAMP

PAGE_MESSAGES = 1024
PAGE_BYTES = 4 * 1024 * 1024
MULTI_LAST_SUBJECTS = 512  # the server answers for 1024 at most
EPOCH_REMEMBERED_S = 5.0
_SWEEP_S = 0.1


class StoredMessage(Struct, frozen=True):
    """A message and where the stream keeps it. `time_ns`: when it was stored, since 1970."""

    subject: str
    seq: int
    time_ns: int
    headers: dict[str, str]
    data: bytes


class Page(Struct, frozen=True):
    """Consecutive messages of one subject; `pending` more were there when it was made."""

    messages: list[StoredMessage]
    pending: int


class StreamState(Struct, frozen=True):
    """What a stream holds. `epoch` names its incarnation: it changes when the stream is made anew."""

    name: str
    epoch: str
    first_seq: int
    last_seq: int
    messages: int
    bytes: int


async def subjects_of(connection: Connection, stream: str, subjects: str, *, timeout_s: float = 5.0) -> dict[str, int]:
    """The subjects that fit a wildcard, and how many messages the stream holds of each; meant for few subjects."""
    info = await api(
        connection, f"STREAM.INFO.{stream}", {"subjects_filter": subjects}, answer=_Counted, timeout_s=timeout_s
    )
    return info.state.subjects or {}


class DirectReader:
    """Direct-get reads over one connection. At most `concurrency` pages are under way.

    Every method raises `Retryable` when no answer comes, comes late or comes incomplete; with a `pulse`, as soon as the
    broker is silent.
    """

    def __init__(
        self, connection: Connection, *, timeout_s: float = 5.0, concurrency: int = 16, pulse: Pulse | None = None
    ) -> None:
        self._connection = connection
        self._pulse = pulse
        self._timeout_s = timeout_s
        self._prefix = connection.new_inbox() + "."
        self._prefix_length = len(self._prefix)
        self._answers: dict[str, _Answer] = {}
        self._token = 0
        self._slots = asyncio.Semaphore(concurrency)
        self._starting = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None
        self._epochs: dict[str, tuple[str, float]] = {}
        self._forget_listener = connection.add_disconnect_listener(self._link_lost)

    @property
    def connection(self) -> Connection:
        """What it reads over."""
        return self._connection

    async def epoch(self, stream: str) -> str:
        """The stream's epoch, remembered for a few seconds, until the link is lost, or until `forget_epoch`."""
        known = self._epochs.get(stream)
        if known is not None and self._loop.time() - known[1] < EPOCH_REMEMBERED_S:
            return known[0]
        return (await self.stream_state(stream)).epoch

    def forget_epoch(self, stream: str) -> None:
        """Ask for it again next time: something does not fit."""
        self._epochs.pop(stream, None)

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of a subject."""
        return _first(await self._ask(f"{API}.DIRECT.GET.{stream}.{subject}", b"", single=True))

    async def get(self, stream: str, seq: int) -> StoredMessage | None:
        """The message at a sequence."""
        return _first(await self._ask(f"{API}.DIRECT.GET.{stream}", b'{"seq":%d}' % seq, single=True))

    async def page(
        self,
        stream: str,
        subject: str,
        start_seq: int = 1,
        *,
        max_messages: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
    ) -> Page:
        """Messages of a subject (or wildcard) from a sequence on; empty at the end. One may exceed `max_bytes`."""
        query = {
            "next_by_subj": subject,
            "seq": max(1, start_seq),
            "batch": max_messages,
            "max_bytes": max(max_bytes, 1),
        }
        answer = await self._ask(f"{API}.DIRECT.GET.{stream}", msgspec.json.encode(query))
        return Page(answer.messages, answer.pending)

    async def pages(
        self,
        stream: str,
        subject: str,
        start_seq: int = 1,
        *,
        max_messages: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
    ) -> AsyncIterator[Page]:
        """Pages of a subject from a sequence up to its end as it is then."""
        while True:
            page = await self.page(stream, subject, start_seq, max_messages=max_messages, max_bytes=max_bytes)
            if page.messages:
                yield page
            if not page.pending or not page.messages:
                return
            start_seq = page.messages[-1].seq + 1

    async def multi_last(
        self, stream: str, subjects: Sequence[str], *, up_to_seq: int | None = None, from_seq: int = 1
    ) -> dict[str, StoredMessage]:
        """The last message of each subject, by subject; without those that have none.

        With `up_to_seq` it is the state of the stream right after that sequence. With `from_seq`, subjects whose
        last message is older are left out. Any number of plain subjects; a wildcard may match at most 1024.
        """
        found: dict[str, StoredMessage] = {}
        for at in range(0, len(subjects), MULTI_LAST_SUBJECTS):
            query: dict[str, Any] = {"multi_last": list(subjects[at : at + MULTI_LAST_SUBJECTS])}
            if up_to_seq is not None:
                query["up_to_seq"] = up_to_seq
            if from_seq > 1:
                query["seq"] = from_seq
            while True:
                answer = await self._ask(f"{API}.DIRECT.GET.{stream}", msgspec.json.encode(query))
                found.update((message.subject, message) for message in answer.messages)
                if not answer.pending or not answer.messages:
                    break
                query["seq"] = answer.messages[-1].seq + 1
                query["up_to_seq"] = answer.up_to_seq or up_to_seq
        return found

    async def stream_state(self, stream: str) -> StreamState:
        """What the stream holds, and its epoch. A stream that does not exist is `Retryable`: it may be coming."""
        try:
            async with self._heard():
                info = await api(
                    self._connection, f"STREAM.INFO.{stream}", answer=_StreamInfo, timeout_s=self._timeout_s
                )
        except ApiError as exc:
            if exc.err_code == STREAM_NOT_FOUND:
                raise Retryable(f"there is no stream {stream}") from exc
            raise
        state, epoch = info.state, _epoch(stream, info.created)
        self._epochs[stream] = (epoch, self._loop.time())
        return StreamState(stream, epoch, state.first_seq, state.last_seq, state.messages, state.bytes)

    async def count(self, stream: str, subjects: str) -> int:
        """How many messages the stream holds of subjects that fit a wildcard; meant for few subjects."""
        return sum((await subjects_of(self._connection, stream, subjects, timeout_s=self._timeout_s)).values())

    async def close(self) -> None:
        """Fail what is under way and unsubscribe."""
        self._forget_listener()
        self._link_lost()
        await self._connection.unsubscribe(self._subscription)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def _heard(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._pulse is None else self._pulse.heard()

    async def _ask(self, subject: str, query: bytes, *, single: bool = False) -> "_Answer":
        async with self._heard(), self._slots:
            if not self._connection.is_connected:
                raise Retryable("not connected", retry_after_s=0.2)
            if self._subscription is None:
                await self._start()
            self._token += 1
            token = str(self._token)
            answer = _Answer(single, self._loop.create_future(), self._loop.time() + self._timeout_s)
            self._answers[token] = answer
            if self._sweep is None:
                self._sweep = self._loop.call_later(_SWEEP_S, self._expire)
            try:
                await self._connection.nc.publish(subject, query, reply=self._prefix + token)
                await answer.done
            except nats.errors.Error as exc:
                raise as_kernel_error(exc, subject) from exc
            finally:
                self._answers.pop(token, None)
            return answer

    async def _start(self) -> None:
        async with self._starting:
            if self._subscription is None:
                try:
                    self._subscription = await self._connection.nc.subscribe(self._prefix + "*", cb=self._on_message)
                except nats.errors.Error as exc:
                    raise as_kernel_error(exc, "direct get") from exc

    async def _on_message(self, message: Msg) -> None:
        answer = self._answers.get(message.subject[self._prefix_length :])
        if answer is not None and not answer.done.done():
            answer.take(message, self._loop.time() + self._timeout_s)

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for answer in self._answers.values():
            if answer.deadline <= now:
                answer.fail(Retryable("no answer in time"))
        if self._answers:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)

    def _link_lost(self) -> None:
        self._epochs.clear()  # whoever answers next may have another store
        for answer in self._answers.values():
            answer.fail(Retryable("the connection was lost before the answer came", retry_after_s=0.2))


class _Answer:
    """What has come of one answer so far."""

    def __init__(self, single: bool, done: "asyncio.Future[None]", deadline: float) -> None:  # noqa: FBT001
        self.messages: list[StoredMessage] = []
        self.pending = 0
        self.up_to_seq: int | None = None
        self.done = done
        self.deadline = deadline
        self._single = single

    def take(self, message: Msg, deadline: float) -> None:
        headers = message.headers or {}
        self.deadline = deadline
        if NATS_SEQUENCE in headers:
            self._take_stored(message, headers)
        else:
            self._take_status(headers)

    def fail(self, error: KernelError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _take_stored(self, message: Msg, headers: dict[str, str]) -> None:
        try:
            stored = _stored(message, headers)
            before = int(headers.get(NATS_LAST_SEQUENCE, "0"))
        except (KeyError, ValueError) as exc:
            self.fail(Permanent(f"not a direct-get answer: {exc!r}"))
            return
        if not self._single and before and (not self.messages or before != self.messages[-1].seq):
            self.fail(Retryable("a part of the answer did not arrive"))
            return
        self.messages.append(stored)
        if self._single:
            self.done.set_result(None)

    def _take_status(self, headers: dict[str, str]) -> None:
        status = headers.get("Status", "")
        if status == "204":
            self._end(headers)
        elif status == "404":
            self.done.set_result(None)
        elif status == "413":
            self.fail(Permanent("more subjects match than the server answers for"))
        else:
            self.fail(Retryable(f"direct get: {status} {headers.get('Description', '')}"))

    def _end(self, headers: dict[str, str]) -> None:
        self.pending = int(headers.get("Nats-Num-Pending", "0"))
        up_to = headers.get("Nats-UpTo-Sequence")
        self.up_to_seq = int(up_to) if up_to else None
        last = int(headers.get(NATS_LAST_SEQUENCE, "0"))
        if last != (self.messages[-1].seq if self.messages else 0):
            self.fail(Retryable("the end of the answer did not arrive"))
            return
        self.done.set_result(None)


def _first(answer: _Answer) -> StoredMessage | None:
    return answer.messages[0] if answer.messages else None


def _stored(message: Msg, headers: dict[str, str]) -> StoredMessage:
    return StoredMessage(
        headers[NATS_SUBJECT],
        int(headers[NATS_SEQUENCE]),
        time_ns(headers[NATS_TIME_STAMP]),
        headers,
        message.data,
    )


def time_ns(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time in UTC, as the server writes it."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0")[:9] or 0)


class _State(Struct, frozen=True):
    first_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    bytes: int = 0


class _SubjectCounts(Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _Counted(Struct, frozen=True):
    state: _SubjectCounts


class _StreamInfo(Struct, frozen=True):
    created: str
    state: _State


def _epoch(stream: str, created: str) -> str:
    digest = hashlib.sha256(f"{stream}\n{time_ns(created)}".encode()).digest()
    return base64.b32encode(digest[:5]).decode().lower()
