"""The only loop that acknowledges: handlers judge, this acts on it. It never ends by itself.

`EachConsumer` hands over single deliveries, several at a time, in order within a key; the handler answers with a
verdict. `BatchConsumer` hands over what has come, in order; the handler answers up to where it is done.
"""

import asyncio
import bisect
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import assert_never

import nats.errors
from nats.aio.msg import Msg

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.dead_letter import DeadLetters
from runlane.kernel.delivery import ACK, IN_PROGRESS, TERMINATE, Delivery, delivery_of, negative, trace_of_delivery
from runlane.kernel.durable import FIRST_BACKOFF_S, DurableConsumer, OnActive
from runlane.kernel.errors import KernelError, Permanent, Retryable
from runlane.kernel.fair import FairSlots
from runlane.kernel.faults import trace_of
from runlane.kernel.jetstream import API
from runlane.kernel.pull import PullSession
from runlane.kernel.verdict import DeadLetter, Done, Retry, Verdict
from runlane_contracts.streams import ConsumerSpec, Layout
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

MAX_FAILURES = 10
"""Unexpected failures of a handler on one message before it is buried. `Retryable` has no such end."""

MAKE_WAY_S = 2.0
"""A handler that takes longer goes on while somebody else is active already; what it decides must bear that."""

HandleBatch = Callable[[list[Delivery]], Awaitable[int]]
"""Answers the stream sequence up to which everything is durably done. It may be below the batch's last, even below
its first; what is not done is not given again within the session, but an answer of a later call covers it too."""


class BatchConsumer(DurableConsumer):
    """Ordered batches for a durable that acknowledges everything up to a message (`ack_policy: all`).

    A handler that raises gets the same again after a while, first one message alone, so that what it cannot take
    stands alone in the log and everything before it is done.

    `pace_s`: least time between the beginnings of two batches. What comes after a quiet time is handled at once; what
    comes thick is handled together, which is what a transaction wants.
    """

    def __init__(  # noqa: PLR0913 - a service names what it needs
        self,
        connection: Connection,
        spec: ConsumerSpec,
        layout: Layout,
        handle: HandleBatch,
        *,
        max_batch: int = 512,
        max_batch_bytes: int = 8 * 1024 * 1024,
        capacity: int | None = None,
        on_active: OnActive | None = None,
        pace_s: float = 0.0,
    ) -> None:
        super().__init__(connection, spec, layout, capacity=capacity, on_active=on_active)
        self._handle = handle
        self._pace_s = pace_s
        self._not_before = 0.0
        self._max_batch = max_batch
        self._max_batch_bytes = max_batch_bytes
        self._batch_limit = max_batch
        self._waiting: deque[Delivery] = deque()
        self._handled: list[Delivery] = []
        self._unacknowledged: deque[tuple[int, str]] = deque()
        self._arrived = asyncio.Event()
        self._failures = 0

    async def run(self) -> None:
        """Until `stop` or cancellation. After `stop` the batch that is being handled is finished."""
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(self._report_progress())
            await self._sessions()
            reporting.cancel()
        await self._unpin()

    def _changed(self) -> None:
        super()._changed()
        self._arrived.set()

    def _accept(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self.stats.in_hand = len(self._waiting)
        self._arrived.set()

    def _held(self) -> int:
        return len(self._waiting) + len(self._unacknowledged)

    def oldest_in_hand_ns(self) -> int:
        """See `DurableConsumer`."""
        first = self._handled or self._waiting
        return first[0].time_ns if first else 0

    async def _attend(self, session: PullSession) -> None:
        self._waiting.clear()
        self._unacknowledged.clear()
        self._handled = []
        while not session.lost.is_set():
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            if self._pace_s:
                await self._keep_pace(session)
            batch = self._take()
            if not batch:
                continue
            self._unacknowledged.extend((one.stream_seq, one.reply) for one in batch)
            self._handled = batch
            try:
                done = await self._handle(batch)
            except Exception as exc:  # noqa: BLE001  whatever it is, the same messages come again
                await self._failed(batch, exc)
                session.lose(f"the handler failed: {type(exc).__name__}")
                return
            self._handled = []
            self._succeeded()
            await self._done(session, done)

    async def _keep_pace(self, session: PullSession) -> None:
        wait_s = self._not_before - self._loop.time()
        if wait_s > 0 and len(self._waiting) < self._batch_limit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.lost.wait(), wait_s)
        self._not_before = self._loop.time() + self._pace_s

    async def _report_progress(self) -> None:
        """What is in hand for long must not be given again: it would come out of order."""
        before = 0
        while True:
            await asyncio.sleep(self.spec.ack_wait_s / 3)
            session = self.stats.sessions
            for seq, reply in [*self._unacknowledged, *((one.stream_seq, one.reply) for one in self._waiting)]:
                if seq <= before and session == self.stats.sessions:
                    await self._answer(reply, IN_PROGRESS)
            before = self.stats.last_stream_seq

    def _take(self) -> list[Delivery]:
        batch: list[Delivery] = []
        size = 0
        while self._waiting and len(batch) < self._batch_limit:
            size += len(self._waiting[0].data)
            if batch and size > self._max_batch_bytes:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _succeeded(self) -> None:
        self._failures = 0
        self._batch_limit = min(self._batch_limit * 2, self._max_batch)

    async def _failed(self, batch: list[Delivery], exc: Exception) -> None:
        self._failures += 1
        self.stats.retried += 1
        self._batch_limit = 1
        wait_s = exc.retry_after_s if isinstance(exc, Retryable) else FIRST_BACKOFF_S
        log.log(
            logging.WARNING if isinstance(exc, KernelError) else logging.ERROR,
            "%s: %d messages from %d on failed (%d in a row): %s", self.spec.durable, len(batch),
            batch[0].stream_seq, self._failures, exc if isinstance(exc, KernelError) else trace_of(exc),
            extra={"event": LogEvent.DELIVERY_RETRIED},
        )  # fmt: skip
        await self._pause(backoff_s(self._failures, first_s=wait_s))

    async def _done(self, session: PullSession, done: int) -> None:
        self._next_seq = max(self._next_seq, done + 1)
        reply, count = "", 0
        while self._unacknowledged and self._unacknowledged[0][0] <= done:
            _, reply = self._unacknowledged.popleft()
            count += 1
        self.stats.in_hand = self._held()
        # After a new session the durable was set back; this subject would speak of deliveries of before.
        if reply and (not session.lost.is_set() or self._stopping.is_set()):
            await self._answer(reply, ACK)
            self.stats.acknowledged += count
        self._room.set()


