"""One connection: what the client asks, what it is answered, and how it ends.

One task reads. What can be answered at once it answers itself, and it reads nothing more while the client takes
nothing; what has to wait runs beside, so many at a time. Facts and previews are the pump's business.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from starlette.types import Receive

from runlane.edge_gateway.frames import Chunk
from runlane.edge_gateway.lanes import Gate
from runlane.edge_gateway.websocket import jsonrpc
from runlane.edge_gateway.websocket.commands import CommandGateway
from runlane.edge_gateway.websocket.failures import log
from runlane.edge_gateway.websocket.frames import text_frame
from runlane.edge_gateway.websocket.jsonrpc import Batch, Call, Malformed
from runlane.edge_gateway.websocket.limits import SocketLimits
from runlane.edge_gateway.websocket.methods import Answer, Methods, Services
from runlane.edge_gateway.websocket.pump import Pump
from runlane.edge_gateway.websocket.subscription import Subscription
from runlane.hosting.authorizer import Principal
from runlane.hosting.websocket_protocol import WebSocketProtocol
from runlane.kernel.faults import trace_of
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason
from runlane_contracts.telemetry import LogEvent
from runlane_contracts.websocket import MAX_DEPTH, CloseCode, Expiring, RpcCode

T = TypeVar("T")

_CLOSES: Mapping[EndReason, CloseCode] = {
    EndReason.SHUTDOWN: CloseCode.RESTART,
    EndReason.LIFETIME: CloseCode.GOING_AWAY,
    EndReason.UNAUTHORIZED: CloseCode.UNAUTHORIZED,
    EndReason.SLOW_READER: CloseCode.POLICY,
}
_BINARY = "binary frames are not spoken here"


@dataclass(frozen=True, slots=True)
class Closing:
    """Why the connection ends. `reason`: what its subscriptions are told; None: nothing."""

    code: CloseCode
    text: str
    reason: EndReason | None = None


class Session:
    """What the gateway holds of one connection."""

    def __init__(
        self,
        socket: WebSocketProtocol,
        receive: Receive,
        principal: Principal,
        bearer: str,
        *,
        services: Services,
        commands: CommandGateway,
        limits: SocketLimits,
        jitter: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._receive = receive
        self._services = services
        self._limits = limits
        self._jitter = jitter
        self._pump = Pump(socket, Gate(limits.lanes), clock=self._loop.time, on_end=self._ended)
        self._methods = Methods(
            principal, bearer, services=services, commands=commands, limits=limits, pump=self._pump,
            on_stop=self._ended,
        )  # fmt: skip
        self._working: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup
        self._over: asyncio.Future[Closing | None] = self._loop.create_future()
        self._room: asyncio.Future[None] | None = None
        self._opened_at = self._asked_at = self._progress_at = self._loop.time()
        self._backlog = 0
        self._warned_of: datetime | None = None

    @property
    def principal(self) -> Principal:
        """As whom the client acts now."""
        return self._methods.principal

    async def run(self) -> None:
        """Serve until one of the two ends it."""
        self._socket.listener = self._moved
        try:
            async with asyncio.TaskGroup() as self._tasks:
                reading = self._tasks.create_task(self._read())
                closing = await self._over
                for task in (reading, *self._working):
                    task.cancel()
                if closing is not None:
                    self._say_goodbye(closing)
        except Exception as exc:  # noqa: BLE001 - a fault of ours ends this connection, by name, and no other
            log.error("a connection failed: %s", trace_of(exc), extra={"event": LogEvent.HTTP_FAILED})
            self._socket.say_close(CloseCode.INTERNAL, "a fault of ours", within_s=self._limits.goodbye_s)
        finally:
            self._socket.listener = None
            await self._methods.release()

    # --- in -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                self._finish(None)
                return
            text = message.get("text")
            if text is None:
                self._write(jsonrpc.malformed(Malformed(jsonrpc.NO_ID, RpcCode.INVALID_REQUEST, _BINARY)))
                self._finish(Closing(CloseCode.UNSUPPORTED, _BINARY))
                return
            await self._serve(text.encode())

    async def _serve(self, text: bytes) -> None:
        if len(text) > self._limits.max_message_bytes:
            detail = f"more than {self._limits.max_message_bytes} bytes"
            what = Malformed(jsonrpc.NO_ID, RpcCode.INVALID_REQUEST, detail, Code.PAYLOAD_TOO_LARGE)
            self._write(jsonrpc.malformed(what))
            self._finish(Closing(CloseCode.TOO_LARGE, detail))
            return
        match jsonrpc.read(text, max_batch=self._limits.max_requests, max_depth=MAX_DEPTH):
            case Malformed() as what:
                await self._send(jsonrpc.malformed(what))
            case Batch() as batch:
                await self._begin(self._reply_to_all, batch, [one for one in batch.calls if _waits(one)])
            case call:
                await self._begin(self._reply, call, [call] if _waits(call) else [])

    async def _begin(self, reply: Callable[[T, bool], Coroutine[Any, Any, None]], work: T, waiting: list[Any]) -> None:
        """Answer at once, or beside the others if some of it has to wait for something."""
        is_full = len(self._working) + len(waiting) > self._limits.max_requests
        if is_full or not waiting:
            await reply(work, is_full)
        else:
            task = self._tasks.create_task(reply(work, False))
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    # --- out ----------------------------------------------------------------------------------------------

    async def _reply(self, call: Call, is_full: bool) -> None:  # noqa: FBT001
        answer = await self._methods.answer(call, is_full=is_full)
        if call.id is not None:
            await self._send(answer.text)
        answer.then()

    async def _reply_to_all(self, batch: Batch, is_full: bool) -> None:  # noqa: FBT001
        answers: list[Answer] = []
        for one in batch.calls:
            if isinstance(one, Malformed):
                answers.append(Answer(jsonrpc.malformed(one)))
            else:
                answer = await self._methods.answer(one, is_full=is_full)
                answers.append(answer if one.id is not None else Answer(b"", answer.then))
        texts = [answer.text for answer in answers if answer.text]
        if texts:
            await self._send(jsonrpc.batch(texts))
        for answer in answers:
            answer.then()

    async def _send(self, text: bytes) -> None:
        """Write an answer once the client takes something."""
        while self._socket.is_paused and self._socket.is_open:
            if self._room is None or self._room.done():
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)
        self._write(text)

    def _write(self, text: bytes) -> None:
        self._pump.outlet.write(Chunk(text_frame(text)))

    def _moved(self) -> None:
        """There is room again, or the connection is gone."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._socket.disconnected:
            self._finish(None)
        else:
            self._loop.call_soon(self._pump.run)  # answers go first

    # --- the end ------------------------------------------------------------------------------------------

    def stop(self, reason: EndReason, text: str = "") -> None:
        """Tell every subscription why, and close."""
        self._finish(Closing(_CLOSES.get(reason, CloseCode.NORMAL), text or reason.value, reason))

    def _finish(self, closing: Closing | None) -> None:
        if not self._over.done():
            self._over.set_result(closing)

    def _say_goodbye(self, closing: Closing) -> None:
        if closing.reason is not None:
            retry_after_ms = 500 + int(1500 * self._jitter) if closing.reason is EndReason.SHUTDOWN else None
            for subscription in self._methods.open_ones:
                self._ended(subscription, closing.reason, retry_after_ms)
        self._socket.say_close(closing.code, closing.text, within_s=self._limits.goodbye_s)

    def _ended(self, subscription: Subscription, reason: EndReason, retry_after_ms: int | None = None) -> None:
        """Its last word."""
        if reason is EndReason.SHUTDOWN and retry_after_ms is None:
            retry_after_ms = 500 + int(1500 * self._jitter)
        end = subscription.out.end(reason, retry_after_ms=retry_after_ms)
        self._socket.write_frames(subscription.out.encoder.wire.frame("end", encode(end)))
        self._methods.close(subscription)
        if reason is EndReason.SLOW_READER:
            self._services.meters.slow_readers += 1

    # --- once a second ------------------------------------------------------------------------------------

    def tick(self, now: float, today: datetime) -> None:
        """Heartbeat and deadlines."""
        limits = self._limits
        if not self._methods.initialized and now - self._opened_at >= limits.initialize_s:
            self._finish(Closing(CloseCode.TIMED_OUT, f"no initialize within {limits.initialize_s:g} s"))
        elif limits.lifetime_s and now - self._opened_at >= limits.lifetime_s * (0.8 + 0.2 * self._jitter):
            self.stop(EndReason.LIFETIME)
        else:
            self._check_credentials(today)
            self._check_client(now)

    def _check_credentials(self, today: datetime) -> None:
        principal = self.principal
        if self._services.authorizer.revalidate(principal) is None:
            expired = principal.has_expired(today)
            self.stop(EndReason.UNAUTHORIZED, "the token expired" if expired else "the token was revoked")
            return
        if principal.expires_at is not None and self._methods.initialized and self._warned_of != principal.expires_at:
            left_s = (principal.expires_at - today).total_seconds()
            if 0 < left_s <= self._limits.expiry_warning_s:
                self._warned_of = principal.expires_at
                notice = Expiring(expires_at=timestamp(principal.expires_at), expires_in_s=round(left_s, 3))
                self._write(b'{"jsonrpc":"2.0","method":"auth/expiring","params":%b}' % encode(notice))

    def _check_client(self, now: float) -> None:
        limits, socket = self._limits, self._socket
        if socket.is_paused:
            backlog = socket.backlog_bytes
            if backlog < self._backlog or not self._backlog:
                self._progress_at = now
            self._backlog = backlog
            if now - self._progress_at >= limits.stall_s:
                self.stop(EndReason.SLOW_READER)
            return
        self._backlog, self._progress_at = 0, now
        if socket.read_paused:
            return  # it is us who do not listen
        if now - max(socket.heard_at, self._opened_at) >= limits.heartbeat_s * limits.dead_after:
            socket.abort()
        elif now - self._asked_at >= limits.heartbeat_s * (0.75 + 0.25 * self._jitter):
            self._asked_at = now
            socket.ping()


def _waits(call: Call | Malformed) -> bool:
    return isinstance(call, Call) and call.method in Methods.SLOW
