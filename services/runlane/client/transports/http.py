"""Everything over HTTP: commands and facts as JSON, watching as server-sent events."""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from runlane.client.errors import ContractViolation, ProblemBody, RequestRefused, Unreachable
from runlane.client.transports.ports import (
    Claim,
    CommandReceipt,
    Frame,
    Lease,
    NewRun,
    StartedRun,
    WatchRequest,
    Written,
)
from runlane.client.transports.sse import SseFrame, SseOverflow, SseParser
from runlane_contracts.codec import decode_fact, decode_json, decode_preview, encode
from runlane_contracts.events import ContentRef
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.resume import End, Hello, SnapshotFrame, Synced

CONTENT_PATH = "/v1/content/"
T = TypeVar("T")

Token = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A bearer token, or what gives a fresh one for each request."""

DEFAULT_TIMEOUT_S = 15.0
SILENCE_S = 30.0
"""No byte for so long, not even a heartbeat, before `hello` named a shorter interval: the connection is dead."""
HEARTBEATS_MISSED = 2.5


class _WrittenBody(Struct, frozen=True):
    events: list[Written]


class HttpTransport:
    """One connection pool to one Runlane. Closes the `client` only if it made it."""

    def __init__(
        self,
        url: str,
        token: Token = "",
        *,
        client: httpx.AsyncClient | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._owns_client = client is None
        self._http = client or httpx.AsyncClient(
            # Plain HTTP needs no certificates, and loading them takes longer than a request.
            verify=url.startswith("https:"),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._owns_client:
            await self._http.aclose()

    # -- writing ------------------------------------------------------------------------------------------

    async def start_run(self, new: NewRun) -> StartedRun:
        """Start a run; the same `idempotency_key` starts it once."""
        body = msgspec.structs.asdict(new)
        key = body.pop("idempotency_key")
        reply = await self._call(
            "POST", "/v1/runs", {k: v for k, v in body.items() if v is not None}, headers={"Idempotency-Key": key}
        )
        return _decode(reply, StartedRun)

    async def re_execute(
        self,
        run_id: str,
        *,
        idempotency_key: str,
        from_: Literal["input", "checkpoint"] = "input",
        allow_unsafe: bool = False,
        new_run_id: str | None = None,
        pool: str | None = None,
        dispatch: Literal["pool", "external"] | None = None,
    ) -> StartedRun:
        """Execute a run that is over again, as a new run; the same `idempotency_key` starts it once.

        Refused as `unsafe_tools` when it executed tools that are not safe to execute twice, and `allow_unsafe` is not
        said.
        """
        body = {
            "from": from_, "allow_unsafe": allow_unsafe, "run_id": new_run_id, "pool": pool, "dispatch": dispatch
        }  # fmt: skip
        reply = await self._call(
            "POST", f"/v1/runs/{run_id}/re-execute", {k: v for k, v in body.items() if v is not None},
            headers={"Idempotency-Key": idempotency_key},
        )  # fmt: skip
        return _decode(reply, StartedRun)

    async def take_lease(self, run_id: str, *, worker_id: str, ttl_s: float) -> Lease:
        """Become the owner. Refused as `lease_held` while another is."""
        body = {"worker_id": worker_id, "ttl_s": ttl_s}
        return _decode(await self._call("POST", f"/v1/runs/{run_id}/lease", body), Lease)

    async def confirm_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> Lease:
        """Heartbeat. Refused as `lease_fenced` when the lease is gone."""
        body = {"worker_id": worker_id, "lease_epoch": lease_epoch}
        return _decode(await self._call("PUT", f"/v1/runs/{run_id}/lease", body), Lease)

    async def release_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> None:
        """Give the run back."""
        await self._call("DELETE", f"/v1/runs/{run_id}/lease", {"worker_id": worker_id, "lease_epoch": lease_epoch})

    async def append(
        self, run_id: str, drafts: Sequence[FactDraft], *, lease_epoch: int, expected_sequence: int | None = None
    ) -> list[Written]:
        """Write all or nothing. Repeating the same event ids gives the first answer."""
        body: dict[str, Any] = {"lease_epoch": lease_epoch, "events": drafts}
        if expected_sequence is not None:
            body["expected_sequence"] = expected_sequence
        return _decode(await self._call("POST", f"/v1/runs/{run_id}/events", body), _WrittenBody).events

    async def publish_previews(self, run_id: str, previews: Sequence[Preview], *, lease_epoch: int) -> None:
        """Send fragments that may get lost."""
        await self._call("POST", f"/v1/runs/{run_id}/previews", {"lease_epoch": lease_epoch, "previews": previews})

    async def claim(self, pool: str, *, worker_id: str, ttl_s: float, wait_s: float) -> Claim | None:
        """The next run of the pool with its lease taken, or None after `wait_s`."""
        body = {"worker_id": worker_id, "ttl_s": ttl_s, "wait_s": wait_s}
        reply = await self._call("POST", f"/v1/pools/{pool}/claim", body, wait_s=wait_s)
        return None if reply.status_code == httpx.codes.NO_CONTENT else _decode(reply, Claim)

    # -- content ------------------------------------------------------------------------------------------

    async def put_content(
        self, data: bytes, *, media_type: str, run_id: str | None = None, classification: str | None = None
    ) -> ContentRef:
        """Keep content that is too large for a fact; what a fact states as its `content_ref`."""
        params = {"run_id": run_id, "classification": classification, "sha256": hashlib.sha256(data).hexdigest()}
        reply = await self._call(
            "POST", "/v1/content", data, headers={"Content-Type": media_type},
            params={name: value for name, value in params.items() if value is not None},
        )  # fmt: skip
        return _decode(reply, ContentRef)

    async def get_content(self, uri: str, *, raw: bool = False) -> bytes:
        """What people may see of some content; `raw`: as it came, which takes the right to produce."""
        path = uri if uri.startswith(CONTENT_PATH) else CONTENT_PATH + quote(uri, safe="")
        return (await self._call("GET", path, params={"raw": "true"} if raw else None)).content

    # -- commands -----------------------------------------------------------------------------------------

    async def submit(
        self, run_id: str, type_: str, payload: Struct | dict[str, Any], *, idempotency_key: str, wait_s: float
    ) -> CommandReceipt:
        """Send one command and wait up to `wait_s` for its outcome. A rejection is a `RequestRefused`."""
        headers = {"Idempotency-Key": idempotency_key}
        if wait_s > 0:
            headers["Prefer"] = f"wait={math.ceil(wait_s)}"
        body = {"type": type_, "payload": payload}
        reply = await self._call("POST", f"/v1/runs/{run_id}/commands", body, headers=headers, wait_s=wait_s)
        return _decode(reply, CommandReceipt)

    async def find_command(self, idempotency_key: str) -> CommandReceipt | None:
        """The ledger entry, or None: not known, which never means "not executed"."""
        try:
            reply = await self._call("GET", "/v1/commands", params={"idempotency_key": idempotency_key})
        except RequestRefused as refused:
            if refused.code == "command_not_found":
                return None
            raise
        return _decode(reply, CommandReceipt)

    # -- reading ------------------------------------------------------------------------------------------

    async def get_json(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """One read of the HTTP API, as plain JSON; parameters that are None are left out."""
        kept = {k: v for k, v in (params or {}).items() if v is not None}
        return _plain(await self._call("GET", path, params=kept))

    @asynccontextmanager
    async def watch(self, request: WatchRequest) -> AsyncIterator[AsyncIterator[Frame] | None]:
        """Open one connection; see `ReaderTransport.watch`."""
        headers = await self._headers({"Accept": "text/event-stream", "Cache-Control": "no-store"})
        if request.cursor is not None:
            headers["Last-Event-ID"] = request.cursor
        timeout = httpx.Timeout(self._timeout_s, read=None)
        sent = self._http.build_request(
            "GET", f"{self.url}/v1/runs/{request.run_id}/watch", params=_watch_query(request), headers=headers,
            timeout=timeout,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._http.send(sent, stream=True)
        except (httpx.TransportError, TimeoutError) as exc:
            raise _unreachable(exc) from exc
        try:
            if reply.status_code == httpx.codes.NO_CONTENT:
                yield None
            else:
                await _refuse_unless_ok(reply)
                async with aclosing(_frames(reply)) as frames:
                    yield frames
        finally:
            await reply.aclose()

    # -- the wire -----------------------------------------------------------------------------------------

    async def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str):
            token = await token
        return {**({"Authorization": f"Bearer {token}"} if token else {}), **(more or {})}

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> httpx.Response:
        all_headers = await self._headers(headers)
        content = None
        if isinstance(body, bytes):
            content = body
        elif body is not None:
            content = encode(body)
            all_headers["Content-Type"] = "application/json"
        try:
            reply = await self._http.request(
                method, self.url + path, content=content, params=params,
                headers=[(name.encode(), value.encode()) for name, value in all_headers.items()],
                timeout=self._timeout_s + wait_s,
            )  # fmt: skip
        except httpx.TransportError as exc:
            raise _unreachable(exc) from exc
        await _refuse_unless_ok(reply)
        return reply


def _unreachable(exc: Exception) -> Unreachable:
    never_left = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return Unreachable(f"{type(exc).__name__}: {exc}".rstrip(": "), sent=not never_left)


async def _refuse_unless_ok(reply: httpx.Response) -> None:
    if reply.is_success:
        return
    try:
        raw = await reply.aread()
    except httpx.TransportError as exc:
        raise _unreachable(exc) from exc
    try:
        problem = msgspec.json.decode(raw, type=ProblemBody)
    except msgspec.MsgspecError:
        code = "unauthenticated" if reply.status_code == httpx.codes.UNAUTHORIZED else "internal"
        problem = ProblemBody(code=code, detail=f"HTTP {reply.status_code}", retryable=reply.is_server_error)
    after = reply.headers.get("retry-after", "")
    raise RequestRefused(
        msgspec.structs.replace(
            problem,
            status=reply.status_code,
            retry_after_s=problem.retry_after_s or (float(after) if after.isdigit() else None),
        )
    )


def _decode(reply: httpx.Response, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.content, type=type_)
    except msgspec.MsgspecError as exc:
        raise ContractViolation(f"{reply.request.method} {reply.request.url.path}: {exc}") from exc


def _plain(reply: httpx.Response) -> Any:
    try:
        return decode_json(reply.content)
    except msgspec.MsgspecError as exc:
        raise ContractViolation(f"{reply.request.url.path}: {exc}") from exc


def _watch_query(request: WatchRequest) -> dict[str, str]:
    query = {"previews": "true" if request.previews else "false"}
    if request.types:
        query["types"] = ",".join(request.types)
    if request.from_ is not None and request.cursor is None:
        query["from"] = request.from_
    return query


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "fact": decode_fact,
    "preview": decode_preview,
    "hello": msgspec.json.Decoder(Hello).decode,
    "snapshot": msgspec.json.Decoder(SnapshotFrame).decode,
    "preview_gap": msgspec.json.Decoder(PreviewGap).decode,
    "synced": msgspec.json.Decoder(Synced).decode,
    "end": msgspec.json.Decoder(End).decode,
}


async def _frames(reply: httpx.Response) -> AsyncGenerator[Frame, None]:
    parser = SseParser()
    silence_s = SILENCE_S
    chunks = reply.aiter_bytes().__aiter__()
    while True:
        try:
            async with asyncio.timeout(silence_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as exc:
            raise Unreachable(f"silent for {silence_s:.1f} s") from exc
        except httpx.TransportError as exc:
            raise _unreachable(exc) from exc
        try:
            arrived = parser.feed(chunk)
        except SseOverflow as exc:
            raise ContractViolation(str(exc)) from exc
        for sse in arrived:
            frame = _frame(sse)
            if frame is None:
                continue
            if isinstance(frame.item, Hello):
                silence_s = max(1.0, frame.item.heartbeat_s * HEARTBEATS_MISSED)
            yield frame


def _frame(sse: SseFrame) -> Frame | None:
    decoder = _DECODERS.get(sse.event)
    if decoder is None:
        return None  # a kind of frame this client does not know
    try:
        return Frame(decoder(sse.data), sse.id)
    except msgspec.MsgspecError as exc:
        raise ContractViolation(f"{sse.event}: {exc}") from exc
