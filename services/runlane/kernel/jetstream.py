"""Requests to the JetStream API, and what its errors mean."""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.errors import Conflict, KernelError, Overloaded, Permanent, Retryable

T = TypeVar("T")

API = "$JS.API"

WRONG_LAST_SEQUENCE = 10071
SEQUENCE_IN_PROCESS = 10164  # another publish to this subject is on its way (replicated streams)
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037

_CONFLICTS = frozenset({WRONG_LAST_SEQUENCE, SEQUENCE_IN_PROCESS})
_FULL_CODES = frozenset({10023, 10047, 10128})  # insufficient resources, insufficient storage, memory
_FULL_WORDS = ("maximum bytes exceeded", "maximum messages exceeded", "maximum messages per subject exceeded",
               "resource limits exceeded", "insufficient resources", "no space left", "too many requests")  # fmt: skip


class ServerError(Struct, frozen=True):
    """The `error` of an API answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class ApiError(Permanent):
    """The server understood the request and refuses it. `err_code` says why."""

    def __init__(self, what: str, error: ServerError) -> None:
        super().__init__(f"{what}: {error.description} ({error.err_code})")
        self.error = error
        self.err_code = error.err_code


class _Refusal(Struct, frozen=True):
    error: ServerError | None = None


_REFUSAL = msgspec.json.Decoder(_Refusal)


def error_in(data: bytes) -> ServerError | None:
    """The error an API answer carries, if it does."""
    if b'"error"' not in data:
        return None
    try:
        return _REFUSAL.decode(data).error
    except msgspec.MsgspecError:
        return ServerError(code=500, description=data[:200].decode(errors="replace"))


def meaning(error: ServerError, what: str) -> KernelError:
    """What the caller should do about an error of the server."""
    text = error.description
    if error.err_code in _CONFLICTS:
        return Conflict(f"{what}: {text}", current_seq=_last_number(text))
    if error.err_code in _FULL_CODES or any(word in text for word in _FULL_WORDS):
        return Overloaded(f"{what}: {text}", retry_after_s=1.0)
    if error.code in {408, 429, 503} or error.code >= 500:
        return Retryable(f"{what}: {text} ({error.err_code})")
    return ApiError(what, error)


async def api(connection: Connection, verb: str, body: Any = None, *, answer: type[T], timeout_s: float = 5.0) -> T:
    """Call ``$JS.API.<verb>`` with a JSON body and decode the answer.

    Raises:
        Retryable: no answer, or the server cannot at the moment.
        Permanent: the server refuses (`ApiError` with its code).
        Conflict: a compare-and-set lost.
    """
    data = b"" if body is None else msgspec.json.encode(body)
    message = await connection.request(f"{API}.{verb}", data, timeout_s=timeout_s)
    error = error_in(message.data)
    if error is not None:
        raise meaning(error, verb)
    try:
        return msgspec.json.decode(message.data, type=answer)
    except msgspec.MsgspecError as exc:
        raise Permanent(f"{verb}: an answer of another shape: {exc}") from exc


def _last_number(text: str) -> int | None:
    digits = text.rpartition(":")[2].strip()
    return int(digits) if digits.isdigit() else None
