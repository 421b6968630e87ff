"""Watching over WebSocket. What was applied is acknowledged, so a slow reader is waited for, not buffered.

Each watch is a connection of its own. Writing and commands go over `HttpTransport`.
"""

import asyncio
import inspect
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from runlane.client.errors import ContractViolation, ProblemBody, RequestRefused, Unreachable
from runlane.client.transports.http import DEFAULT_TIMEOUT_S, Token
from runlane.client.transports.ports import Frame, WatchRequest
from runlane_contracts.codec import decode_fact, decode_preview, encode
from runlane_contracts.previews import PreviewGap
from runlane_contracts.resume import End, Hello, Outcome, SnapshotFrame, Synced
from runlane_contracts.websocket import PROTOCOL_VERSION, SUBPROTOCOL, FactNotice, Initialized, PreviewNotice, Watching

S = TypeVar("S", bound=Struct)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
CREDIT = 256
"""Facts on their way to a reader that has not asked for them yet."""
PING_S, PONG_S = 12.0, 20.0
"""How often the server is asked whether it is there, and how long it has to answer."""
CLOSE_WITHIN_S = 2.0


class _Message(Struct, frozen=True):
    id: int | None = None
    method: str | None = None
    params: Raw = Raw(b"{}")
    result: Raw = Raw()
    error: Raw = Raw()


class _Error(Struct, frozen=True):
    message: str = ""
    data: Raw = Raw(b"{}")


class _Retry(Struct, frozen=True):
    retry_after_ms: int | None = None


_decode_message = msgspec.json.Decoder(_Message).decode


class WebSocketTransport:
    """Watches runs of one Runlane. A `ReaderTransport`."""

    def __init__(
        self,
        url: str,
        token: Token = "",
        *,
        credit: int = CREDIT,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._credit = credit
        self._timeout_s = timeout_s
        self._tls = tls

    @asynccontextmanager
    async def watch(self, request: WatchRequest) -> AsyncIterator[AsyncIterator[Frame] | None]:
        """Open one connection; see `ReaderTransport.watch`."""
        socket = await self._connect()
        try:
            link = _Link(socket, self._token, self._timeout_s)
            watching = await link.open(request, self._credit)
            if _has_everything(request, watching):
                yield None
            else:
                async with aclosing(link.frames(watching)) as frames:
                    yield frames
        finally:
            await socket.close()

    async def _connect(self) -> ClientConnection:
        token = await _fresh(self._token)
        scheme, _, rest = self.url.partition("://")
        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls}
        try:
            return await connect(
                f"{'wss' if scheme == 'https' else 'ws'}://{rest}/v1/ws",
                subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
                additional_headers={"Authorization": f"Bearer {token}"} if token else None,
                compression=None, max_size=MAX_MESSAGE_BYTES, max_queue=4, open_timeout=self._timeout_s,
                ping_interval=PING_S, ping_timeout=PONG_S, close_timeout=CLOSE_WITHIN_S, **options,
            )  # fmt: skip
        except InvalidStatus as exc:
            raise _refused_handshake(exc) from exc
        except (OSError, TimeoutError, InvalidHandshake) as exc:
            raise Unreachable(f"{type(exc).__name__}: {exc}".rstrip(": "), sent=False) from exc


