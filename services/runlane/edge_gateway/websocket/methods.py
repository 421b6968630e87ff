"""What a client may ask for. Each method is answered or raises; the session knows when and in which order to write."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.websocket import jsonrpc
from runlane.edge_gateway.websocket.commands import CommandGateway
from runlane.edge_gateway.websocket.failures import MethodUnknown, failure, refused
from runlane.edge_gateway.websocket.frames import SubscriptionWire
from runlane.edge_gateway.websocket.jsonrpc import Call, params
from runlane.edge_gateway.websocket.limits import SocketLimits
from runlane.edge_gateway.websocket.pump import Pump
from runlane.edge_gateway.websocket.subscription import OnStop, Subscription
from runlane.edge_gateway.websocket.watching import RunWatches
from runlane.hosting.authorizer import PRINCIPAL, Authorizer, Principal, Right, lost
from runlane.hosting.http import NotedRefusal, OnRefusal, ProblemError, refused_code
from runlane_contracts.codec import timestamp
from runlane_contracts.problems import Code
from runlane_contracts.websocket import (
    LEAST_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Ack,
    Acked,
    Capabilities,
    Initialize,
    Initialized,
    Renew,
    Renewed,
    RpcCode,
    Submit,
    Unwatch,
    Unwatched,
    Watch,
    Watching,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all connections share."""

    authorizer: Authorizer
    watches: RunWatches
    meters: Meters
    on_refusal: OnRefusal | None = None


def nothing() -> None:
    """Nothing is to be done after an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is written, and what begins once it was."""

    text: bytes
    then: Callable[[], None] = nothing


