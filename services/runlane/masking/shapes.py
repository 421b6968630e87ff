"""What the fields of each fact type hold, read once from the contract: content, secrets, ids."""

from functools import cache

import msgspec.inspect
from msgspec import Struct
from msgspec.inspect import Metadata, StrType, StructType, UnionType, VarTupleType

from runlane_contracts import events
from runlane_contracts.events import Mark


class Shape(Struct, frozen=True):
    """One struct. `bounded` are strings with a pattern or a length: what replaces them has to fit, too."""

    content: frozenset[str] = frozenset()
    secret: frozenset[str] = frozenset()
    bounded: frozenset[str] = frozenset()
    nested: dict[str, "Shape"] = {}


FREE = Shape()
"""Of data without a schema."""


@cache
def shape_of(type_: str) -> Shape:
    """The shape of a fact type's payload; `FREE` for an unknown type."""
    cls = events.PAYLOADS.get(type_)
    if cls is None:
        return FREE
    node = msgspec.inspect.type_info(cls)
    assert isinstance(node, StructType)  # noqa: S101 - a payload is a struct
    return _shape(node)


def _shape(struct: StructType) -> Shape:
    content, secret, bounded, nested = set(), set(), set(), {}
    for field in struct.fields:
        parts = list(_parts(field.type))
        marks = {part.extra["mark"] for part in parts if isinstance(part, Metadata) and part.extra}
        if Mark.CONTENT in marks:
            content.add(field.encode_name)
        if Mark.SECRET in marks:
            secret.add(field.encode_name)
        if any(isinstance(part, StrType) and (part.pattern or part.max_length) for part in parts):
            bounded.add(field.encode_name)
        for part in parts:
            if isinstance(part, StructType):
                nested[field.encode_name] = _shape(part)
    return Shape(frozenset(content), frozenset(secret), frozenset(bounded), nested)


def _parts(node: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    match node:
        case Metadata(type=inner):
            return [node, *_parts(inner)]
        case UnionType(types=types):
            return [part for one in types for part in _parts(one)]
        case VarTupleType(item_type=item):
            return _parts(item)
        case _:
            return [node]