class _Link:
    """One open connection with one watch."""

    def __init__(self, socket: ClientConnection, token: Token, timeout_s: float) -> None:
        self._socket = socket
        self._token = token
        self._timeout_s = timeout_s
        self._calls = 0

    async def open(self, request: WatchRequest, credit: int) -> Watching:
        """Say who we are, and what to watch."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._call("initialize", {"protocol_version": PROTOCOL_VERSION, "capabilities": {}}, Initialized)
                return await self._call("run/watch", _params(request, credit), Watching)
        except TimeoutError as exc:
            raise Unreachable("no answer to a watch") from exc

    async def frames(self, watching: Watching) -> AsyncGenerator[Frame, None]:
        """`hello` first, then what comes, up to `end`. What was yielded is applied when the next one is asked for."""
        yield Frame(_hello(watching), None)
        owed, cursor = 0, ""
        while True:
            message = await self._receive()
            if message.method == "auth/expiring":
                await self._renew()
                continue
            frame = _frame(message)
            if frame is None:
                continue
            yield frame
            if isinstance(frame.item, End):
                return
            if message.method == "run/fact" and frame.cursor is not None:
                owed, cursor = owed + 1, frame.cursor
                if owed * 2 >= watching.credit:
                    await self._send("run/ack", {"subscription": watching.subscription, "cursor": cursor})
                    owed = 0

    async def _renew(self) -> None:
        if callable(self._token):
            await self._send("auth/renew", {"token": await _fresh(self._token)})

    async def _call(self, method: str, params: dict[str, Any], type_: type[S]) -> S:
        self._calls += 1
        await self._send(method, params, self._calls)
        while True:
            message = await self._receive()
            if message.id != self._calls or message.method is not None:
                continue
            if bytes(message.error):
                raise _refused(message.error)
            return _decoded(message.result, type_, method)

    async def _send(self, method: str, params: dict[str, Any], id_: int | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id_ is None else {"id": id_})
        try:
            await self._socket.send(encode(message), text=True)
        except WebSocketException as exc:
            raise Unreachable(str(exc)) from exc

    async def _receive(self) -> _Message:
        try:
            text = await self._socket.recv(decode=False)
        except WebSocketException as exc:
            raise Unreachable(str(exc)) from exc
        try:
            return _decode_message(text)
        except msgspec.MsgspecError as exc:
            raise ContractViolation(f"not JSON-RPC: {exc}") from exc


async def _fresh(token: Token) -> str:
    found = token() if callable(token) else token
    return await found if inspect.isawaitable(found) else found


def _params(request: WatchRequest, credit: int) -> dict[str, Any]:
    found: dict[str, Any] = {"run_id": request.run_id, "previews": request.previews, "credit": credit}
    if request.types:
        found["types"] = list(request.types)
    if request.cursor is not None:
        found["cursor"] = request.cursor
    elif request.from_ is not None:
        found["from"] = request.from_
    return found


def _has_everything(request: WatchRequest, watching: Watching) -> bool:
    """Whether the run is over and nothing follows the cursor, which SSE says by 204."""
    is_over = watching.outcome is Outcome.RUN_TERMINAL and request.cursor is not None
    return is_over and watching.baseline.sequence == watching.high_water.sequence


def _hello(watching: Watching) -> Hello:
    return Hello(**{name: getattr(watching, name) for name in Hello.__struct_fields__})


def _frame(message: _Message) -> Frame | None:
    """None: nothing that this client knows, or an answer that nobody waits for."""
    read = _NOTICES.get(message.method or "")
    if read is None:
        return None
    try:
        return read(message.params)
    except msgspec.MsgspecError as exc:
        raise ContractViolation(f"{message.method}: {exc}") from exc


def _fact(params: Raw) -> Frame:
    notice = msgspec.json.decode(params, type=FactNotice)
    return Frame(decode_fact(notice.fact), notice.cursor)


def _snapshot(params: Raw) -> Frame:
    snapshot = msgspec.json.decode(params, type=SnapshotFrame)
    return Frame(snapshot, snapshot.cursor)


def _preview(params: Raw) -> Frame:
    return Frame(decode_preview(msgspec.json.decode(params, type=PreviewNotice).preview), None)


def _plain(type_: type[Any]) -> Callable[[Raw], Frame]:
    decoder = msgspec.json.Decoder(type_)
    return lambda params: Frame(decoder.decode(params), None)


_NOTICES: dict[str, Callable[[Raw], Frame]] = {
    "run/fact": _fact,
    "run/snapshot": _snapshot,
    "run/preview": _preview,
    "run/preview_gap": _plain(PreviewGap),
    "run/synced": _plain(Synced),
    "run/end": _plain(End),
}


def _decoded(raw: Raw, type_: type[S], what: str) -> S:
    try:
        return msgspec.json.decode(raw, type=type_)
    except msgspec.MsgspecError as exc:
        raise ContractViolation(f"{what}: {exc}") from exc


def _refused(error: Raw) -> RequestRefused:
    found = _decoded(error, _Error, "error")
    problem = _decoded(found.data, ProblemBody, "error")
    retry_after_ms = _decoded(found.data, _Retry, "error").retry_after_ms
    if problem.retry_after_s is None and retry_after_ms is not None:
        problem = msgspec.structs.replace(problem, retry_after_s=retry_after_ms / 1000)
    return RequestRefused(problem)


def _refused_handshake(exc: InvalidStatus) -> RequestRefused:
    status, retry_after = exc.response.status_code, exc.response.headers.get("Retry-After", "")
    problem = ProblemBody(code="internal", detail=f"HTTP {status}", status=status, retryable=status >= 500)
    with suppress(msgspec.MsgspecError):
        problem = msgspec.json.decode(bytes(exc.response.body or b""), type=ProblemBody)
    if problem.retry_after_s is None and retry_after.isdigit():
        problem = msgspec.structs.replace(problem, retry_after_s=float(retry_after))
    return RequestRefused(problem)
