"""Archives and content in a bucket, through the S3 API, also when the bucket is not well."""

import hashlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from runlane.kernel.errors import Retryable
from runlane.object_store import store
from runlane.object_store.content import ContentMeta, Contents, content_ref_id
from runlane.object_store.store import Objects
from runlane_contracts.envelope import Actor
from support.object_store import Gate, gate, s3_bucket
from support.retained import LIFE, RUN, Shelf

LAST = sum(len(commit) for commit in LIFE)
PLACE = "s3://bucket/a/prefix"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with s3_bucket(monkeypatch) as url, gate(monkeypatch, url.removesuffix("/bucket")) as one:
        yield one


async def a_finished_run() -> Shelf:
    shelf = Shelf(PLACE)
    await shelf.write(*LIFE)
    return shelf


async def outcome_of(shelf: Shelf) -> str:
    """`compacted`, or the failure."""
    try:
        return (await shelf.compactor.compact(RUN, "p")).outcome
    except Retryable as exc:
        return str(exc)


async def test_a_bucket_that_fails_at_any_request_costs_nothing_and_the_next_pass_goes_on(
    bucket: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Purge before the archive is read back, and a run is lost when the bucket fails in between."""
    monkeypatch.setattr(store, "RETRY_TIMEOUT", timedelta(0))
    for at in itertools.count(1):
        shelf = await a_finished_run()
        before = [list(facts) for facts in shelf.streams()]
        for path in await shelf.objects.list(f"archive/{RUN.tenant_id}"):
            await shelf.objects.delete(path)
        bucket.asked.clear()
        bucket.fault = lambda _method, _path, at=at: (503, b"") if len(bucket.asked) >= at else None
        outcome = await outcome_of(shelf)
        if outcome == "compacted":
            break
        assert "503" in outcome, at
        bucket.fault = bucket.let_through
        for facts, was in zip(shelf.streams(), before, strict=True):
            if facts[: len(was)] != was:  # taken out: then all of it is in the archive
                assert await shelf.archived(LAST) == was, at
        shelf.restart()
        await shelf.compactor.compact(RUN, "p")
        assert [await shelf.archived(LAST, "log"), await shelf.archived(LAST)] == before
        assert [[fact.type for fact in facts] for facts in shelf.streams()] == [["log.compacted"]] * 2
    assert at > 8  # it was tried in the middle of the archive, too


async def test_an_erased_run_leaves_nothing_in_the_bucket(bucket: Gate) -> None:
    shelf = await a_finished_run()
    await shelf.compactor.compact(RUN, "p")
    await shelf.compactor.erase(RUN, (), "asked to", Actor(kind="user", id="operator"))
    there = await shelf.objects.list("")
    assert [path for path in there if f"/{LAST}/" in path] == []
    facts = [fact for end in await shelf.archives.known(RUN) for fact in await shelf.archived(end)]
    assert len(facts) == LAST + 1
    assert all(bytes(fact.payload) == b"{}" for fact in facts[:LAST])


async def test_content_is_read_by_ranges_and_is_not_acknowledged_where_it_is_not_kept(
    bucket: Gate, tmp_path: Path
) -> None:
    contents, raw = Contents(Objects.at(PLACE)), tmp_path / "raw"
    body = bytes(range(256)) * 4 * 1024 * 7  # 7 MiB: written in parts
    raw.write_bytes(body)
    sha256 = hashlib.sha256(body).hexdigest()
    meta = ContentMeta(
        ref=content_ref_id("acme", RUN.run_id, "a/b", sha256), tenant_id="acme", run_id=RUN.run_id, sha256=sha256,
        size=len(body), media_type="a/b", shown="as_it_is", rules="r", created_at="2026-11-30T00:00:00Z",
    )  # fmt: skip

    bucket.fault = lambda method, path: (403, b"") if method == "POST" and "uploadId" in path else None  # its last step
    with pytest.raises(Retryable):
        await contents.put(meta, raw, None)
    bucket.fault = bucket.let_through
    assert await contents.find("acme", meta.ref) is None

    await contents.put(meta, raw, None)
    assert await contents.find("acme", meta.ref) == meta
    for start, end in ((0, len(body)), (5, 6), (1024 * 1024 - 1, 1024 * 1024 + 1), (len(body) - 3, len(body))):
        chunks = [chunk async for chunk in contents.read(meta, raw=False, start=start, end=end)]
        assert b"".join(chunks) == body[start:end]

    bucket.asked.clear()
    bucket.fault = lambda _method, _path: (403, b"") if len(bucket.asked) > 3 else None
    with pytest.raises(Retryable, match="403 Forbidden"):  # in the middle: said, not cut short
        [chunk async for chunk in contents.read(meta, raw=False, start=0, end=len(body))]
    bucket.fault = bucket.let_through
    await contents.delete_of_run(RUN)
    assert await Objects.at(PLACE).list("content") == []
