"""WebSockets of an edge gateway: a client as plain as can be, and the door over the view in memory, on a real port."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import websockets
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect

from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.outgoing import OutgoingLimits
from runlane.edge_gateway.planning import Planner
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.websocket.endpoint import SocketEndpoint
from runlane.edge_gateway.websocket.limits import SocketLimits
from runlane.edge_gateway.websocket.methods import Services
from runlane.edge_gateway.websocket.sessions import Sessions
from runlane.edge_gateway.websocket.watching import RunWatches
from runlane.hosting.authorizer import EVERY_RIGHT, Principal, Right
from runlane.hosting.http_server import http_server
from runlane.kernel.clock import utc_now
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.problems import Code
from support.edge import KEYS, Edge, edge

KEY = "key-acme"
QUICK = SocketLimits(heartbeat_s=0.5, dead_after=30, goodbye_s=2.0, initialize_s=15.0)


class RpcError(Exception):
    """An answer that is an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error))
        self.number: int = error["code"]
        self.message: str = error["message"]
        self.data: dict[str, Any] = error["data"]
        self.code: str = error["data"]["code"]


@dataclass
class Note:
    """One notification."""

    method: str
    params: dict[str, Any]
    text: str = field(repr=False, default="")


class WsClient:
    """Speaks JSON-RPC. Whatever is not the answer that is awaited is kept in `notes`, in the order it came."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.notes: list[Note] = []
        self.answers: dict[Any, Any] = {}
        self._ids = 0

    async def initialize(self) -> dict[str, Any]:
        """Say who we are."""
        return await self.call("initialize", protocol_version=1, capabilities={})

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and wait for the answer. Raises RpcError. A trailing `_` in a name is not part of it."""
        self._ids += 1
        asked = self._ids
        await self.send({
            "jsonrpc": "2.0", "id": asked, "method": method,
            "params": {name.removesuffix("_"): value for name, value in params.items()},
        })  # fmt: skip
        return await self.answer(asked)

    async def tell(self, method: str, **params: Any) -> None:
        """Say something without asking for an answer."""
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def send(self, message: Any) -> None:
        """Any JSON, or any text."""
        await self.socket.send(message if isinstance(message, str | bytes) else encode(message).decode())

    async def answer(self, asked: Any, within_s: float = 10.0) -> dict[str, Any]:
        """The answer to an id."""
        async with asyncio.timeout(within_s):
            while asked not in self.answers:
                await self.more()
        found = self.answers.pop(asked)
        if "error" in found:
            raise RpcError(found["error"])
        return dict(found["result"])

    async def more(self) -> Any:
        """One more message. Raises ConnectionClosed."""
        text = await self.socket.recv()
        assert isinstance(text, str)
        message = decode_json(text)
        for one in message if isinstance(message, list) else [message]:
            if "method" in one:
                self.notes.append(Note(one["method"], one["params"], text))
            else:
                self.answers[one["id"]] = one
        return message

    async def watch(self, run_id: str, **params: Any) -> dict[str, Any]:
        """Open a watch; the hello."""
        return await self.call("run/watch", run_id=run_id, **params)

    async def ack(self, subscription: str, cursor: str) -> dict[str, Any]:
        """Say what was applied."""
        return await self.call("run/ack", subscription=subscription, cursor=cursor)

    async def until(self, *methods: str, within_s: float = 10.0) -> list[Note]:
        """All notes so far, once one of these is among them."""
        async with asyncio.timeout(within_s):
            while not any(note.method in methods for note in self.notes):
                await self.more()
        return self.notes

    async def facts(self, count: int, within_s: float = 10.0) -> list[Note]:
        """The facts so far, once there are so many."""
        async with asyncio.timeout(within_s):
            while len(self.of("run/fact")) < count:
                await self.more()
        return self.of("run/fact")

    async def quiet(self, for_s: float = 0.15) -> None:
        """Take in whatever comes, until nothing does for a while."""
        try:
            while True:
                async with asyncio.timeout(for_s):
                    await self.more()
        except TimeoutError:
            return

    async def closed(self, within_s: float = 10.0) -> tuple[int, str]:
        """Code and reason, once the server has closed."""
        async with asyncio.timeout(within_s):
            try:
                while True:
                    await self.more()
            except websockets.ConnectionClosed as exc:
                return (exc.rcvd.code, exc.rcvd.reason) if exc.rcvd else (1006, "")

    def of(self, method: str, subscription: str | None = None) -> list[Note]:
        """The notes of one kind."""
        return [
            note for note in self.notes
            if note.method == method and subscription in {None, note.params.get("subscription")}
        ]  # fmt: skip

    def sequences(self, subscription: str | None = None) -> list[int]:
        """Of the facts, as they came."""
        return [note.params["fact"]["sequence"] for note in self.of("run/fact", subscription)]


