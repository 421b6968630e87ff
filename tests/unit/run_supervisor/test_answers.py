"""An answer fits its schema, within bounded work, and no message quotes it."""

import time
from typing import Any

import pytest

from runlane.run_supervisor.answers import Fits, Misfit, Uncheckable, check, is_secret

NESTED = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, None), ({"type": "string"}, "x"), (NESTED, {"a": [1, 2]}), ({"enum": ["yes", "no"]}, "yes"),
        ({"pattern": "^a+$"}, "aaa"), ({"pattern": "^a+$"}, 7),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"a": "x"}),
        ({"additionalProperties": {"type": "integer"}, "properties": {"b": {}}}, {"a": 1, "b": "x"}),
        ({"additionalProperties": False, "patternProperties": {"^x-": {}}}, {"x-a": 1}),
        ({"additionalProperties": False}, 7), ({"uniqueItems": True}, [1, 2, True, "1"]),
        ({"uniqueItems": False}, [1, 1]), ({"patternProperties": {"a": {}}}, 7),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, 7),
        ({"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}, {"kids": [{"kids": []}]}),
    ],
)  # fmt: skip
def test_what_was_asked_for_fits(schema: dict[str, Any], value: Any) -> None:
    assert check(schema, value) == Fits()


@pytest.mark.parametrize(
    ("schema", "value", "misfit"),
    [
        ({"type": "string"}, 5, Misfit("", "type")), (NESTED, {"a": [1, "x"]}, Misfit("/a/1", "type")),
        (NESTED, {}, Misfit("", "required")), ({"pattern": "^a+$"}, "b", Misfit("", "pattern")),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"a": 1}, Misfit("/a", "type")),
        ({"additionalProperties": False, "properties": {"b": {}}}, {"a": 1}, Misfit("/a", "additionalProperties")),
        ({"additionalProperties": {"type": "integer"}}, {"a": "x"}, Misfit("/a", "type")),
        ({"uniqueItems": True}, [{"a": 1.0}, {"a": 1}], Misfit("", "uniqueItems")),
        ({"maxLength": 3}, "long", Misfit("", "maxLength")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_by_place_and_rule(schema: dict[str, Any], value: Any, misfit: Misfit) -> None:
    assert check(schema, value) == misfit


BOMB = {"$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)} | {"40": {}},
        "$ref": "#/$defs/0"}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "nonsense"}, 1, "not a JSON Schema"), ({"pattern": "("}, "x", "not a JSON Schema"),
        ({"minItems": "a"}, [], "not a JSON Schema"), ({"$ref": "#"}, 1, "without end"),
        ({"$ref": "#/$defs/none"}, 1, "leads nowhere"), ({"$ref": "http://127.0.0.1:9/x.json"}, 1, "leads nowhere"),
        ({"$ref": "file:///etc/passwd"}, 1, "leads nowhere"), (BOMB, 1, "too many steps"),
        ({"pattern": "(x+x+)+y"}, "x" * 100_000, "takes too long"),
        ({"unevaluatedProperties": False}, {}, "not supported"),
        ({"unevaluatedItems": False}, [], "not supported"), ({"multipleOf": 0.1}, 10**400, "too large"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_told_within_bounded_time(schema: dict[str, Any], value: Any, reason: str) -> None:
    began = time.process_time()
    found = check(schema, value)
    assert isinstance(found, Uncheckable)
    assert reason in found.reason
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [{"a": n} for n in range(20_000)]),
        ({"additionalProperties": False, "patternProperties": {"(a+)+$": {}}}, {"a" * 40 + "b": 1}),
        ({"pattern": "^(a+)+$"}, "a" * 40 + "b"),
    ],
)
def test_no_value_makes_a_check_take_long(schema: dict[str, Any], value: Any) -> None:
    began = time.process_time()
    check(schema, value)
    assert time.process_time() - began < 3


def test_a_part_that_is_secret_makes_the_whole_answer_secret() -> None:
    assert is_secret({"writeOnly": True})
    assert is_secret({"properties": {"a": {"oneOf": [{"type": "string"}, {"format": "password"}]}}})
    assert not is_secret({"properties": {"writeOnly": {"type": "boolean"}}, "format": "email"})
    assert not is_secret({"writeOnly": False, "enum": ["password"]})