def backoff_s(attempt: int, *, first_s: float = 0.2, most_s: float = 30.0) -> float:
    """How long to wait after the n-th attempt: twice as long each time, with jitter so that not all come at once."""
    ceiling = min(most_s, first_s * 2 ** min(attempt - 1, 16))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311


HandleEach = Callable[[Delivery], Awaitable[Verdict]]
OnBuried = Callable[[Delivery], Awaitable[None]]
"""Told of a message that is given up, once its dead letter is durable and before the broker forgets it."""
Key = Callable[[Delivery], str]
Share = Callable[[str], str]
Urgent = Callable[[Delivery], bool]


def by_subject(delivery: Delivery) -> str:
    """Messages of one subject are handled in order."""
    return delivery.subject


def all_alike(_key: str) -> str:
    """All keys take turns in the order in which they came."""
    return ""


def never(_delivery: Delivery) -> bool:
    """No message goes before those that came earlier."""
    return False


def in_any_order(delivery: Delivery) -> str:
    """Each message on its own."""
    return str(delivery.stream_seq)


@dataclass(slots=True)
class _Lane:
    """What is in hand of one key. `away`: a message that was given back and must come before the others."""

    waiting: list[Delivery] = field(default_factory=list)
    away: int = 0
    is_running: bool = False


