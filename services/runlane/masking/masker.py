"""Fact in, fact as people may see it out. Pure: the same fact and the same rules give the same bytes.

- A field the contract marks `Secret` is masked whatever it holds.
- A fact of class `restricted` has all its content masked; of an unknown type, all its payload removed.
- The value of an object key that names a secret is masked whole.
- Every other string, keys included, is searched for the rules' formats, and what matches is replaced by
  ``[masked:<rule>]``.

A masked fact stays valid: where the contract asks for an id or bounds a string's length, the whole string is
replaced by ``masked_<hash>``, the same for the same id everywhere, so that what belongs together stays together.
`tenant_id` and `run_id` are addresses and are never changed.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from runlane.masking.rules import KEY_NAME_RULE, Rule, names_a_secret
from runlane.masking.scanner import Scanner
from runlane.masking.shapes import FREE, Shape, shape_of
from runlane_contracts.classification import Classification
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.envelope import EMPTY_PAYLOAD, Fact, Redaction

MAX_REDACTIONS = 256
"""Recorded per fact, each place and rule once; further places are masked all the same."""
MAX_PATH_CHARS = 512

SECRET_FIELD_RULE = "secret-field"  # noqa: S105 - the name of a rule
RESTRICTED_RULE = "restricted"
TOO_LARGE_RULE = "too-large"
MORE_RULE = "more"

_SCHEMA_WORDS = frozenset({
    "type", "format", "title", "description", "minLength", "maxLength", "pattern", "writeOnly", "readOnly",
    "$ref", "nullable", "deprecated", "contentEncoding", "contentMediaType",
})  # fmt: skip


class Unreadable(Exception):
    """The payload cannot be decoded, so it cannot be judged: no reader could decode it either."""


class Masker:
    """Masks facts with one set of rules."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    def is_suspicious(self, body: bytes) -> bool:
        """Whether any fact of an encoded commit has to be looked at closely."""
        return self._scanner.is_suspicious(body)

    def needs_masking(self, fact: Fact) -> bool:
        """Whether the fact's type or class asks for masking, whatever its strings say."""
        return fact.classification is Classification.RESTRICTED or bool(shape_of(fact.type).secret)

    def fact(self, fact: Fact) -> Fact:
        """The fact, masked.

        Raises:
            Unreadable: its payload is not JSON that can be decoded.
        """
        return self._masked(fact, RESTRICTED_RULE if fact.classification is Classification.RESTRICTED else None)

    def without_content(self, fact: Fact) -> Fact:
        """The fact with all its content gone: for a commit that masking made too large to publish."""
        return self._masked(msgspec.structs.replace(fact, redactions=()), TOO_LARGE_RULE)

    def _masked(self, fact: Fact, content_rule: str | None) -> Fact:
        try:
            payload, redactions = self._payload(fact, content_rule)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
            raise Unreadable(type(exc).__name__) from exc
        masked = self._envelope(fact)
        return msgspec.structs.replace(
            masked, payload=Raw(encode(payload)), redactions=(*masked.redactions, *redactions)
        )

    def _payload(self, fact: Fact, content_rule: str | None) -> tuple[Any, list[Redaction]]:
        shape = shape_of(fact.type)
        if content_rule is not None and shape is FREE:
            return {}, [Redaction(path="", rule=content_rule, action="removed")]
        value = decode_json(fact.payload)
        walk = self._walk(value)
        if isinstance(value, dict):
            value = walk.mask_fields(value, None, shape, content_rule)
        return walk.visit(value, None, shape), walk.redactions

    def _walk(self, value: Any) -> "_Walk":
        return _Walk(self._mask if self._scanner.has_candidates(encode(value)) else None)

    def _mask(self, text: str) -> tuple[str, list[Rule]]:
        return mask_text(text, self._scanner)

    def _envelope(self, fact: Fact) -> Fact:
        if self._scanner.has_candidates(encode(msgspec.structs.replace(fact, payload=EMPTY_PAYLOAD))):
            return _masked_envelope(fact, self._scanner)
        return fact


Path = tuple["Path", str | int] | None
"""Where a value stands: its parent's place and its name there. Spelled only when something is recorded."""


TextMasker = Callable[[str], tuple[str, list[Rule]]]


