"""Ids and time."""

import re
from datetime import UTC, datetime

from runlane.kernel.clock import new_id, utc_now
from runlane_contracts.codec import timestamp, timestamp_of_ns
from runlane_contracts.ids import is_id

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def test_an_id_is_a_prefix_and_a_ulid_of_now() -> None:
    prefix, _, ulid = new_id("evt").partition("_")
    assert prefix == "evt"
    assert ULID.fullmatch(ulid)
    assert is_id(f"evt_{ulid}")
    milliseconds = 0
    for character in ulid[:10]:
        milliseconds = milliseconds * 32 + ALPHABET.index(character)
    assert abs(milliseconds / 1000 - utc_now().timestamp()) < 5


def test_ids_do_not_repeat() -> None:
    assert len({new_id("a") for _ in range(20_000)}) == 20_000


def test_timestamps_have_microseconds_always() -> None:
    assert timestamp(datetime(2026, 3, 1, tzinfo=UTC)) == "2026-03-01T00:00:00.000000Z"
    assert timestamp(datetime.fromisoformat("2026-03-01T02:00:00.000001+02:00")) == "2026-03-01T00:00:00.000001Z"
    assert timestamp_of_ns(1_772_323_200_000_001_999) == "2026-03-01T00:00:00.000001Z"
    assert timestamp_of_ns(1_772_323_200_000_000_000) == "2026-03-01T00:00:00.000000Z"
