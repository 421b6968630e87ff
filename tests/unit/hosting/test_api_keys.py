"""API keys: in time, out of a file, and out again."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from runlane.hosting.api_keys import ApiKeyAuthorizer, KeyRecord, key_hash
from runlane.hosting.authorizer import Principal, Right, lost
from runlane_contracts.problems import Code
from support.tokens import NOON, Clock


def record(token: str, **more) -> KeyRecord:
    return KeyRecord(**{"tenant_id": "acme", "subject": token, "sha256": key_hash(token)} | more)


def write(path: Path, *records: KeyRecord) -> None:
    path.write_bytes(msgspec.json.encode(records))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write(path, record("one"), record("two"))
    return path


async def test_a_key_that_is_taken_out_of_the_file_is_out_and_one_that_is_put_in_is_in(path, clock):
    """Fails without `_read_again` in WatchedFile."""
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    two = await keys.authenticate("two")
    assert two is not None
    assert keys.revalidate(two) == two
    write(path, record("one"), record("three"))
    clock.passes(1)
    assert keys.revalidate(two) is None
    assert lost(keys, two, Right.VIEW) is Code.UNAUTHENTICATED
    assert await keys.authenticate("two") is None
    assert await keys.authenticate("three") is not None


async def test_a_file_is_looked_at_twice_a_second_at_most(path, clock):
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    write(path)
    clock.passes(0.4)
    assert await keys.authenticate("two") is not None
    clock.passes(0.2)
    assert await keys.authenticate("two") is None


async def test_a_change_that_shows_in_nothing_but_the_content_is_seen(path, clock):
    """Same size, same time, as two edits within one tick of the file system's clock. Fails without `_SETTLED_S`."""
    clock.at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    before = path.stat()
    write(path, record("one"), record("six"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    clock.passes(1)
    assert await keys.authenticate("six") is not None


@pytest.mark.parametrize("content", [None, b"", b"[", b'[{"tenant_id": "acme"}]', b"[" * 10_000])
async def test_a_broken_file_leaves_the_keys_and_a_mended_one_counts(path, clock, content, caplog):
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for _ in range(3):
        clock.passes(1)
        assert await keys.authenticate("two") is not None
    assert len([line for line in caplog.records if line.levelname == "ERROR"]) == 1
    write(path, record("one"))
    clock.passes(1)
    assert await keys.authenticate("two") is None


async def test_a_lost_right_is_told_from_a_lost_key(path, clock):
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    one = await keys.authenticate("one")
    write(path, record("one", rights=(Right.PRODUCE,)))
    clock.passes(1)
    assert one is not None
    assert lost(keys, one, Right.VIEW) is Code.FORBIDDEN
    assert lost(keys, one, Right.PRODUCE) is None


async def test_a_key_given_to_another_tenant_opens_nothing_of_the_first(path, clock):
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    one = await keys.authenticate("one")
    write(path, record("one", tenant_id="other"))
    clock.passes(1)
    assert one is not None
    assert lost(keys, one, Right.VIEW) is Code.UNAUTHENTICATED


async def test_a_key_ends_at_its_time(tmp_path, clock):
    path = tmp_path / "keys.json"
    write(path, record("one", expires_at=NOON + timedelta(hours=1)))
    keys = ApiKeyAuthorizer.of_file(path, now=clock)
    one = await keys.authenticate("one")
    assert one is not None
    assert one.expires_at == NOON + timedelta(hours=1)
    clock.passes(3599)
    assert keys.revalidate(one) == one
    clock.passes(1)
    assert keys.revalidate(one) is None
    assert await keys.authenticate("one") is None


async def test_a_principal_says_nothing_of_its_key(path, clock):
    one = await ApiKeyAuthorizer.of_file(path, now=clock).authenticate("one")
    assert one is not None
    assert key_hash("one") not in repr(one)
    assert one == replace(one, credential="")


async def test_a_principal_of_elsewhere_is_nobody(path, clock):
    assert ApiKeyAuthorizer.of_file(path, now=clock).revalidate(Principal("acme", "one")) is None