@asynccontextmanager
async def ws_connect(
    url: str, key: str | None = KEY, *, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[WsClient]:
    """A connection, before `initialize`. `url`: of the gateway, http."""
    sent = dict(headers or {})
    if key is not None:
        sent["Authorization"] = f"Bearer {key}"
    address = url.replace("http", "ws", 1) + "/v1/ws"
    async with connect(address, additional_headers=sent, proxy=None, compression=None, **options) as socket:
        yield WsClient(socket)


@asynccontextmanager
async def ws_client(url: str, key: str | None = KEY, **options: Any) -> AsyncIterator[WsClient]:
    """A connection that is ready."""
    async with ws_connect(url, key, **options) as client:
        await client.initialize()
        yield client


# --- the door, in memory --------------------------------------------------------------------------------------


@dataclass
class Keyring:
    """An authorizer whose keys a test changes."""

    principals: dict[str, Principal]
    now: Callable[[], datetime] = utc_now

    async def authenticate(self, bearer: str) -> Principal | None:
        found = self.principals.get(bearer)
        return None if found is None or found.has_expired(self.now()) else replace(found, credential=bearer)

    def revalidate(self, principal: Principal) -> Principal | None:
        found = self.principals.get(principal.credential)
        return (
            None if found is None or found.has_expired(self.now()) else replace(found, credential=principal.credential)
        )


@dataclass
class CommandDesk:
    """Answers as a command gateway would; remembers what it was asked."""

    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    status: int = 202
    answer: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    wait: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.requests.append((scope["path"], dict(request.headers), decode_json(await request.body())))
        if self.wait is not None:
            await self.wait()
        body = {"command_id": "cmd_1", "status": "accepted"} if self.answer is None else self.answer
        await Response(encode(body), self.status, self.headers, "application/json")(scope, receive, send)


@dataclass
class Door:
    """The WebSocket door of a gateway."""

    url: str
    edge: Edge
    keyring: Keyring
    commands: CommandDesk
    sessions: Sessions
    refusals: list[tuple[str, str, Code]]
    noted: Any = None
    """What a refusal that was noted is."""

    @property
    def view(self) -> MemoryView:
        return self.edge.view

    def client(self, key: str | None = KEY, **options: Any) -> Any:
        return ws_client(self.url, key, **options)

    def connect(self, key: str | None = KEY, **options: Any) -> Any:
        return ws_connect(self.url, key, **options)


def principals() -> dict[str, Principal]:
    """Two of acme, one who may only operate, and one of another tenant."""
    return {
        KEY: Principal("acme", "ann", EVERY_RIGHT),
        "key-viewer": Principal("acme", "vic", frozenset({Right.VIEW})),
        "key-operator": Principal("acme", "oz", frozenset({Right.OPERATE})),
        "key-other": Principal("other", "eve", EVERY_RIGHT),
    }


@asynccontextmanager
async def door(
    view: MemoryView | None = None,
    *,
    limits: SocketLimits = QUICK,
    origins: frozenset[str] = frozenset(),
    tick_s: float = 0.05,
    out: OutgoingLimits | None = None,
    **options: Any,
) -> AsyncIterator[Door]:
    """A gateway for one test, listening on loopback."""
    keyring, commands = Keyring(principals()), CommandDesk()
    refusals: list[tuple[str, str, Code]] = []
    sizes = out or OutgoingLimits(stale_retry_s=0.001)

    made: Door | None = None

    def on_refusal(scope: Scope, code: Code) -> Any:
        refusals.append((scope["method"], scope["path"], code))
        return None if made is None else made.noted

    async with edge(view, tick_s=tick_s, **options) as gateway:
        gateway.lost = lambda one: None if keyring.revalidate(one) else Code.UNAUTHENTICATED  # type: ignore[method-assign]
        watches = RunWatches(
            gateway.hubs, presence=Presence(gateway.view, gateway.hubs, wait_s=0.5),
            planner=Planner(gateway.hubs, KEYS, gateway.meters), crowd=gateway.crowd, keys=KEYS, limits=sizes,
            meters=gateway.meters,
        )  # fmt: skip
        services = Services(authorizer=keyring, watches=watches, meters=gateway.meters, on_refusal=on_refusal)
        sessions = Sessions(
            limits, now=lambda: keyring.now(), jitter=lambda: 0.5, meters=gateway.meters  # noqa: PLW0108
        )  # fmt: skip
        endpoint = SocketEndpoint(sessions, services, origins=origins, on_refusal=on_refusal)
        app = _app(endpoint, commands)
        async with sessions.ticking(tick_s), http_server(app, drain_deadline_s=1.0) as address:
            try:
                made = Door(address.url, gateway, keyring, commands, sessions, refusals)
                yield made
            finally:
                await sessions.shut_down()


def _app(endpoint: SocketEndpoint, commands: ASGIApp) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await endpoint.serve(scope, receive, send, commands=commands)
        else:
            await Response("plain", 200)(scope, receive, send)

    return app


__all__ = ["KEY", "Door", "Note", "RpcError", "WsClient", "door", "ws_client", "ws_connect"]
