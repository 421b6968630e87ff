"""A fact without its content, for other services: what happened to what, when, by whom, never what was said.

Of the payload stay ids, names, versions, decisions, codes, and numbers under `usage`. A type this code does not
know keeps nothing of its payload. The body is decoded into a struct that has only the fields that stay, so
content is skipped, not read.
"""

import types
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.envelope import EMPTY_PAYLOAD, Fact
from runlane_contracts.ids import is_id
from runlane_contracts.lean import default_of, stripped

_USAGE = "usage"


def signal_body(fact: Fact) -> bytes:
    """The JSON of `fact` without its content. The fact is one as people may see it: masked, and valid."""
    return encode(msgspec.structs.replace(fact, payload=signal_payload(fact.type, fact.payload), redactions=()))


def signal_payload(type_: str, payload: Raw) -> Raw:
    """What stays of a payload."""
    decoder = _decoder(type_)
    if decoder is None:
        return EMPTY_PAYLOAD
    reduced = decoder.decode(payload)
    usage = getattr(reduced, _USAGE, None)
    if usage is not None:
        reduced.usage = numbers_only(usage) or None
    return Raw(encode(reduced))


def numbers_only(usage: Any) -> Any:
    """Numbers, and objects of numbers under names that could be ids; nothing else."""
    if isinstance(usage, dict):
        kept = {key: numbers_only(item) for key, item in usage.items() if is_id(key)}
        return {key: item for key, item in kept.items() if item is not None} or None
    return usage if isinstance(usage, (int, float)) and not isinstance(usage, bool) else None


@cache
def _decoder(type_: str) -> msgspec.json.Decoder[Any] | None:
    cls = events.PAYLOADS.get(type_)
    return None if cls is None else msgspec.json.Decoder(reduced_struct(cls))


@cache
def reduced_struct(cls: type[Struct]) -> type[Struct]:
    """`cls` with the fields that a signal may carry."""
    hints = get_type_hints(cls, include_extras=True)
    fields: list[Any] = []
    for info in msgspec.structs.fields(cls):
        hint = hints[info.name]
        if not _marks(hint) and (info.name == _USAGE or not _is_mapping(hint)):
            reduced = Any if info.name == _USAGE else _reduced(stripped(hint))  # it was checked before
            fields.append((info.name, reduced) if info.required else (info.name, reduced, default_of(info)))
    return msgspec.defstruct(cls.__name__ + "Signal", fields, kw_only=True, omit_defaults=True, gc=False)


def _reduced(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return reduced_struct(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return reduce(or_, (_reduced(part) for part in parts))
    if origin is tuple:
        return tuple[tuple(part if part is Ellipsis else _reduced(part) for part in parts)]  # type: ignore[misc]
    return hint


def _marks(hint: Any) -> bool:
    """Whether the field itself, not a field of a struct in it, is content or secret."""
    if get_origin(hint) is Annotated:
        return any(isinstance(meta, msgspec.Meta) and "mark" in (meta.extra or {}) for meta in hint.__metadata__)
    if isinstance(hint, type):
        return False
    return any(_marks(part) for part in get_args(hint))


def _is_mapping(hint: Any) -> bool:
    if get_origin(hint) is dict:
        return True
    return get_origin(hint) in {Union, types.UnionType} and any(_is_mapping(part) for part in get_args(hint))
