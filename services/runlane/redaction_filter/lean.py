"""The contract's structs, decoded fast: ids are plain strings, checked here instead of by the decoder.

A pattern in a struct costs the decoder several times what the check itself costs, and most ids of a commit need
none: tenant and run have to equal those of the subject. The structs are made from the contract's own, so they
cannot differ from it.
"""

import re
import types
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct

from runlane_contracts import events
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.ids import ID_PATTERN, TENANT_PATTERN, Timestamp, is_moment

_TIMESTAMP = re.compile(next(meta.pattern for meta in get_args(Timestamp)[1:] if meta.pattern))
_is_id = re.compile(ID_PATTERN).match
_STRIPPED = {ID_PATTERN, TENANT_PATTERN, _TIMESTAMP.pattern}


def _lean(cls: type[Struct], *, replaced: dict[str, Any] | None = None) -> type[Struct]:
    """`cls` without patterns, not frozen, and no business of the garbage collector: what was decoded has no cycles."""
    hints = get_type_hints(cls, include_extras=True)
    fields: list[Any] = []
    for info in msgspec.structs.fields(cls):
        hint = (replaced or {}).get(info.name, stripped(hints[info.name]))
        fields.append((info.name, hint) if info.required else (info.name, hint, default_of(info)))
    return msgspec.defstruct(cls.__name__, fields, kw_only=True, omit_defaults=True, gc=False)


def stripped(hint: Any) -> Any:
    """A type without the patterns of ids and times; everything else it asks for stays."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        is_plain = any(isinstance(meta, Meta) and meta.pattern in _STRIPPED for meta in hint.__metadata__)
        return parts[0] if is_plain else hint
    if origin in {Union, types.UnionType}:
        return reduce(or_, (stripped(part) for part in parts))
    if origin is tuple:
        return tuple[tuple(part if part is Ellipsis else stripped(part) for part in parts)]  # type: ignore[misc]
    return hint


def default_of(info: msgspec.structs.FieldInfo) -> Any:
    """What `defstruct` takes as a field's default."""
    return msgspec.field(default_factory=info.default_factory) if info.default is NODEFAULT else info.default


LEAN_FACT = _lean(Fact)
_decode_commit = msgspec.json.Decoder(_lean(Commit, replaced={"facts": tuple[LEAN_FACT, ...]})).decode  # type: ignore[valid-type]


_decode_fact = msgspec.json.Decoder(LEAN_FACT).decode


def decode_lean_fact(raw: Raw) -> Fact:
    """A fact whose ids are not checked yet, and which may be changed. Raises as `decode_lean_commit`."""
    return cast("Fact", _decode_fact(raw))


def decode_lean_commit(body: bytes) -> Commit:
    """A commit whose ids are not checked yet, with facts that may be changed. It encodes to the same bytes.

    Raises:
        msgspec.MsgspecError: the rest does not fit the contract.
    """
    return cast("Commit", _decode_commit(body))


def has_good_ids(fact: Fact) -> bool:
    """Whether the ids and times of an envelope are as the contract asks, but for tenant and run."""
    return bool(
        _is_id(fact.event_id)
        and _is_time(fact.occurred_at)
        and (fact.session_id is None or _is_id(fact.session_id))
        and (fact.task_id is None or _is_id(fact.task_id))
        and (fact.turn_id is None or _is_id(fact.turn_id))
        and (fact.parent_id is None or _is_id(fact.parent_id))
        and (not fact.causation_ids or all(map(_is_id, fact.causation_ids)))
    )


def is_good_payload(type_: str, payload: Raw, *, is_shallow: bool = False) -> bool:
    """Whether a payload fits its type, as `events.decode_payload` would say. An unknown type asks for little.

    `is_shallow`: it is known not to nest too deep.

    Raises:
        msgspec.MsgspecError, UnicodeError, RecursionError: it does not.
    """
    check = _check(type_)
    if check is None:
        return is_shallow or not events.nests_too_deep(bytes(payload))
    if not is_shallow and events.nests_too_deep(bytes(payload)):
        return False
    decoded = check.decode(payload)
    for name in check.ids:
        value = getattr(decoded, name)
        if value is not None and not _is_id(value):
            return False
    for name in check.times:
        value = getattr(decoded, name)
        if value is not None and not _is_time(value):
            return False
    return True


class _Check(NamedTuple):
    decode: Any
    ids: tuple[str, ...]
    times: tuple[str, ...]


@cache
def _check(type_: str) -> _Check | None:
    cls = events.PAYLOADS.get(type_)
    if cls is None:
        return None
    hints = get_type_hints(cls, include_extras=True)
    ids, times = [], []
    for name in cls.__struct_fields__:
        patterns = _patterns(hints[name])
        ids += [name] if ID_PATTERN in patterns else []
        times += [name] if _TIMESTAMP.pattern in patterns else []
    return _Check(msgspec.json.Decoder(_lean(cls)).decode, tuple(ids), tuple(times))


def _patterns(hint: Any) -> set[str]:
    if get_origin(hint) is Annotated:
        return {meta.pattern for meta in hint.__metadata__ if isinstance(meta, Meta) and meta.pattern}
    if get_origin(hint) in {Union, types.UnionType}:
        return {pattern for part in get_args(hint) for pattern in _patterns(part)}
    return set()


def _is_time(text: str) -> bool:
    return _TIMESTAMP.match(text) is not None and is_moment(text)
