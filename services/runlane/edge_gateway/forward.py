"""Hands what belongs to the command gateway on to it, when that is a process of its own."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Self

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runlane.hosting.http import ProblemError, method_not_allowed, problem_of, problem_response, read_body
from runlane_contracts.problems import Code

TIMEOUT_S = 75.0
"""Above the longest that the command gateway lets a client wait."""
CONNECT_TIMEOUT_S = 2.0
_ID = r"[^/]+"
_CONTENT = "/v1/content"
"""Its body is handed on as it comes: the command gateway bounds it."""
_ROUTES: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = (
    (re.compile(r"/v1/runs"), frozenset({"POST"})),
    (re.compile(rf"/v1/runs/{_ID}/re-execute"), frozenset({"POST"})),
    (re.compile(rf"/v1/runs/{_ID}/commands"), frozenset({"POST"})),
    (re.compile(r"/v1/commands"), frozenset({"GET", "HEAD"})),
    (re.compile(rf"/v1/commands/{_ID}"), frozenset({"GET", "HEAD"})),
    (re.compile(rf"/v1/runs/{_ID}/lease"), frozenset({"POST", "PUT", "DELETE"})),
    (re.compile(rf"/v1/runs/{_ID}/events"), frozenset({"POST"})),
    (re.compile(rf"/v1/runs/{_ID}/previews"), frozenset({"POST"})),
    (re.compile(rf"/v1/pools/{_ID}/claim"), frozenset({"POST"})),
    (re.compile(_CONTENT), frozenset({"POST"})),
)
_GONE_LOOK_S = 0.25
_FORWARDED = ("authorization", "content-type", "accept", "idempotency-key", "prefer", "traceparent", "tracestate")
_RETURNED = ("content-type", "retry-after", "preference-applied", "location", "www-authenticate", "cache-control")


class Forwarder:
    """An ASGI application that answers with what the command gateway says. Knows its routes and no others."""

    def __init__(self, client: httpx.AsyncClient, *, max_body_bytes: int) -> None:
        self._client = client
        self._max_body_bytes = max_body_bytes

    @classmethod
    def to(cls, url: str, *, max_body_bytes: int, max_connections: int) -> Self:
        """To a command gateway at `url`."""
        limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
        timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S)
        client = httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, trust_env=False)
        return cls(client, max_body_bytes=max_body_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            response = await self._answer(Request(scope, receive))
        except ProblemError as exc:
            response = problem_of(exc) or problem_response(exc.code)
        await response(scope, receive, send)

    @staticmethod
    def methods(path: str) -> frozenset[str]:
        """What the command gateway knows for a path; none: it has no such path."""
        return frozenset[str]().union(*(allowed for pattern, allowed in _ROUTES if pattern.fullmatch(path)))

    async def _answer(self, request: Request) -> Response:
        allowed = self.methods(request.scope["path"])
        if not allowed:
            raise ProblemError(Code.NOT_FOUND)
        if request.method not in allowed:
            return method_not_allowed(allowed)
        body: bytes | AsyncIterator[bytes] = request.stream()
        if request.scope["path"] != _CONTENT:
            body = await read_body(request, max_bytes=self._max_body_bytes)
        names = (*_FORWARDED, "content-length") if request.scope["path"] == _CONTENT else _FORWARDED
        # As bytes: what is not ASCII goes on as it came.
        headers = [(n.encode(), request.headers[n].encode("latin-1")) for n in names if n in request.headers]
        target = request.scope.get("raw_path", request.url.path.encode()).decode("ascii")
        query = request.scope["query_string"].decode("ascii")
        try:
            asking = self._client.request(
                request.method, f"{target}?{query}" if query else target, content=body, headers=headers
            )
            reply = await (_while_there(request, asking) if target.endswith("/claim") else asking)
        except httpx.ConnectError as exc:
            raise ProblemError(Code.UPSTREAM_UNAVAILABLE, "the command gateway cannot be reached") from exc
        except httpx.HTTPError as exc:
            # It may have been done: the same idempotency key finds out.
            raise ProblemError(Code.UPSTREAM_UNAVAILABLE, "the command gateway did not answer") from exc
        kept = {name: reply.headers[name] for name in _RETURNED if name in reply.headers}
        return Response(reply.content, reply.status_code, kept)


async def _while_there(request: Request, asking: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    """Who claims work and goes must not be given any: what is asked on its behalf is given up with it."""
    task = asyncio.ensure_future(asking)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_GONE_LOOK_S)
            if not task.done() and await request.is_disconnected():
                task.cancel()
                await asyncio.wait({task})
                return httpx.Response(204)
        return task.result()
    finally:
        task.cancel()
