"""JSON-RPC 2.0: texts to calls, results and errors to texts. Pure, and total: any text is a call or a named error.

An id is kept and answered as the bytes it came in, so that no number is rounded on its way through here. JSON that a
service made is spliced in, never read and written again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from runlane_contracts import codec
from runlane_contracts.problems import Code, problem_document
from runlane_contracts.websocket import RpcCode

S = TypeVar("S", bound=Struct)

NO_ID = b"null"
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_MAX_ID_BYTES = 256


@dataclass(frozen=True, slots=True)
class Call:
    """A method with its parameters. `id`: what the answer repeats; None: nobody waits for one."""

    method: str
    params: bytes = field(default=b"{}", repr=False)
    id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """What is not a call, and the error that answers it."""

    id: bytes
    code: RpcCode
    detail: str
    problem: Code = Code.INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class Batch:
    """Several at once; their answers are one array."""

    calls: tuple[Call | Malformed, ...]


class ParamsInvalid(Exception):
    """The parameters do not fit the method."""


class _Envelope(Struct):
    jsonrpc: Raw = Raw()
    id: Raw = Raw()
    method: Raw = Raw()
    params: Raw = Raw()


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_anything = msgspec.json.Decoder(Raw).decode


# --- in -----------------------------------------------------------------------------------------------------


def read(text: bytes, *, max_batch: int, max_depth: int) -> Call | Malformed | Batch:
    """One message of a client."""
    if _too_deep(text, max_depth):
        return _not_json(text) or Malformed(NO_ID, RpcCode.INVALID_REQUEST, f"nested deeper than {max_depth}")
    if not text.lstrip(b" \t\r\n").startswith(b"["):
        return _read_one(text)
    broken = _not_json(text)
    if broken is not None:
        return broken
    elements = _decode_array(text)
    if not elements:
        return Malformed(NO_ID, RpcCode.INVALID_REQUEST, "an empty batch")
    if len(elements) > max_batch:
        return Malformed(NO_ID, RpcCode.INVALID_REQUEST, f"more than {max_batch} calls in a batch")
    return Batch(tuple(_read_one(bytes(one)) for one in elements))


def params(call: Call, type_: type[S]) -> S:
    """The parameters of a call, by name. Raises ParamsInvalid."""
    try:
        return msgspec.json.decode(call.params, type=type_)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise ParamsInvalid(str(exc)) from exc


def _read_one(text: bytes) -> Call | Malformed:
    broken = _not_json(text)
    if broken is not None:
        return broken
    try:
        envelope = _decode_envelope(text)
    except msgspec.ValidationError as exc:
        return Malformed(NO_ID, RpcCode.INVALID_REQUEST, str(exc))
    id_ = bytes(envelope.id).strip()
    if id_ and not _is_id(id_):
        return Malformed(NO_ID, RpcCode.INVALID_REQUEST, "id: a string, a number or null")
    method, params_ = _text(envelope.method), bytes(envelope.params).strip()
    if _text(envelope.jsonrpc) != "2.0":
        return Malformed(id_ or NO_ID, RpcCode.INVALID_REQUEST, 'jsonrpc: "2.0"')
    if method is None:
        return Malformed(id_ or NO_ID, RpcCode.INVALID_REQUEST, "method: a string")
    if params_[:1] not in {b"", b"{", b"["}:
        return Malformed(id_ or NO_ID, RpcCode.INVALID_REQUEST, "params: an object")
    return Call(method, params_ or b"{}", id_ or None)


def _not_json(text: bytes) -> Malformed | None:
    try:
        text.decode()  # the decoder does not look inside what it keeps raw
        _decode_anything(text)
    except RecursionError:
        return Malformed(NO_ID, RpcCode.INVALID_REQUEST, "nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        return Malformed(NO_ID, RpcCode.PARSE_ERROR, str(exc))
    return None


def _text(raw: Raw) -> str | None:
    try:
        return _decode_text(raw) if bytes(raw) else None
    except msgspec.MsgspecError:
        return None


def _is_id(raw: bytes) -> bool:
    return len(raw) <= _MAX_ID_BYTES and (raw == b"null" or raw[:1] in b'"-0123456789')


def _too_deep(text: bytes, max_depth: int) -> bool:
    if text.count(b"[") + text.count(b"{") <= max_depth:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > max_depth:
            return True
    return False


# --- out ----------------------------------------------------------------------------------------------------


class RpcError(Struct, frozen=True, kw_only=True):
    """The `error` of an answer."""

    code: int
    message: str
    data: dict[str, Any]


def result(id_: bytes, value: Struct | bytes) -> bytes:
    """An answer; bytes are JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id_, value if isinstance(value, bytes) else codec.encode(value))


def error(id_: bytes, code: RpcCode, message: str, data: dict[str, Any]) -> bytes:
    """An answer that says what is wrong. `data`: the problem document that HTTP would send."""
    found = RpcError(code=int(code), message=message, data=data)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id_, codec.encode(found))


def malformed(what: Malformed) -> bytes:
    """The answer to what is not a call."""
    problem = problem_document(what.problem, what.detail)
    return error(what.id, what.code, what.detail, msgspec.to_builtins(problem))


def batch(answers: Sequence[bytes]) -> bytes:
    """The answers to a batch, as one message."""
    return b"[%b]" % b",".join(answers)


def notification(method: str, subscription: str, members: bytes) -> bytes:
    """What the server says by itself. `members`: the rest of `params`, a JSON object with at least one member."""
    rest = members.lstrip()[1:]
    return b'{"jsonrpc":"2.0","method":"%b","params":{"subscription":"%b",%b}' % (
        method.encode(), subscription.encode(), rest,
    )  # fmt: skip