class EachConsumer(DurableConsumer):
    """One delivery at a time per key, `concurrency` keys at once, for a durable that acknowledges each message.

    A message that has to be tried again holds back those of its key only. An `urgent` one goes before those of its
    key that wait. `share` says which keys belong together: their groups take turns, so that what one of them queued
    holds up no other. What is in hand longer than a third of the acknowledgement wait is reported as in progress, so
    it is not given to somebody else.
    """

    def __init__(  # noqa: PLR0913  each by name
        self,
        connection: Connection,
        spec: ConsumerSpec,
        layout: Layout,
        handle: HandleEach,
        *,
        dead_letters: DeadLetters,
        concurrency: int = 16,
        key: Key = by_subject,
        urgent: Urgent = never,
        share: Share = all_alike,
        capacity: int | None = None,
        max_failures: int = MAX_FAILURES,
        on_buried: OnBuried | None = None,
    ) -> None:
        super().__init__(connection, spec, layout, capacity=capacity)
        self._handle = handle
        self._max_failures, self._on_buried = max_failures, on_buried
        self._dead_letters = dead_letters
        self._key = key
        self._urgent = urgent
        self._slots = FairSlots(concurrency)
        self._share = share
        self._lanes: dict[str, _Lane] = {}
        # In hand: stream sequence → session, where the verdict goes, when it was stored.
        self._replies: dict[int, tuple[int, str, int]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until `stop` or cancellation. After `stop` what is being handled is finished, the rest is given back."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            reporting = tasks.create_task(self._report_progress())
            await self._sessions()
            while any(lane.is_running for lane in self._lanes.values()):
                self._room.clear()
                await self._room.wait()
            await self._give_back()
            reporting.cancel()
        await self._unpin()

    def _accept(self, delivery: Delivery) -> None:
        seq = delivery.stream_seq
        known = seq in self._replies
        self._replies[seq] = (self.stats.sessions, delivery.reply, delivery.time_ns)
        self.stats.in_hand = len(self._replies)
        key = self._key(delivery)
        lane = self._lanes.setdefault(key, _Lane())
        if lane.away == seq:
            lane.away = 0
        if not known:
            bisect.insort(lane.waiting, delivery, key=self._rank)
        if not lane.is_running and self._tasks is not None:
            lane.is_running = True
            self._tasks.create_task(self._work_off(key, lane))

    def _rank(self, delivery: Delivery) -> tuple[bool, int]:
        return not self._urgent(delivery), delivery.stream_seq

    def _held(self) -> int:
        return len(self._replies)

    def oldest_in_hand_ns(self) -> int:
        """See `DurableConsumer`."""
        return min((stored_ns for _, _, stored_ns in self._replies.values()), default=0)

    async def _attend(self, session: PullSession) -> None:
        if self.spec.pinned:
            self._forget_waiting()
        await session.lost.wait()

    async def _make_way(self) -> None:
        self._forget_waiting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAKE_WAY_S):
                while any(lane.is_running for lane in self._lanes.values()):
                    self._room.clear()
                    await self._room.wait()

    def _forget_waiting(self) -> None:
        """The durable was set back: all of it comes again, unless somebody else has done it meanwhile."""
        for key, lane in list(self._lanes.items()):
            for delivery in lane.waiting:
                self._replies.pop(delivery.stream_seq, None)
            lane.waiting.clear()
            lane.away = 0
            if not lane.is_running:
                del self._lanes[key]

    async def _work_off(self, key: str, lane: _Lane) -> None:
        try:
            while lane.waiting and not lane.away and not self._stopping.is_set():
                async with self._slots.of(self._share(key)):
                    if not lane.waiting or self._stopping.is_set():
                        continue
                    delivery = lane.waiting.pop(0)
                    if not await self._settle(delivery):
                        lane.away = delivery.stream_seq
                self._room.set()
        finally:
            lane.is_running = False
            if not lane.waiting and not lane.away:
                self._lanes.pop(key, None)
            self._room.set()

    async def _settle(self, delivery: Delivery) -> bool:
        """Whether the message is done with; else it comes again."""
        verdict = await self._judge(delivery)
        match verdict:
            case Done():
                self.stats.acknowledged += 1
                await self._respond(delivery, ACK)
                return True
            case Retry():
                await self._try_again(delivery, verdict)
                return False
            case DeadLetter():
                return await self._bury(delivery, verdict)
            case _:
                assert_never(verdict)

    async def _judge(self, delivery: Delivery) -> Verdict:
        try:
            return await self._handle(delivery)
        except Retryable as exc:
            return Retry(str(exc), exc.retry_after_s if delivery.attempt == 1 else None)
        except Permanent as exc:
            return DeadLetter(str(exc))
        except Exception as exc:  # noqa: BLE001  tried again, and buried in the end
            log.error(  # noqa: TRY400  its text may quote the payload
                "%s: message %d failed at attempt %d: %s", self.spec.durable, delivery.stream_seq, delivery.attempt,
                trace_of(exc), extra={"event": LogEvent.DELIVERY_RETRIED, **trace_of_delivery(delivery)},
            )  # fmt: skip
            reason = f"{type(exc).__name__} in the handler"
            return DeadLetter(reason) if delivery.attempt >= self._max_failures else Retry(reason)

    async def _try_again(self, delivery: Delivery, verdict: Retry) -> None:
        self.stats.retried += 1
        self.stats.trouble = verdict.reason
        wait_s = backoff_s(delivery.attempt) if verdict.after_s is None else verdict.after_s
        await self._respond(delivery, negative(wait_s))

    async def _bury(self, delivery: Delivery, verdict: DeadLetter) -> bool:
        try:
            await self._dead_letters.bury(delivery, verdict.reason)
            await self._tell_buried(delivery)
        except KernelError as exc:
            await self._try_again(delivery, Retry(f"no dead letter could be written: {exc}"))
            return False
        self.stats.buried += 1
        log.warning(
            "%s: message %d buried: %s", self.spec.durable, delivery.stream_seq, verdict.reason,
            extra={"event": LogEvent.DELIVERY_BURIED, **trace_of_delivery(delivery)},
        )  # fmt: skip
        await self._respond(delivery, TERMINATE)
        return True

    async def _tell_buried(self, delivery: Delivery) -> None:
        if self._on_buried is None:
            return
        try:
            await self._on_buried(delivery)
        except KernelError:
            raise
        except Exception as exc:  # noqa: BLE001  it is given up all the same
            log.error(  # noqa: TRY400
                "%s: message %d was buried, and nobody could be told: %s", self.spec.durable, delivery.stream_seq,
                trace_of(exc), extra={"event": LogEvent.DELIVERY_BURIED, **trace_of_delivery(delivery)},
            )  # fmt: skip

    async def _respond(self, delivery: Delivery, verb: bytes) -> None:
        session, reply, _ = self._replies.pop(delivery.stream_seq, (0, "", 0))
        self.stats.in_hand = len(self._replies)
        # A pinned durable is set back by each session; an older answer would speak of other deliveries.
        if reply and (not self.spec.pinned or session == self.stats.sessions):
            await self._answer(reply, verb)

    async def _report_progress(self) -> None:
        before: set[int] = set()
        while True:
            await asyncio.sleep(self.spec.ack_wait_s / 3)
            for seq in before & self._replies.keys():
                session, reply, _ = self._replies[seq]
                if session == self.stats.sessions or not self.spec.pinned:
                    await self._answer(reply, IN_PROGRESS)
            before = set(self._replies)

    async def _give_back(self) -> None:
        for _, reply, _ in list(self._replies.values()):
            await self._answer(reply, negative(0))
        self._replies.clear()