class _Walk:
    """One pass over one payload. Without a masker of texts only names and marks decide."""

    def __init__(self, mask: TextMasker | None) -> None:
        self._mask = mask
        self._seen: set[tuple[str, str]] = set()
        self.redactions: list[Redaction] = []

    def mask_fields(self, value: dict[str, Any], path: Path, shape: Shape, content_rule: str | None) -> dict[str, Any]:
        """Mask the fields that are masked whatever they hold: secrets, and content if there is a rule for it."""
        masked = dict(value)
        for name, item in value.items():
            if item is None:
                continue
            at = (path, name)
            if name in shape.secret:
                masked[name] = self._whole(at, SECRET_FIELD_RULE)
            elif content_rule is not None and name in shape.content:
                masked[name] = self._whole(at, content_rule)
            elif name in shape.nested and isinstance(item, dict):
                masked[name] = self.mask_fields(item, at, shape.nested[name], content_rule)
        return masked

    def visit(self, value: Any, path: Path, shape: Shape) -> Any:
        """The value with every secret in it masked."""
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, list):
            return [self.visit(item, (path, index), shape) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return self._object(value, path, shape)
        return value

    def _object(self, value: dict[str, Any], path: Path, shape: Shape) -> dict[str, Any]:
        masked: dict[str, Any] = {}
        for key, item in value.items():
            name = key if self._mask is None else _unused(self._mask(key)[0], masked)
            at = (path, name)
            if names_a_secret(key) and not _is_harmless(item):
                masked[name] = self._whole(at, KEY_NAME_RULE)
            elif name in shape.bounded and isinstance(item, str):
                masked[name] = self._bounded(item, at)
            else:
                masked[name] = self.visit(item, at, shape.nested.get(key, FREE))
        return masked

    def _text(self, text: str, path: Path) -> str:
        if self._mask is None:
            return text
        masked, found = self._mask(text)
        for rule in found:
            self._record(path, rule.id)
        return masked

    def _bounded(self, text: str, path: Path) -> str:
        return masked_id(text) if self._text(text, path) != text else text

    def _whole(self, path: Path, rule: str) -> str:
        self._record(path, rule)
        return f"[masked:{rule}]"

    def _record(self, path: Path, rule: str) -> None:
        if len(self.redactions) > MAX_REDACTIONS:
            return
        place = (_pointer(path), rule)
        if place in self._seen:
            return
        if len(self.redactions) == MAX_REDACTIONS:
            place = ("", MORE_RULE)
        self._seen.add(place)
        self.redactions.append(Redaction(path=place[0], rule=place[1], action="masked"))


def mask_text(text: str, scanner: Scanner) -> tuple[str, list[Rule]]:
    """The text with every secret masked, and the rules that named them."""
    data = text.encode()
    spans = scanner.spans(data)
    if not spans:
        return text, []
    parts, at = [], 0
    for span in spans:
        parts += [data[at : span.start], span.rule.mask]
        at = span.end
    parts.append(data[at:])
    return b"".join(parts).decode(), [span.rule for span in spans]


def walk_value(value: Any, mask: Callable[[str], str]) -> Any:
    """Any JSON value with `mask` applied to its strings, and what a key names a secret masked whole."""
    return _Walk(lambda text: (mask(text), [])).visit(value, None, FREE)


def masked_id(text: str) -> str:
    """What stands for an id that holds a secret: valid as an id, and the same for the same id."""
    return "masked_" + hashlib.sha256(text.encode()).hexdigest()[:24]


def _masked_envelope(fact: Fact, scanner: Scanner) -> Fact:
    def ident(text: str | None) -> Any:
        return masked_id(text) if text and mask_text(text, scanner)[1] else text

    def free(text: str) -> str:
        return mask_text(text, scanner)[0]

    replace = msgspec.structs.replace
    return replace(
        fact,
        event_id=ident(fact.event_id),
        session_id=ident(fact.session_id),
        agent_id=ident(fact.agent_id),
        task_id=ident(fact.task_id),
        turn_id=ident(fact.turn_id),
        parent_id=ident(fact.parent_id),
        correlation_id=ident(fact.correlation_id),
        causation_ids=tuple(ident(cause) for cause in fact.causation_ids),
        actor=replace(fact.actor, id=ident(fact.actor.id)),
        subject=fact.subject and replace(fact.subject, kind=free(fact.subject.kind), id=ident(fact.subject.id)),
        traceparent=fact.traceparent and free(fact.traceparent),
        redactions=tuple(replace(one, path=free(one.path), rule=free(one.rule)) for one in fact.redactions),
    )


def _is_harmless(value: Any) -> bool:
    """What a key like `password` may hold in the open: nothing, a flag, or the schema of a password."""
    if value is None or value == "" or isinstance(value, bool):
        return True
    return isinstance(value, dict) and value.keys() <= _SCHEMA_WORDS


def _pointer(path: Path) -> str:
    """RFC 6901; the whole payload where it would be longer than `MAX_PATH_CHARS`."""
    parts: list[str] = []
    length = 0
    while path is not None:
        path, name = path
        parts.append(str(name).replace("~", "~0").replace("/", "~1"))
        length += len(parts[-1]) + 1
        if length > MAX_PATH_CHARS:
            return ""
    return "".join(f"/{part}" for part in reversed(parts))


def _unused(name: str, taken: dict[str, Any]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
