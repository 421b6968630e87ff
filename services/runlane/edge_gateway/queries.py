"""Parameters of requests, checked. What makes no sense is refused by name before anything is read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import parse_qsl

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.type_filter import TypeFilter, TypeFilterInvalid, type_filter
from runlane.hosting.http import ProblemError
from runlane_contracts.cursor import CursorForeign, CursorInvalid, Position
from runlane_contracts.problems import Code
from runlane_contracts.resume import From

MAX_SEQUENCE = 2**53
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_STARTS: frozenset[str] = frozenset(get_args(From))
Params = dict[str, str]
_LISTS = frozenset({"types"})
"""May be given several times: `types=a&types=b` is `types=a,b`."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The parameters of a watch, checked but for the cursor."""

    types: TypeFilter
    previews: bool = False
    start: From | None = None
    cursor: str | None = None
    sticky: bool = False
    min_sequence: int = 0
    last: int = 0
    """Without a cursor: from so many facts before the end on, at least. 0: not asked for."""


def watch_request(query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> WatchRequest:
    """Read query and headers. Raises ProblemError 400."""
    params = query_params(query)
    last_event_id = next((value for name, value in headers if name == b"last-event-id"), b"").decode("latin-1").strip()
    start = params.get("from") or None
    if start is not None and start not in _STARTS:
        raise ProblemError(Code.INVALID_REQUEST, "from: one of start, snapshot, now")
    previews = params.get("previews") or "false"
    if previews not in {"true", "false"}:
        raise ProblemError(Code.INVALID_REQUEST, "previews: true or false")
    last = last_param(params, unless=("from",))
    return WatchRequest(
        types=types_param(params),
        previews=previews == "true",
        start=cast("From | None", start),
        cursor=last_event_id or params.get("cursor") or None,
        sticky=bool(last_event_id),
        min_sequence=integer(params, "min_sequence", default=0),
        last=last,
    )


def query_params(query: bytes) -> Params:
    """The parameters in a query string; the last one wins, and lists are joined. Raises ProblemError 400."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError as exc:
        raise ProblemError(Code.INVALID_REQUEST, "the query string cannot be read") from exc
    params = dict(pairs)
    for name in _LISTS & params.keys():
        params[name] = ",".join(value for key, value in pairs if key == name)
    return params


def integer(params: Params, name: str, *, default: int, minimum: int = 0, maximum: int = MAX_SEQUENCE) -> int:
    """An integer parameter within its bounds. Raises ProblemError 400."""
    text = params.get(name, "")
    if not text:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else -1
    if not minimum <= value <= maximum:
        raise ProblemError(Code.INVALID_REQUEST, f"{name}: an integer from {minimum} to {maximum}")
    return value


def last_param(params: Params, *, unless: Iterable[str]) -> int:
    """The `last` parameter; 0 if it is not there. Raises ProblemError 400, also beside what says otherwise."""
    last = integer(params, "last", default=0, minimum=1)
    for name in unless:
        if last and params.get(name):
            raise ProblemError(Code.INVALID_REQUEST, f"last, {name}: one of the two")
    return last


def seconds(params: Params, name: str, *, maximum: float) -> float | None:
    """A duration, with decimals if need be; more than the maximum is the maximum. Raises ProblemError 400."""
    text = params.get(name)
    if not text:
        return None
    if _SECONDS.fullmatch(text) is None:
        raise ProblemError(Code.INVALID_REQUEST, f"{name}: seconds from 0 to {maximum:g}")
    return min(float(text), maximum)


def limit_param(params: Params, *, default: int, maximum: int) -> int:
    """How many at most; more than the maximum is the maximum. Raises ProblemError 400."""
    return min(integer(params, "limit", default=default, minimum=1), maximum)


def choice(params: Params, name: str, allowed: Iterable[str]) -> str | None:
    """One of some words, or None. Raises ProblemError 400."""
    text = params.get(name) or None
    if text is not None and text not in allowed:
        raise ProblemError(Code.INVALID_REQUEST, f"{name}: one of {', '.join(allowed)}")
    return text


def types_param(params: Params) -> TypeFilter:
    """The `types` parameter. Raises ProblemError 400."""
    try:
        return type_filter(params.get("types"))
    except TypeFilterInvalid as exc:
        raise ProblemError(Code.INVALID_REQUEST, str(exc)) from exc


def opened_cursor(encoder: FactFrames, cursor: str | None) -> Position | None:
    """The position in a cursor. Raises ProblemError 422."""
    if cursor is None:
        return None
    try:
        return encoder.position(cursor)
    except CursorForeign as exc:
        raise ProblemError(Code.CURSOR_FOREIGN, str(exc)) from exc
    except CursorInvalid as exc:
        raise ProblemError(Code.CURSOR_INVALID, str(exc)) from exc
