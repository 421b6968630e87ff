"""An answer fits its schema, within bounded work, and no message quotes it."""

import time
from typing import Any

import pytest

from runlane.kernel.schemas import MAX_PARTS
from runlane.run_supervisor.answers import Fits, Misfit, Uncheckable, check, is_secret, why_unanswerable

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
    assert why_unanswerable(schema) is None


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
    assert why_unanswerable(schema) is None


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


LARGE = {"properties": {str(n): {} for n in range(MAX_PARTS)}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, "not a JSON Schema"), ({"pattern": "("}, "not a JSON Schema"), ({"$ref": "#"}, "end"),
        ({"type": "string", "$ref": "#/$defs/none"}, "leads nowhere"), (BOMB, "too many steps"),
        ({"properties": {"a": {"items": {"$ref": "http://127.0.0.1:9/x.json"}}}}, "leads nowhere"),
        ({"properties": {"a": {"unevaluatedProperties": False}}}, "not supported"), (LARGE, "parts"),
        ({"properties": {"a": LARGE}}, "parts"), ({"$schema": 5}, "not a JSON Schema"),
        ({"type": "string", "$ref": "#/type"}, "leads nowhere"), ({"$id": "http://[", "$ref": "x"}, "cannot be read"),
    ],
)  # fmt: skip
def test_a_question_that_nothing_can_answer_is_known_before_anybody_tries(schema: dict[str, Any], reason: str) -> None:
    began = time.monotonic()
    assert reason in (why_unanswerable(schema) or "it can be answered")
    assert time.monotonic() - began < 3


def test_words_of_a_schema_that_are_names_here_are_no_keywords() -> None:
    named = {"$ref": {"const": {"$ref": "#/none"}}, "unevaluatedItems": {}, "pattern": {}}
    assert why_unanswerable({"properties": named, "enum": [{"unevaluatedItems": 1}], "$defs": {"x": True}}) is None
    assert why_unanswerable({"$id": "urn:a", "$ref": "#n", "$defs": {"x": {"$anchor": "n"}}}) is None
