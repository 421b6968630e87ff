"""HTTP plumbing: bodies in, problems out. Every error leaves as `application/problem+json` with a stable code."""

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runlane.hosting.http_meter import HttpMeter
from runlane.kernel.errors import Conflict, Fenced, Retryable
from runlane.kernel.faults import trace_of
from runlane_contracts.codec import encode
from runlane_contracts.cursor import CursorForeign, CursorInvalid
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code, problem_document
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBLEM_MEDIA_TYPE = "application/problem+json"
DEFAULT_RETRY_AFTER_S = 1.0
MAX_WAIT_S = 60.0
MAX_SKIPPED_BYTES = 32 * 1024 * 1024
SKIP_WITHIN_S = 5.0
"""How much of a body that is too large is read and thrown away, and how long, so that the answer is heard."""
_FAILED = {"event": LogEvent.HTTP_FAILED}
_INDEX = re.compile(r"\[(\d+)\]")
_WAIT = re.compile(r'^wait\s*=\s*"?([0-9]{1,6})"?$', re.IGNORECASE)
_INTEGER = re.compile(r"^-?[0-9]{1,18}$")


class ProblemError(Exception):
    """Ends a request with a problem. `extra`: further members of the document."""

    def __init__(self, code: Code, detail: str = "", *, headers: Mapping[str, str] | None = None, **extra: Any) -> None:
        super().__init__(f"{code.value}: {detail}")
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra


class NotedRefusal(Protocol):
    """A refusal on its way into the audit."""

    async def stored(self) -> None:
        """Returns when it is there, or when that takes too long. Never raises."""
        ...


OnRefusal = Callable[[Scope, Code], NotedRefusal | None]
"""Told that somebody was not let in. Returns at once and never raises."""

REFUSALS_OF_ACCESS = frozenset({
    Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.RUN_NOT_FOUND, Code.COMMAND_NOT_FOUND, Code.APPROVAL_NOT_FOUND,
    Code.CURSOR_FOREIGN, Code.NOT_FOUND,
})  # fmt: skip
"""What another tenant owns answers as what does not exist, so every "not found" may be one."""


class Response204(Response):
    """No content."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status_code=204, headers=headers)


def json_response(value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """Any value msgspec encodes."""
    return Response(encode(value), status, headers, media_type="application/json")


def problem_response(
    code: Code, detail: str = "", *, headers: Mapping[str, str] | None = None, **extra: Any
) -> Response:
    """The document for one code, with `Retry-After` where the same request may succeed later."""
    document = problem_document(code, detail, **extra)
    sent = dict(headers or {})
    wait_s = document.retry_after_s
    if wait_s is None and document.status in {429, 503}:
        wait_s = DEFAULT_RETRY_AFTER_S
    if wait_s is not None:
        sent.setdefault("Retry-After", str(max(1, math.ceil(wait_s))))
    return Response(encode(document), document.status, sent, media_type=PROBLEM_MEDIA_TYPE)


def problem_of(exc: Exception) -> Response | None:
    """What an exception means to a client; None: a fault of ours."""
    match exc:
        case ProblemError():
            return problem_response(exc.code, exc.detail, headers=exc.headers, **exc.extra)
        case Refused():
            return problem_response(
                exc.code, exc.detail, index=exc.index, current_sequence=exc.current_sequence, recorded=exc.recorded
            )
        case HTTPException():
            return _problem_of_status(exc)
        case _:
            return _problem_of_kernel(exc)


def refused_code(exc: Exception) -> Code | None:
    """The code, if the exception refuses access."""
    code = exc.code if isinstance(exc, (ProblemError, Refused)) else None
    if isinstance(exc, CursorForeign):
        code = Code.CURSOR_FOREIGN
    return code if code in REFUSALS_OF_ACCESS else None


def _problem_of_kernel(exc: Exception) -> Response | None:
    match exc:
        case Retryable():
            # Full, or not reachable: either way nothing is known to be lost and the same request may be sent again.
            return problem_response(Code.OVERLOADED, retry_after_s=exc.retry_after_s)
        case Conflict():
            return problem_response(Code.SEQUENCE_CONFLICT)
        case Fenced():
            return problem_response(Code.LEASE_FENCED)
        case CursorInvalid():
            return problem_response(Code.CURSOR_INVALID, str(exc))
        case CursorForeign():
            return problem_response(Code.CURSOR_FOREIGN, str(exc))
        case _:
            return None


def _problem_of_status(exc: HTTPException) -> Response:
    codes = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED, 413: Code.PAYLOAD_TOO_LARGE}
    code = codes.get(exc.status_code, Code.INVALID_REQUEST if exc.status_code < 500 else Code.INTERNAL)
    return problem_response(code, headers=exc.headers)


def application(
    routes: Sequence[BaseRoute],
    *,
    middleware: Sequence[Middleware] = (),
    on_refusal: OnRefusal | None = None,
    service: str | None = None,
) -> Starlette:
    """A Starlette application all of whose errors are problems. `service`: under whose name requests are measured."""
    measured = [] if service is None else [Middleware(HttpMeter, service=service, routes=routes)]
    app = Starlette(
        routes=list(routes),
        middleware=[*measured, Middleware(Problems, on_refusal=on_refusal), *middleware],
        exception_handlers={HTTPException: _answer_http_exception},
    )
    # A redirect would be built from the Host header; `/v1/runs/` is simply not there.
    app.router.redirect_slashes = False
    return app


def allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> frozenset[str]:
    """The methods that some route knows for this path; none: there is no such path."""
    return frozenset[str]().union(
        *(route.methods or () for route in routes if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE)
    )


def method_not_allowed(allowed: frozenset[str]) -> Response:
    """405, with what would be."""
    return problem_response(Code.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(sorted(allowed))})


async def _answer_http_exception(request: Request, exc: Exception) -> Response:
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        return method_not_allowed(allowed_methods(request.app.routes, request.scope))
    return problem_of(exc) or problem_response(Code.INTERNAL)


class Problems:
    """Turns what an application raises into a problem. Once a response has begun, it can only break it off."""

    def __init__(self, app: ASGIApp, on_refusal: OnRefusal | None = None) -> None:
        self._app = app
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as exc:
            code = refused_code(exc)
            noted = None if code is None or self._on_refusal is None else self._on_refusal(scope, code)
            if noted is not None and not begun:
                await noted.stored()
            response = problem_of(exc)
            if response is None:
                # Neither path, query, body nor the error's text: they may hold what a log must not.
                log.error("%s request failed: %s", scope["method"], trace_of(exc), extra=_FAILED)  # noqa: TRY400
                response = problem_response(Code.INTERNAL)
            if begun:
                raise
            await response(scope, receive, send)


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The body, if it is no larger.

    Raises:
        ProblemError: `payload_too_large`.
    """
    declared = request.headers.get("content-length", "")
    is_too_large = declared.isdigit() and int(declared) > max_bytes
    body, chunks = bytearray(), request.stream()
    while not is_too_large:
        chunk = await anext(chunks, None)
        if chunk is None:
            return bytes(body)
        body += chunk
        is_too_large = len(body) > max_bytes
    raise await _too_large(request, chunks, max_bytes)


