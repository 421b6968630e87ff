"""What may be one subject token, and nothing else."""

import msgspec
import pytest

from runlane_contracts.ids import ItemId, RunId, TenantId, Timestamp, is_id, is_moment, is_tenant

BREAKERS = ["", "a\n", "a\r", "a.b", "a b", "*", ">", "a\0", "é", "a" * 65, "a/b", "a\nb"]


@pytest.mark.parametrize("text", BREAKERS)
def test_nothing_that_breaks_a_subject_is_an_id(text: str) -> None:
    assert not is_id(text)
    assert not is_tenant(text)
    for type_ in (RunId, ItemId, TenantId):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(text, type_)


@pytest.mark.parametrize("text", ["run_01J", "a", "A-b_9", "x" * 64])
def test_ids_of_clients_are_taken_as_they_are(text: str) -> None:
    assert is_id(text)
    assert msgspec.convert(text, RunId) == text


@pytest.mark.parametrize(
    "text", ["2026-03-01T12:00:00Z\n", "2026-03-01 12:00:00Z", "2026-03-01T12:00:00+01:00", "\u0662026-03-01T12:00:00Z"]
)
def test_a_timestamp_is_utc_and_ends_where_it_ends(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, Timestamp)


def test_a_timestamp_names_a_moment_that_exists() -> None:
    assert is_moment("2024-02-29T23:59:59.999999Z")
    assert not is_moment("2026-02-29T00:00:00Z")
    assert not is_moment("2026-03-01T25:00:00Z")
