"""A durable consumer as seen by one of its clients: one session after the other, whatever happens in between.

It survives a lost connection, a silent server and a deleted durable. A pinned durable has one active client.
Becoming active sets the durable back to what was not acknowledged (or to where the owner says), so nothing is
skipped that the predecessor had in hand.
"""

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import nats.errors

from runlane.kernel.connection import Connection
from runlane.kernel.delivery import Delivery
from runlane.kernel.errors import KernelError, Retryable
from runlane.kernel.jetstream import CONSUMER_NOT_FOUND, ApiError, api
from runlane.kernel.provision import PRIORITY_GROUP, consumer_config, create_consumer
from runlane.kernel.pull import PullSession
from runlane_contracts.streams import ConsumerSpec, Layout
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 5.0
HEALTHY_AFTER_S: Final = 10.0
PULL_EXPIRES_S: Final = 20.0
STANDBY_PULL_EXPIRES_S: Final = 2.0

OnActive = Callable[[], Awaitable[int | None]]
"""Called before the first delivery of a pinned durable; may answer the stream sequence up to which all is done."""


@dataclass(slots=True)
class ConsumerStats:
    """Counts since the start, and where it is. `lag`: how many messages the server had after the last delivery."""

    delivered: int = 0
    acknowledged: int = 0
    retried: int = 0
    buried: int = 0
    recreated: int = 0
    sessions: int = 0
    lag: int = 0
    in_hand: int = 0
    last_stream_seq: int = 0
    is_active: bool = False
    """Deliveries may come: the session is open, and the pin is ours where there is one."""
    trouble: str = ""
    """Why the last session ended or the last handler failed; empty once it works again."""


