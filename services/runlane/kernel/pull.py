"""One stretch of deliveries of a durable consumer: requests, heartbeats, the pin. It ends as soon as it is in doubt.

nats-py's own `fetch` hides a deleted consumer, sits out its timeout after a server restart and notices no missed
heartbeat. Here every such thing ends the session with a reason; the consumer loop opens the next one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.delivery import Delivery, delivery_of
from runlane.kernel.errors import Retryable
from runlane.kernel.jetstream import API

MISSED_HEARTBEATS = 2.5
MIN_SILENCE_S = 1.0
PULL_BYTES = 16 * 1024 * 1024
"""At most so much is under way for one request; more than the largest message."""
_NS = 1_000_000_000
_PIN = "Nats-Pin-Id"


class PullSession:
    """Pulls from one durable until `lost`.

    `gapless`: it is lost when a delivery did not arrive, which only the one client of a durable can tell.
    `in_order`: also when a message comes again.

    `on_delivery` and `on_change` (a request ended, or the session) are plain functions. `reason` says why it was
    lost, `is_missing` that there is no such consumer (or stream); `pin` is the id under which this is the active
    client of its group.
    """

    def __init__(  # noqa: PLR0913  what a durable has to be told
        self,
        connection: Connection,
        stream: str,
        durable: str,
        *,
        on_delivery: Callable[[Delivery], None],
        on_change: Callable[[], None] = lambda: None,
        group: str | None = None,
        pin: str | None = None,
        expires_s: float = 20.0,
        gapless: bool = True,
        in_order: bool = False,
    ) -> None:
        self.pin = pin
        self.lost = asyncio.Event()
        self.reason = ""
        self.is_missing = False
        self.outstanding = 0
        self._connection = connection
        self._next = f"{API}.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._on_delivery = on_delivery
        self._on_change = on_change
        self._group = group
        self._expires_s = expires_s
        self._heartbeat_s = min(expires_s / 2.5, 5.0)
        self._gapless = gapless
        self._in_order = in_order
        self._consumer_seq = 0
        self._stream_seq = 0
        self._inbox = connection.new_inbox()
        self._subscription: Subscription | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._forget = connection.add_disconnect_listener(lambda: self.lose("the connection was lost"))

    async def __aenter__(self) -> Self:
        """Listen. Raises Retryable."""
        if not self._connection.is_connected:
            self._forget()
            raise Retryable("not connected", retry_after_s=0.2)
        try:
            self._subscription = await self._connection.nc.subscribe(self._inbox, cb=self._on_message)
        except nats.errors.Error as exc:
            self._forget()
            raise as_kernel_error(exc, "pull") from exc
        self._watch = self._loop.call_later(self._heartbeat_s, self._look)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._forget()
        self.lose("closed")
        if self._watch is not None:
            self._watch.cancel()
        if self._subscription is not None and self._connection.is_connected:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    async def pull(self, count: int) -> None:
        """Ask for `count` more. Raises Retryable."""
        request: dict[str, Any] = {
            "batch": count,
            "max_bytes": PULL_BYTES,
            "expires": round(self._expires_s * _NS),
            "idle_heartbeat": round(self._heartbeat_s * _NS),
        }
        if self._group is not None:
            request["group"] = self._group
            if self.pin is not None:
                request["id"] = self.pin
        if self.outstanding == 0:
            self._heard_at = self._loop.time()
        self.outstanding += count
        try:
            await self._connection.nc.publish(self._next, msgspec.json.encode(request), reply=self._inbox)
        except nats.errors.Error as exc:
            raise as_kernel_error(exc, self._next) from exc

    def lose(self, reason: str) -> None:
        """End it: nothing is delivered any more."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()
            self._on_change()

    async def _on_message(self, message: Msg) -> None:
        if self.lost.is_set():
            return
        self._heard_at = self._loop.time()
        headers = message.headers
        if headers and "Status" in headers and not message.reply:
            self._on_status(headers)
            return
        try:
            delivery = delivery_of(message)
        except ValueError as exc:
            self.lose(str(exc))
            return
        self.outstanding = max(0, self.outstanding - 1)
        if headers and _PIN in headers:
            self.pin = headers[_PIN]
        if not self._follows(delivery):
            return
        self._on_delivery(delivery)

    def _follows(self, delivery: Delivery) -> bool:
        if self._gapless and self._consumer_seq and delivery.consumer_seq != self._consumer_seq + 1:
            self.lose(f"delivery {self._consumer_seq + 1} did not arrive")
        elif self._in_order and delivery.stream_seq <= self._stream_seq:
            self.lose(f"message {delivery.stream_seq} came again")
        self._consumer_seq, self._stream_seq = delivery.consumer_seq, delivery.stream_seq
        return not self.lost.is_set()

    def _on_status(self, headers: dict[str, str]) -> None:
        status, text = headers.get("Status", ""), headers.get("Description", "")
        match status:
            case "100":
                return
            case "408":
                self._forget_request(headers)
            case "409" if "Batch Completed" in text:
                return  # a replicated durable says so at once, and delivers when its peers agreed
            case "409" if "Exceeds MaxBytes" in text:
                self._forget_request(headers)
            case "423":
                self.pin = None
                self.lose("another client became the active one")
            case "404" | "503":
                self.is_missing = True
                self.lose(f"no consumer answers ({status})")
            case "409" if "Deleted" in text:
                self.is_missing = True
                self.lose(text)
            case _:
                self.lose(f"{status} {text}")

    def _forget_request(self, headers: dict[str, str]) -> None:
        self.outstanding = max(0, self.outstanding - int(headers.get("Nats-Pending-Messages", "0")))
        self._on_change()

    def _look(self) -> None:
        silent_s = self._loop.time() - self._heard_at
        if self.outstanding and silent_s > max(self._heartbeat_s * MISSED_HEARTBEATS, MIN_SILENCE_S):
            self.lose(f"no heartbeat for {silent_s:.1f} s")
            return
        self._watch = self._loop.call_later(self._heartbeat_s / 2, self._look)