# --- one at a time, for those who wait on behalf of somebody else -----------------------------------------------


async def pull_one(connection: Connection, spec: ConsumerSpec, *, wait_s: float) -> Delivery | None:
    """The next message of a shared durable, or None after `wait_s`. It has to be answered with `answer`.

    Raises:
        Retryable: there is no such consumer, or the connection was lost.
    """
    got: list[Delivery] = []
    changed = asyncio.Event()

    def take(delivery: Delivery) -> None:
        got.append(delivery)
        changed.set()

    session = PullSession(
        connection, spec.stream, spec.durable, on_delivery=take, on_change=changed.set,
        expires_s=max(wait_s, 0.1), gapless=False,
    )  # fmt: skip
    async with session:
        await session.pull(1)
        await changed.wait()
    if not got and session.reason != "closed":
        raise Retryable(session.reason)
    return got[0] if got else None


async def pull_now(connection: Connection, spec: ConsumerSpec, *, timeout_s: float = 5.0) -> Delivery | None:
    """The next message of a shared durable if there is one just now. It has to be answered with `answer`.

    Raises:
        Retryable: there is no such consumer, or no answer came; what was on its way comes again.
    """
    message = await _first_answer(connection, f"{API}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}", timeout_s)
    status = (message.headers or {}).get("Status")
    if status in {"404", "408"}:
        return None
    if status is not None:
        raise Retryable(f"{spec.durable}: {status} {(message.headers or {}).get('Description', '')}".rstrip())
    try:
        return delivery_of(message)
    except ValueError as exc:
        raise Retryable(str(exc)) from exc


async def _first_answer(connection: Connection, subject: str, timeout_s: float) -> Msg:
    """What comes to an inbox of its own: a delivery keeps the subject it was stored under. Raises Retryable."""
    got: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def take(message: Msg) -> None:
        if not got.done():
            got.set_result(message)

    if not connection.is_connected:
        raise Retryable("not connected", retry_after_s=0.2)
    inbox = connection.new_inbox()
    try:
        subscription = await connection.nc.subscribe(inbox, cb=take)
        try:
            await connection.nc.publish(subject, b'{"batch":1,"no_wait":true}', reply=inbox)
            async with asyncio.timeout(timeout_s):
                return await got
        finally:
            await connection.unsubscribe(subscription)
    except TimeoutError as exc:
        raise Retryable(f"{subject}: no answer") from exc
    except nats.errors.Error as exc:
        raise as_kernel_error(exc, subject) from exc


async def answer(
    connection: Connection, delivery: Delivery, verdict: Verdict, *, dead_letters: DeadLetters | None = None
) -> None:
    """Act on the verdict over a delivery of `pull_one`.

    Raises:
        Retryable: the answer could not be sent, or the dead letter not written; the message comes again.
    """
    match verdict:
        case Done():
            verb = ACK
        case Retry():
            verb = negative(backoff_s(delivery.attempt) if verdict.after_s is None else verdict.after_s)
        case DeadLetter():
            if dead_letters is not None:
                await dead_letters.bury(delivery, verdict.reason)
            verb = TERMINATE
        case _:
            assert_never(verdict)
    if not connection.is_connected:
        raise Retryable("not connected", retry_after_s=0.2)
    with contextlib.suppress(nats.errors.Error):
        await connection.nc.publish(delivery.reply, verb)
