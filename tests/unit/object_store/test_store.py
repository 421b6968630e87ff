"""What becomes of a call when the object store is not well: it says so, in time, and claims nothing it did not do."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlane.kernel.errors import Retryable
from runlane.object_store.settings import client_options
from runlane.object_store.store import Objects
from support.object_store import Gate, gate

NO_BUCKET = (404, b'<?xml version="1.0"?><Error><Code>NoSuchBucket</Code><Message>It is gone.</Message></Error>')
NO_KEY = (404, b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>It is not there.</Message></Error>')


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with gate(monkeypatch) as one:
        yield one


def objects(timeout_s: float = 60.0) -> Objects:
    return Objects.at("s3://bucket/prefix", timeout_s=timeout_s)


async def test_nothing_is_written_where_there_is_no_bucket(store: Gate, tmp_path: Path) -> None:
    """Take out what `put` makes of an answer of None, and content is acknowledged that is nowhere."""
    large = tmp_path / "large"
    large.write_bytes(bytes(6 * 1024 * 1024))  # written in parts
    store.fault = lambda _method, _path: NO_BUCKET
    for data in (b"small", large):
        with pytest.raises(Retryable, match="no such bucket"):
            await objects().put("content/acme/raw", data)


async def test_an_object_in_a_bucket_that_is_gone_is_not_one_that_never_was(store: Gate) -> None:
    """Look for no code in what a 404 says, and readers are told that their content does not exist."""
    store.fault = lambda _method, _path: NO_BUCKET
    with pytest.raises(Retryable, match="no such bucket"):
        await objects().get("content/acme/meta.json")
    with pytest.raises(Retryable, match="no such bucket"):
        await objects().delete("pending/acme/run_1")
    with pytest.raises(Retryable, match="404 Not Found"):
        await objects().list("pending")
    store.fault = lambda _method, _path: NO_KEY
    assert await objects().get("content/acme/meta.json") is None


async def test_what_the_store_answered_is_named(store: Gate) -> None:
    store.fault = lambda _method, _path: (403, b"<Error><Code>AccessDenied</Code></Error>")
    one = objects()
    for asking in (one.put("a", b"x"), one.get("a"), one.list("a"), one.delete("a")):
        with pytest.raises(Retryable, match="403 Forbidden") as refused:
            await asking
        assert "127.0.0.1" not in str(refused.value)


async def test_a_store_that_hangs_keeps_nobody_else_waiting(store: Gate) -> None:
    """With the loop's own threads in place of the store's, what else runs in a thread never comes to its turn."""
    over, loops_own = threading.Event(), 32
    store.fault = lambda _method, _path: NO_KEY if over.wait() else None
    try:
        one = objects(timeout_s=0.5)
        hanging = [asyncio.ensure_future(one.get(f"a{n}")) for n in range(loops_own + 1)]
        for asked in hanging:
            with pytest.raises(Retryable, match="does not answer"):
                await asked
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "its turn"), 10) == "its turn"
    finally:
        over.set()


def test_what_the_environment_says_of_the_client_goes_before_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of our own make obstore forget those of the environment: without AWS_ALLOW_HTTP no MinIO is reached."""
    for name in ("AWS_CONNECT_TIMEOUT", "AZURE_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_ALLOW_HTTP": "true", "AWS_TIMEOUT": "60s", "AZURE_TIMEOUT": "1s"}.items():
        monkeypatch.setenv(name, value)
    said = client_options("s3://bucket/prefix")
    assert said == {"allow_http": "true", "timeout": "60s", "connect_timeout": "3s"}
    assert client_options("az://container") == {"timeout": "1s", "connect_timeout": "3s"}
    assert client_options("memory:///") is None