async def _too_large(request: Request, rest: AsyncIterator[bytes], max_bytes: int) -> ProblemError:
    """Let a client finish sending, within bounds: closed in the middle of it, it would see a reset and no answer."""
    left = MAX_SKIPPED_BYTES
    headers = {"Connection": "close"}  # the unread rest would be taken for the next request
    if "expect" not in request.headers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SKIP_WITHIN_S):
                async for chunk in rest:
                    left -= len(chunk)
                    if left < 0:
                        break
                else:
                    headers = {}
    return ProblemError(Code.PAYLOAD_TOO_LARGE, f"more than {max_bytes} bytes", headers=headers)


async def decode_body(request: Request, type_: type[T], *, max_bytes: int) -> T:
    """The body as a value of `type_`. No body at all counts as ``{}``.

    Raises:
        ProblemError: `payload_too_large`, or `invalid_request` that names the place, and the index if it is in a list.
    """
    body = await read_body(request, max_bytes=max_bytes)
    return decode(body or b"{}", type_)


def decode(body: bytes, type_: type[T]) -> T:
    """A JSON text as a value of `type_`.

    Raises:
        ProblemError: `invalid_request`.
    """
    try:
        body.decode()  # the decoder does not look inside what it skips or keeps raw
        return msgspec.json.decode(body, type=type_)
    except UnicodeDecodeError as exc:
        raise ProblemError(Code.INVALID_REQUEST, f"not UTF-8 (byte {exc.start})") from exc
    except RecursionError as exc:
        raise ProblemError(Code.INVALID_REQUEST, "nested too deeply") from exc
    except msgspec.MsgspecError as exc:
        text = str(exc)
        index = _INDEX.search(text.rpartition(" - at ")[2]) if " - at " in text else None
        raise ProblemError(Code.INVALID_REQUEST, text, index=int(index[1]) if index else None) from exc


def query_int(
    request: HTTPConnection, name: str, *, default: int | None, minimum: int = 0, maximum: int = 2**53
) -> int | None:
    """An integer of the query within its bounds.

    Raises:
        ProblemError: `invalid_request`.
    """
    text = request.query_params.get(name)
    if text is None or not text:
        return default
    value = int(text) if _INTEGER.match(text) else None
    if value is None or not minimum <= value <= maximum:
        raise ProblemError(Code.INVALID_REQUEST, f"{name}: an integer from {minimum} to {maximum}")
    return value


def prefer_wait(request: HTTPConnection, *, default_s: float = 0.0, maximum_s: float = MAX_WAIT_S) -> float:
    """How long the client is ready to wait for an outcome (RFC 7240); what is not understood is ignored."""
    for header in request.headers.getlist("prefer"):
        for part in header.split(","):
            found = _WAIT.match(part.split(";")[0].strip())
            if found:
                return min(float(found[1]), maximum_s)
    return min(default_s, maximum_s)


def bearer_token(request: HTTPConnection) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None
