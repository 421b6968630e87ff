"""Whether a question can be answered at all, and whether an answer fits the JSON Schema it was asked with.

The schema comes from an agent, the value from a person: neither may make a service fetch an address, run a regular
expression without end, or unfold references without end. And no message quotes the value: it may be a password.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import regex
from jsonschema import Draft202012Validator, exceptions, validators
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from runlane_contracts.canonical import canonical_json

MAX_STEPS: Final = 5_000
"""Schema keywords evaluated for one value."""
MAX_PARTS: Final = 500
"""Objects and arrays in a schema: checking that it is one takes about a millisecond for each."""
MATCH_TIMEOUT_S: Final = 0.05
"""For one regular expression on one text."""


@dataclass(frozen=True, slots=True)
class Fits:
    """The value is what was asked for."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """It is not: which keyword is violated, where in the value."""

    path: str
    rule: str


@dataclass(frozen=True, slots=True)
class Uncheckable:
    """The schema is not one, or takes too long."""

    reason: str


def check(schema: dict[str, Any], value: Any) -> Fits | Misfit | Uncheckable:
    """Whether `value` fits `schema` (JSON Schema, draft 2020-12)."""
    if _has_too_many_parts(schema):
        return Uncheckable(f"it has more than {MAX_PARTS} parts")
    try:
        Draft202012Validator.check_schema(schema)
        # An empty registry: references lead into the schema itself or nowhere, never to the network.
        first = next(_bounded_validator()(schema, registry=Registry()).iter_errors(value), None)
    except exceptions.SchemaError as exc:
        return Uncheckable(f"not a JSON Schema: {exc.json_path}")
    except tuple(_REASONS) as exc:
        return Uncheckable(_REASONS[type(exc)])
    except Unresolvable:
        return Uncheckable("a reference leads nowhere")
    except Exception as exc:  # noqa: BLE001  whatever a library says of what a stranger wrote
        return Uncheckable(f"it cannot be read: {type(exc).__name__}")
    if first is None:
        return Fits()
    return Misfit("".join(f"/{part}" for part in first.absolute_path), str(first.validator))


def why_unanswerable(schema: dict[str, Any]) -> str | None:
    """Why no value can be found to fit `schema`, whatever it is; None: there may be one. In bounded time."""
    if _has_too_many_parts(schema):
        return f"it has more than {MAX_PARTS} parts"
    try:
        Draft202012Validator.check_schema(schema)
        root = DRAFT202012.create_resource(schema)
        _look_through(root, Registry().resolver_with_root(root))
    except exceptions.SchemaError as exc:
        return f"not a JSON Schema: {exc.json_path}"
    except Unresolvable:
        return "a reference leads nowhere"
    except tuple(_REASONS) as exc:
        return _REASONS[type(exc)]
    except Exception as exc:  # noqa: BLE001  as in `check`
        return f"it cannot be read: {type(exc).__name__}"
    # What does not end does not for the plainest value either.
    tried = check(schema, None)
    return tried.reason if isinstance(tried, Uncheckable) else None


def _has_too_many_parts(schema: dict[str, Any]) -> bool:
    waiting: list[Any] = [schema]
    parts = 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, (dict, list)):
            parts += 1
            if parts > MAX_PARTS:
                return True
            waiting.extend(part.values() if isinstance(part, dict) else part)
    return False


def _look_through(part: Resource[Any], resolver: Any) -> None:
    """Every schema inside: its references lead somewhere, its patterns are some, its keywords are known here."""
    schema = part.contents
    if isinstance(schema, dict):
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema:
                raise _Unsupported
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in schema and not isinstance(resolver.lookup(schema[keyword]).contents, (dict, bool)):
                raise Unresolvable(ref=schema[keyword])
        for pattern in (*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())):
            regex.compile(pattern)
    for inner in part.subresources():
        _look_through(inner, resolver.in_subresource(inner))


class _TooExpensive(Exception):
    """The budget of steps is spent."""


class _Unsupported(Exception):
    """A keyword that cannot be evaluated within bounds."""


_REASONS: Final[dict[type[Exception], str]] = {
    _TooExpensive: "it takes too many steps",
    _Unsupported: "unevaluatedProperties and unevaluatedItems are not supported",
    OverflowError: "a number is too large",
    RecursionError: "it refers to itself without end",
    TimeoutError: "a pattern takes too long",
    regex.error: "a pattern is not a regular expression",
}

_Keyword = Callable[[Any, Any, Any, Any], Iterator[exceptions.ValidationError] | None]


def _bounded_validator() -> Any:
    """A validator with a budget of its own."""
    left = MAX_STEPS

    def counted(keyword: _Keyword) -> _Keyword:
        def evaluate(validator: Any, rule: Any, instance: Any, schema: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _TooExpensive
            return keyword(validator, rule, instance, schema)

        return evaluate

    keywords = Draft202012Validator.VALIDATORS | _OURS
    bounded = {name: counted(keyword) for name, keyword in keywords.items()}
    return validators.extend(Draft202012Validator, bounded)  # type: ignore[no-untyped-call, unused-ignore]


def _pattern(validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[exceptions.ValidationError]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield exceptions.ValidationError("does not match the pattern")


def _pattern_properties(
    validator: Any, rules: Any, instance: Any, _schema: Any
) -> Iterator[exceptions.ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in rules.items():
        for name, item in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(item, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, rule: Any, instance: Any, schema: Any
) -> Iterator[exceptions.ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, item in instance.items():
        if name in known or any(_matches(pattern, name) for pattern in patterns):
            continue
        if rule is False:
            yield exceptions.ValidationError("is not asked for", path=(name,))
        else:
            yield from validator.descend(item, rule, path=name)


def _unique_items(validator: Any, rule: Any, instance: Any, _schema: Any) -> Iterator[exceptions.ValidationError]:
    if rule and validator.is_type(instance, "array"):
        distinct = {canonical_json(item) for item in instance}
        if len(distinct) != len(instance):
            yield exceptions.ValidationError("has the same item twice")


def _unsupported(_validator: Any, _rule: Any, _instance: Any, _schema: Any) -> None:
    raise _Unsupported


_OURS: Final[dict[str, _Keyword]] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "unevaluatedProperties": _unsupported,
    "unevaluatedItems": _unsupported,
}
"""In place of the library's: these would run its own regular expressions, or compare each item with each."""


def _matches(pattern: str, text: str) -> bool:
    return regex.search(pattern, text, timeout=MATCH_TIMEOUT_S) is not None