class Methods:
    """The methods of one connection, and what they have opened."""

    SLOW: ClassVar = frozenset({"run/watch", "command/submit", "auth/renew"})
    """Those that wait for something; they run beside."""
    FIRST: ClassVar = frozenset({"initialize", "ping"})

    def __init__(
        self,
        principal: Principal,
        bearer: str,
        *,
        services: Services,
        commands: CommandGateway,
        limits: SocketLimits,
        pump: Pump,
        on_stop: OnStop,
    ) -> None:
        self.principal = principal
        self.initialized = False
        self._bearer = bearer
        self._services = services
        self._commands = commands
        self._limits = limits
        self._pump = pump
        self._on_stop = on_stop
        self._open: dict[str, Subscription] = {}
        self._opening = 0
        self._count = 0
        self._ended: OrderedDict[str, Subscription] = OrderedDict()
        self._releasing: set[asyncio.Task[None]] = set()
        self._methods: dict[str, Callable[[Call], Awaitable[Answer]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "run/watch": self._watch,
            "run/ack": self._ack,
            "run/unwatch": self._unwatch,
            "command/submit": self._submit,
            "auth/renew": self._renew,
        }

    async def answer(self, call: Call, *, is_full: bool) -> Answer:
        """What a call is answered; an error is an answer too. `is_full`: what has to wait is refused."""
        method = self._methods.get(call.method)
        if method is None:
            return Answer(failure(call, MethodUnknown()))
        if not self.initialized and call.method not in self.FIRST:
            return _not_initialized(call)
        if is_full and call.method in self.SLOW:
            busy = ProblemError(Code.OVERLOADED, "too many requests are outstanding", retry_after_s=1.0)
            return Answer(failure(call, busy))
        try:
            return await method(call)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the connection goes on
            return Answer(failure(call, exc))

    # --- the connection -------------------------------------------------------------------------------------

    async def _initialize(self, call: Call) -> Answer:
        asked = params(call, Initialize)
        if self.initialized:
            raise ProblemError(Code.INVALID_STATE, "initialized before")
        largest = _largest(asked.capabilities)
        self._pump.outlet.largest = largest
        self.initialized = call.id is not None  # without an answer nobody knows the limits
        spoken = asked.protocol_version if _is_ours(asked.protocol_version) else PROTOCOL_VERSION
        answer = Initialized(
            protocol_version=spoken, limits=self._limits.announced, heartbeat_s=self._limits.heartbeat_s,
            capabilities=Capabilities(max_message_bytes=largest) if largest else None,
        )  # fmt: skip
        return Answer(_result(call, answer))

    async def _ping(self, call: Call) -> Answer:
        return Answer(jsonrpc.result(call.id or jsonrpc.NO_ID, b"{}"))

    async def _renew(self, call: Call) -> Answer:
        asked = params(call, Renew)
        principal = await self._services.authorizer.authenticate(asked.token)
        if principal is None or principal.tenant_id != self.principal.tenant_id:
            code = Code.UNAUTHENTICATED if principal is None else Code.FORBIDDEN
            await self._note("/v1/ws", code)
            raise ProblemError(code, "" if principal is None else "the token belongs to another tenant")
        self.principal, self._bearer = principal, asked.token
        for subscription in self._open.values():  # what its rights do not allow any more ends within a second
            self._services.watches.crowd.renew(subscription, principal)
        expires_at = None if principal.expires_at is None else timestamp(principal.expires_at)
        return Answer(_result(call, Renewed(expires_at=expires_at)))

    async def _submit(self, call: Call) -> Answer:
        answer = await self._commands.submit(params(call, Submit), self._bearer)
        id_ = call.id or jsonrpc.NO_ID
        return Answer(jsonrpc.result(id_, answer.body) if answer.is_success else refused(id_, answer))

    # --- watching -------------------------------------------------------------------------------------------

    @property
    def open_ones(self) -> tuple[Subscription, ...]:
        """The subscriptions that have not ended."""
        return tuple(self._open.values())

    async def _watch(self, call: Call) -> Answer:
        asked = params(call, Watch)
        if call.id is None:
            return Answer(b"")  # without an answer nobody knows the subscription
        if len(self._open) + self._opening >= self._limits.max_subscriptions:
            limit = self._limits.max_subscriptions
            raise ProblemError(Code.QUOTA_EXCEEDED, f"{limit} subscriptions on a connection", retry_after_s=1.0)
        self._opening += 1
        try:
            return await self._open_watch(call, asked)
        except Exception as exc:
            await self._note(_watch_path(asked.run_id), refused_code(exc))
            raise
        finally:
            self._opening -= 1

    async def _open_watch(self, call: Call, asked: Watch) -> Answer:
        code = lost(self._services.authorizer, self.principal, Right.VIEW)  # each watch is authorized anew
        if code is not None:
            missing = f"the right to {Right.VIEW.value} is missing"
            raise ProblemError(code, missing if code is Code.FORBIDDEN else "")
        self._count += 1
        wire = SubscriptionWire(self._count)
        subscription = await self._services.watches.open(
            asked, self.principal, wire, credit=min(asked.credit or self._limits.credit, self._limits.credit),
            wake=self._pump.wake, on_stop=self._on_stop, on_refusal=lambda code: self._told(asked.run_id, code),
        )  # fmt: skip
        self._open[subscription.name] = subscription
        hello = msgspec.structs.asdict(subscription.out.hello())
        watching = Watching(**hello, subscription=subscription.name, credit=subscription.credit)
        return Answer(_result(call, watching), lambda: self._begin(subscription))

    def _begin(self, subscription: Subscription) -> None:
        if subscription.name not in self._open:
            return  # it was ended meanwhile
        subscription.out.open()
        self._pump.wake(subscription)

    async def _ack(self, call: Call) -> Answer:
        asked = params(call, Ack)
        subscription = self._open.get(asked.subscription) or self._ended.get(asked.subscription)
        if subscription is None:
            raise ProblemError(Code.NOT_FOUND, "no such subscription")
        try:
            room = subscription.ack(asked.cursor)
        except ProblemError as exc:
            await self._note(_watch_path(subscription.run_id), refused_code(exc))
            raise
        if subscription.name in self._open:
            self._pump.wake(subscription)
        return Answer(_result(call, Acked(credit=room)))

    async def _unwatch(self, call: Call) -> Answer:
        asked = params(call, Unwatch)
        subscription = self._open.get(asked.subscription)
        if subscription is None:
            raise ProblemError(Code.NOT_FOUND, "no such subscription")
        answer = Unwatched(cursor=subscription.cursor)
        self.close(subscription)
        return Answer(_result(call, answer))

    def close(self, subscription: Subscription) -> None:
        """It sends nothing more; what is acknowledged late is still understood."""
        if self._open.pop(subscription.name, None) is None:
            return
        self._pump.forget(subscription)
        self._ended[subscription.name] = subscription
        if len(self._ended) > self._limits.max_subscriptions:
            self._ended.popitem(last=False)
        task = asyncio.get_running_loop().create_task(subscription.release())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def release(self) -> None:
        """Let go of everything."""
        for subscription in self.open_ones:
            self.close(subscription)
        if self._releasing:
            await asyncio.gather(*self._releasing, return_exceptions=True)

    def _told(self, run_id: str, code: Code) -> None:
        """A watch that was open lost its right."""
        self._refusal(_watch_path(run_id), code)

    async def _note(self, path: str, code: Code | None) -> None:
        """Whoever is refused access is answered once the audit has it."""
        noted = None if code is None else self._refusal(path, code)
        if noted is not None:
            await noted.stored()

    def _refusal(self, path: str, code: Code) -> NotedRefusal | None:
        if self._services.on_refusal is None:
            return None
        return self._services.on_refusal({"method": "GET", "path": path, PRINCIPAL: self.principal}, code)


def _watch_path(run_id: str) -> str:
    """The same watch over HTTP."""
    return f"/v1/runs/{run_id}/watch"


def _result(call: Call, value: msgspec.Struct) -> bytes:
    return jsonrpc.result(call.id or jsonrpc.NO_ID, value)


def _not_initialized(call: Call) -> Answer:
    problem = ProblemError(Code.INVALID_STATE, "say initialize first")
    return Answer(failure(call, problem, RpcCode.NOT_INITIALIZED))


def _largest(capabilities: object) -> int:
    """The largest message the client takes; 0: it did not say. What else it can do is nothing we know."""
    found = capabilities.get("max_message_bytes") if isinstance(capabilities, dict) else None
    if found is None:
        return 0
    if isinstance(found, bool) or not isinstance(found, int) or found < LEAST_MESSAGE_BYTES:
        detail = f"capabilities.max_message_bytes: an integer from {LEAST_MESSAGE_BYTES}"
        raise ProblemError(Code.INVALID_REQUEST, detail)
    return found


def _is_ours(version: object) -> bool:
    """Whether a client asks for what is spoken here; it may name it as a number or as text."""
    if isinstance(version, bool) or not isinstance(version, int | float | str):
        return False
    return str(version).removeprefix("runlane.").removeprefix("v").split(".")[0] == str(PROTOCOL_VERSION)
