"""One spelling of a JSON value."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from runlane_contracts.canonical import action_digest, canonical_json, ecmascript_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (2.0**60, "1152921504606847000"),
        (12345678901234567890.0, "12345678901234567000"),
        (1e16, "10000000000000000"),
        (100.0, "100"),
        (123.456, "123.456"),
        (-1.25, "-1.25"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (0.000001234, "0.000001234"),
        (1e-7, "1e-7"),
        (1.234e-7, "1.234e-7"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.0, "0"),
        (-0.0, "0"),
    ],
)
def test_numbers_are_spelled_as_a_browser_spells_them(value: float, text: str) -> None:
    assert ecmascript_number(value) == text


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_spelled_number_is_the_same_number(value: float) -> None:
    assert float(ecmascript_number(value)) == value


def test_keys_are_sorted_by_code_point_and_nothing_is_escaped_without_need() -> None:
    value = {"\U00010000": 1, "\uffff": 2, "b": {"z": None, "a": [True, 1.0]}, "a": 'é\u2028/\x00"'}
    assert canonical_json(value).decode() == (
        '{"a":"é\u2028/\\u0000\\"","b":{"a":[true,1],"z":null},"\uffff":2,"\U00010000":1}'
    )


def test_integers_are_never_rounded() -> None:
    assert canonical_json(2**53 + 1) == b"9007199254740993"
    assert not math.isclose(2**53 + 1, 0)


def test_a_digest_is_bound_to_the_name_and_exactly_these_arguments() -> None:
    digest = action_digest("pay", {"amount": 12.0, "to": "x"})
    assert digest == action_digest("pay", {"to": "x", "amount": 12})
    assert digest.startswith("sha256:")
    assert digest not in {
        action_digest("pay", {"amount": 13, "to": "x"}),
        action_digest("Pay", {"amount": 12, "to": "x"}),
    }
