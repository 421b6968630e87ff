"""What went wrong, as the error of an answer: the same stable codes as over HTTP, in `data.code`."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from runlane.edge_gateway.websocket import jsonrpc
from runlane.edge_gateway.websocket.jsonrpc import Call, ParamsInvalid
from runlane.hosting.http import DEFAULT_RETRY_AFTER_S, ProblemError, problem_of, problem_response
from runlane.kernel.faults import trace_of
from runlane_contracts.codec import decode_json
from runlane_contracts.problems import MEANINGS, Code
from runlane_contracts.telemetry import LogEvent
from runlane_contracts.websocket import RpcCode

log = logging.getLogger("runlane.edge_gateway.websocket")

_OVERLOAD = frozenset({Code.OVERLOADED.value, Code.QUOTA_EXCEEDED.value})
_PARAMS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What HTTP said, or would say."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it is no problem."""
        return 200 <= self.status < 300


class MethodUnknown(Exception):
    """There is no such method."""


def failure(call: Call, exc: Exception, number: RpcCode | None = None) -> bytes:
    """The answer to a call that raised. `number`: where another is expected than that of the problem."""
    id_ = call.id or jsonrpc.NO_ID
    if isinstance(exc, MethodUnknown):
        problem = problem_response(Code.NOT_FOUND, f"no such method: {call.method[:80]!r}")
        return _answer(id_, RpcCode.METHOD_NOT_FOUND, decode_json(bytes(problem.body)), None)
    if isinstance(exc, ParamsInvalid):
        exc = ProblemError(Code.INVALID_REQUEST, f"params: {exc}")
    response = problem_of(exc)
    if response is None:
        # Neither parameters nor the error's text: they may hold what a log must not.
        log.error("a call failed: %s", trace_of(exc), extra={"event": LogEvent.HTTP_FAILED})
        response = problem_response(Code.INTERNAL)
    return refused(id_, HttpAnswer(response.status_code, response.headers, bytes(response.body)), number)


def refused(id_: bytes, answer: HttpAnswer, number: RpcCode | None = None) -> bytes:
    """The answer to a call that HTTP refused."""
    try:
        data = decode_json(answer.body)
    except msgspec.DecodeError:
        data = None
    if not isinstance(data, dict) or data.get("code") not in MEANINGS:
        data = decode_json(bytes(problem_response(Code.UPSTREAM_UNAVAILABLE).body))
    return _answer(id_, number or _number(data), data, _retry_after_ms(data, answer.headers))


def _answer(id_: bytes, code: RpcCode, data: dict[str, Any], retry_after_ms: int | None) -> bytes:
    if retry_after_ms is not None:
        data["retry_after_ms"] = retry_after_ms
    return jsonrpc.error(id_, code, str(data.get("detail") or data.get("title", "")), data)


def _number(data: dict[str, Any]) -> RpcCode:
    if data["code"] in _OVERLOAD:
        return RpcCode.OVERLOADED
    if data["code"] == Code.INTERNAL.value:
        return RpcCode.INTERNAL_ERROR
    return RpcCode.INVALID_PARAMS if data.get("status") in _PARAMS else RpcCode.REFUSED


def _retry_after_ms(data: dict[str, Any], headers: Mapping[str, str]) -> int | None:
    wait_s = data.get("retry_after_s")
    if wait_s is None and headers.get("retry-after", "").isdigit():
        wait_s = int(headers["retry-after"])
    if wait_s is None:
        wait_s = DEFAULT_RETRY_AFTER_S if data["code"] in _OVERLOAD else None
    return None if wait_s is None else math.ceil(float(wait_s) * 1000)