class DurableConsumer(ABC):
    """What both kinds share: sessions of one durable, one after the other."""

    def __init__(
        self,
        connection: Connection,
        spec: ConsumerSpec,
        layout: Layout,
        *,
        capacity: int | None = None,
        on_active: OnActive | None = None,
    ) -> None:
        self.spec = spec
        self.stats = ConsumerStats()
        self._connection = connection
        self._subjects = next(one.subjects for one in layout.streams() if one.name == spec.stream)
        self._capacity = min(capacity or spec.max_ack_pending, spec.max_ack_pending)
        self._on_active = on_active
        self._pin: str | None = None
        self._stopping = asyncio.Event()
        self._stand_back_until = 0.0
        self._session: PullSession | None = None
        self._room = asyncio.Event()
        self._next_seq = 0  # where a durable that vanished is made anew; 0: at the beginning
        self._made_from = 0  # where it was made anew, until it was set back there
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Take no more; `run` returns when what is in hand is settled."""
        self._stopping.set()
        self._room.set()
        if self._session is not None:
            self._session.lose("stopping")

    @property
    def is_active(self) -> bool:
        """Whether deliveries come here."""
        return self.stats.is_active

    def give_way(self, for_s: float) -> None:
        """Finish what is being handled and let somebody else be active; ask for the pin again after so long."""
        self._stand_back_until = self._loop.time() + for_s
        if self._session is not None:
            self._session.lose("giving way")

    @abstractmethod
    def oldest_in_hand_ns(self) -> int:
        """When the oldest of what is in hand was stored, since 1970; 0: nothing is."""

    # --- for the two kinds ------------------------------------------------------------------------------------

    @abstractmethod
    def _accept(self, delivery: Delivery) -> None: ...

    @abstractmethod
    def _held(self) -> int:
        """How many deliveries are in hand."""

    @abstractmethod
    async def _attend(self, session: PullSession) -> None:
        """Until the session is lost and what must not be interrupted is finished."""

    def _changed(self) -> None:
        """A request ended, or the session."""
        self._room.set()

    async def _sessions(self) -> None:
        """Open one session after the other until stopped."""
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping.is_set():
            began = self._loop.time()
            try:
                reason = await self._one_session()
            except KernelError as exc:
                reason = str(exc)
            self.stats.is_active = False
            if self._stopping.is_set():
                break
            if self._loop.time() - began > HEALTHY_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            self._note(reason)
            await self._pause(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    def _note(self, reason: str) -> None:
        if reason and reason != self.stats.trouble:
            log.info("%s: %s", self.spec.durable, reason, extra={"event": LogEvent.CONSUMER_STANDBY})
        self.stats.trouble = reason

    async def _make_way(self) -> None:  # noqa: B027 - a kind that holds nothing has nothing to wait for
        """After `give_way`: until nothing is handled here any more, or for as long as that may take."""

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _one_session(self) -> str:
        if self.spec.pinned and not await self._become_active():
            return ""
        async with self._open(self._pin, self._expires_s()) as session:
            self._session = session
            if self._stopping.is_set():  # told while there was no session to end
                session.lose("stopping")
            try:
                self.stats.is_active = True
                self.stats.sessions += 1
                await self._pull_while(session, self._attend(session))
            finally:
                self._session = None
        self._pin = session.pin
        if session.is_missing:
            await self._make_anew()
        return session.reason

    def _open(self, pin: str | None, expires_s: float) -> PullSession:
        return PullSession(
            self._connection,
            self.spec.stream,
            self.spec.durable,
            on_delivery=self._received,
            on_change=self._changed,
            group=PRIORITY_GROUP if self.spec.pinned else None,
            pin=pin,
            expires_s=expires_s,
            gapless=self.spec.pinned,  # a shared durable gives its other clients what is missing here
            in_order=self.spec.ack_policy == "all",
        )

    def _expires_s(self) -> float:
        # The pin runs out unless a request renews it.
        return self.spec.pin_ttl_s * 0.4 if self.spec.pinned else PULL_EXPIRES_S

    def _received(self, delivery: Delivery) -> None:
        self.stats.delivered += 1
        self.stats.lag = delivery.pending
        self.stats.last_stream_seq = delivery.stream_seq
        self.stats.trouble = ""
        self._accept(delivery)
        self._room.set()

    async def _pull_while(self, session: PullSession, attending: Awaitable[None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            pulling = tasks.create_task(self._keep_pulling(session))
            try:
                await attending
            finally:
                session.lose("ended")
                pulling.cancel()

    async def _keep_pulling(self, session: PullSession) -> None:
        renew_s = self._expires_s()
        asked_at = 0.0
        while not session.lost.is_set():
            self._room.clear()
            count = self._count_to_ask(session, self._loop.time() - asked_at > renew_s)
            if count:
                asked_at = self._loop.time()
                try:
                    await session.pull(count)
                except KernelError as exc:
                    session.lose(str(exc))
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(renew_s):
                    await self._room.wait()

    def _count_to_ask(self, session: PullSession, overdue: bool) -> int:  # noqa: FBT001
        free = self._capacity - self._held() - session.outstanding
        if free >= max(1, self._capacity // 2) or (free > 0 and session.outstanding == 0):
            return free
        # No room. A pin runs out all the same unless a request renews it now and then.
        return 1 if self.spec.pinned and session.outstanding == 0 and overdue else 0

    # --- the pin ------------------------------------------------------------------------------------------------

    async def _become_active(self) -> bool:
        """Wait for the pin, then set the durable back to what is not done. False when stopped before."""
        if self._stand_back_until > self._loop.time():
            await self._make_way()
            await self._unpin()
            await self._pause(self._stand_back_until - self._loop.time())
        if self._pin is not None and await self._pinned_now() != self._pin:
            self._pin = None
        while self._pin is None:
            if self._stopping.is_set():
                return False
            await self._free_what_nobody_has()
            self._pin = await self._stand_by()
        done_up_to = await self._on_active() if self._on_active is not None else None
        if done_up_to is None and self._made_from:
            # Of one that was just made nothing is acknowledged: the server may take that for the stream's beginning.
            done_up_to = self._made_from - 1
        await self._set_back(done_up_to)
        self._made_from = 0
        log.info("%s: active", self.spec.durable, extra={"event": LogEvent.CONSUMER_ACTIVE})
        return True

    async def _free_what_nobody_has(self) -> None:
        """What a client that died had in hand is nobody's until the acknowledgement wait is over; do not wait.

        A pin comes with a delivery. Where nothing is left to deliver, the last message is given again, so that
        somebody becomes active: it is there when the next message comes, and one that writes an output is asked how
        far it really is, for that may have lost its tail meanwhile.
        """
        info = await self._info()
        if info is None or _pinned_in(info) is not None:
            return
        if info.get("num_ack_pending"):
            await self._set_back(None)
        elif not info.get("num_pending"):
            last = info.get("delivered", {}).get("stream_seq", 0)
            if last:
                await self._set_back(last - 1)

    async def _stand_by(self) -> str | None:
        got = asyncio.Event()
        session = PullSession(
            self._connection, self.spec.stream, self.spec.durable,
            on_delivery=lambda _: got.set(), on_change=got.set, group=PRIORITY_GROUP, expires_s=STANDBY_PULL_EXPIRES_S,
        )  # fmt: skip
        async with session:
            self._session = session
            try:
                # What comes is not used: becoming active sets the durable back.
                await session.pull(1)
                await _first(got.wait(), session.lost.wait(), self._stopping.wait())
            finally:
                self._session = None
            pin = session.pin
        if session.is_missing:
            await self._make_anew()
        elif pin is None and session.reason not in {"", "closed", "stopping"}:
            raise Retryable(session.reason)
        return pin

    async def _pinned_now(self) -> str | None:
        info = await self._info()
        return None if info is None else _pinned_in(info)

    async def _set_back(self, done_up_to: int | None) -> None:
        body = {} if done_up_to is None else {"seq": done_up_to + 1}
        try:
            await api(self._connection, f"CONSUMER.RESET.{self._path}", body, answer=dict[str, Any])
        except ApiError as exc:
            if exc.err_code != CONSUMER_NOT_FOUND:
                raise
            self._next_seq = 0 if done_up_to is None else done_up_to + 1
            await self._make_anew()
            raise Retryable("the durable vanished") from exc

    async def _unpin(self) -> None:
        """Let the next one take over at once, instead of when the pin runs out."""
        if self._pin is None or not self._connection.is_connected:
            return
        await unpin(self._connection, self.spec)
        self._pin = None

    # --- the durable --------------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"{self.spec.stream}.{self.spec.durable}"

    async def _info(self) -> dict[str, Any] | None:
        try:
            return await api(self._connection, f"CONSUMER.INFO.{self._path}", answer=dict[str, Any])
        except ApiError as exc:
            if exc.err_code == CONSUMER_NOT_FOUND:
                return None
            raise

    async def _make_anew(self) -> None:
        """Somebody deleted the durable: make it again where it was, as far as this process knows."""
        self._pin = None
        if await self._info() is not None:
            return
        config = consumer_config(self.spec, self._subjects, start_seq=self._next_seq or None)
        if await create_consumer(self._connection, self.spec, config):
            self.stats.recreated += 1
            self._made_from = self._next_seq
            log.warning(
                "%s: was gone, made again from %d", self.spec.durable, self._next_seq,
                extra={"event": LogEvent.CONSUMER_RECREATED},
            )  # fmt: skip

    async def _answer(self, reply: str, verb: bytes) -> None:
        """Send a verdict. One that gets lost is a redelivery."""
        if not self._connection.is_connected:
            return
        with contextlib.suppress(nats.errors.Error):
            await self._connection.nc.publish(reply, verb)


def _pinned_in(info: dict[str, Any]) -> str | None:
    for group in info.get("priority_groups") or ():
        if group.get("group") == PRIORITY_GROUP:
            return str(group.get("pinned_client_id") or "") or None
    return None


async def _first(*waits: "Awaitable[Any]") -> None:
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unpin(connection: Connection, spec: ConsumerSpec) -> None:
    """Whoever is active on this durable is so no longer; the next one that asks is. Says nothing if it cannot."""
    with contextlib.suppress(KernelError):
        body = {"group": PRIORITY_GROUP}
        await api(
            connection, f"CONSUMER.UNPIN.{spec.stream}.{spec.durable}", body, answer=dict[str, Any], timeout_s=1.0
        )
