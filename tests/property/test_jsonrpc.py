"""Whatever text a client sends, it is read as calls or answered by the right error under the right id. Never more."""

import json
from typing import Any

from hypothesis import example, given, settings, strategies as st

from runlane.edge_gateway.websocket import jsonrpc
from runlane.edge_gateway.websocket.jsonrpc import Batch, Call, Malformed
from runlane_contracts.codec import decode_json
from runlane_contracts.websocket import RpcCode

MAX_DEPTH, MAX_BATCH = 12, 4
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=12
)
_ids = st.none() | st.integers() | st.text(max_size=20) | st.booleans() | st.lists(st.integers(), max_size=2)
_requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2, None]),
        "id": _ids,
        "method": st.sampled_from(["ping", "run/watch", "", 7, None]),
        "params": _values,
        "more": _values,
    },
)


def read(text: bytes) -> Call | Malformed | Batch:
    return jsonrpc.read(text, max_batch=MAX_BATCH, max_depth=MAX_DEPTH)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def expected_of(request: Any) -> tuple[RpcCode | None, Any]:
    """The code that answers a request, None for a call, and the id."""
    if not isinstance(request, dict):
        return RpcCode.INVALID_REQUEST, None
    id_ = request.get("id")
    if isinstance(id_, bool | list | dict):
        return RpcCode.INVALID_REQUEST, None
    fits = request.get("jsonrpc") == "2.0" and isinstance(request.get("method"), str)
    fits = fits and isinstance(request.get("params", {}), dict | list)
    return None if fits else RpcCode.INVALID_REQUEST, id_


def check_one(found: Call | Malformed, request: Any) -> None:
    code, id_ = expected_of(request)
    if code is None:
        assert isinstance(found, Call)
        assert found.method == request["method"]
        assert (found.id is None) == ("id" not in request)
        assert decode_json(found.params) == request.get("params", {})
    else:
        assert isinstance(found, Malformed)
        assert found.code == code
        answer = decode_json(jsonrpc.malformed(found))
        assert answer["error"]["code"] == code
        assert answer["error"]["data"]["code"] == "invalid_request"
    assert json.loads(found.id or b"null") == id_


@settings(max_examples=400, deadline=None)
@given(request=_requests | _values, spaced=st.booleans())
def test_any_json_is_a_call_or_the_right_error(request: Any, spaced: bool) -> None:
    text = json.dumps(request, indent=2 if spaced else None).encode()
    found = read(text)
    if depth_of(request) > MAX_DEPTH:
        assert isinstance(found, Malformed)
        assert (found.code, found.id) == (RpcCode.INVALID_REQUEST, b"null")
    elif isinstance(request, list):
        if not 1 <= len(request) <= MAX_BATCH:
            assert isinstance(found, Malformed)
            assert (found.code, found.id) == (RpcCode.INVALID_REQUEST, b"null")
            return
        assert isinstance(found, Batch)
        for one, asked in zip(found.calls, request, strict=True):
            check_one(one, asked)
    else:
        assert not isinstance(found, Batch)
        check_one(found, request)


@settings(max_examples=400, deadline=None)
@given(text=st.binary(max_size=60) | st.text(alphabet='[]{}":,\\ue0-+.1truefalsn\n ', max_size=40).map(str.encode))
@example(b"")
@example(b"[" * 100_000)
@example(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 50 + b"]" * 50 + b"}")
@example(b'{"a":"\\ud800"}')
@example(b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"ping"}')
@example(b'{"jsonrpc":"2.0","method":"ping","id":1e999}')
@example(b'{"jsonrpc":"2.0","method":"ping","id":"' + b"x" * 10_000 + b'"}')
def test_nonsense_is_never_an_exception(text: bytes) -> None:
    found = read(text)
    try:
        json.loads(text.decode())
        is_json = True
    except (ValueError, RecursionError):
        is_json = False
    if not is_json and isinstance(found, Malformed):
        assert found.id == b"null"
        assert found.code in {RpcCode.PARSE_ERROR, RpcCode.INVALID_REQUEST}
    if isinstance(found, Malformed):
        assert decode_json(jsonrpc.malformed(found))["jsonrpc"] == "2.0"
    if not isinstance(found, Malformed):
        assert is_json


@settings(max_examples=100, deadline=None)
@given(number=st.integers(-(10**30), 10**30))
def test_no_id_is_rounded_on_its_way_through(number: int) -> None:
    found = read(b'{"jsonrpc":"2.0","method":"ping","id":%d}' % number)
    assert isinstance(found, Call)
    assert found.id is not None
    assert b'"id":%d,' % number in jsonrpc.result(found.id, b"{}")
