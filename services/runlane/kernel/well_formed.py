"""What the decoder of lean structs leaves unchecked, checked here.

Most ids of a commit need no check: tenant and run have to equal those of the subject.
"""

import re
import types
from functools import cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw

from runlane_contracts import events
from runlane_contracts.envelope import Fact
from runlane_contracts.ids import ID_PATTERN, is_moment
from runlane_contracts.lean import TIME_PATTERN, lean

_TIMESTAMP = re.compile(TIME_PATTERN)
_is_id = re.compile(ID_PATTERN).match


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
    return _Check(msgspec.json.Decoder(lean(cls)).decode, tuple(ids), tuple(times))


def _patterns(hint: Any) -> set[str]:
    if get_origin(hint) is Annotated:
        return {meta.pattern for meta in hint.__metadata__ if isinstance(meta, Meta) and meta.pattern}
    if get_origin(hint) in {Union, types.UnionType}:
        return {pattern for part in get_args(hint) for pattern in _patterns(part)}
    return set()


def _is_time(text: str) -> bool:
    return _TIMESTAMP.match(text) is not None and is_moment(text)
