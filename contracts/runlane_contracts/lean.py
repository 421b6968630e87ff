"""The contract's structs, decoded fast: ids and times are plain strings, which nobody looks at.

A pattern in a struct costs the decoder several times what everything else costs. Whoever checks ids by other means, or
reads what was checked already (the view, which is derived from facts that were), takes these. They are made from the
contract's own, so they cannot differ from it.
"""

import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct

from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.ids import ID_PATTERN, TENANT_PATTERN, Timestamp

TIME_PATTERN = next(meta.pattern for meta in get_args(Timestamp)[1:] if meta.pattern)
_STRIPPED = {ID_PATTERN, TENANT_PATTERN, TIME_PATTERN}


def lean(cls: type[Struct], *, replaced: dict[str, Any] | None = None) -> type[Struct]:
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


LEAN_FACT = lean(Fact)
_decode_commit = msgspec.json.Decoder(lean(Commit, replaced={"facts": tuple[LEAN_FACT, ...]})).decode  # type: ignore[valid-type]


_decode_fact = msgspec.json.Decoder(LEAN_FACT).decode


def decode_lean_fact(raw: Raw) -> Fact:
    """A fact whose ids are not checked, and which may be changed. Raises as `decode_lean_commit`."""
    return cast("Fact", _decode_fact(raw))


def decode_lean_commit(body: bytes) -> Commit:
    """A commit whose ids are not checked, with facts that may be changed. It encodes to the same bytes.

    Raises:
        msgspec.MsgspecError: the rest does not fit the contract.
    """
    return cast("Commit", _decode_commit(body))
