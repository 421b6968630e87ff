"""Large content: kept beside the log, authorized at each read, masked for people, gone with its run."""

import asyncio
import hashlib
import json
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from runlane.client import HttpTransport, RunContext, ToolInProgress, Worker
from support import secrets
from support.eventually import eventually
from support.product import Product, Wire, fact, product

SECRET = secrets.tokens()["github"][1]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("content") / "state") as started:
        yield started


async def put(wire: Wire, data: bytes, media_type: str = "text/plain", **params: Any) -> dict[str, Any]:
    reply = await wire.http.post("/v1/content", content=data, headers={"Content-Type": media_type}, params=params)
    assert reply.status_code == 201, reply.text
    return dict(reply.json())


async def declared(running: Product, size: int) -> str:
    """The status line of an answer to a body that is announced and not sent."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = running.tokens["demo"]
    head = f"POST /v1/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
    writer.write(head.encode())
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    return line.decode()


async def key_with(running: Product, *rights: str) -> str:
    """A token of the tenant `demo` with some rights only."""
    arguments = [part for right in rights for part in ("--right", right)]
    _, out, _ = await running.cli("keys", "add", *arguments, "--json")
    return str(json.loads(out)["token"])


async def test_what_was_put_comes_back_byte_for_byte(running: Product) -> None:
    async with running.client() as wire:
        for data in (b"", b"\x00\xff" * 50_000, os.urandom(300_000), b"text " * 40_000):
            ref = await put(wire, data, "application/octet-stream")
            assert (ref["size"], ref["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
            got = await wire.http.get(ref["uri"])
            assert (got.status_code, got.content) == (200, data)
            assert got.headers["content-length"] == str(len(data))
        again = await put(wire, data, "application/octet-stream")
        assert again == ref, "the same content has the same address"


async def test_no_content_can_be_taken_for_a_page_of_ours(running: Product) -> None:
    async with running.client() as wire:
        ref = await put(wire, b"<script>alert(1)</script>", "text/html; charset=utf-8")
        got = await wire.http.get(ref["uri"])
        assert got.headers["content-type"] == "text/html; charset=utf-8"
        assert got.headers["content-disposition"].startswith("attachment")
        assert got.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in got.headers["content-security-policy"]
        for bad in ("nonsense", "text/html, text/plain", "x" * 300 + "/y", "a/b; c"):
            reply = await wire.http.post("/v1/content", content=b"x", headers={"Content-Type": bad})
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request"), bad


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-3", 206, b"0123"), ("bytes=4-", 206, b"456789"), ("bytes=-2", 206, b"89"), ("bytes=8-99", 206, b"89"),
        ("bytes=10-", 416, b""), ("bytes=-0", 416, b""), ("bytes=3-1", 200, b"0123456789"),
        ("bytes=0-1,3-4", 200, b"0123456789"), ("lines=1-2", 200, b"0123456789"),
    ],
)  # fmt: skip
async def test_a_range_is_that_part(running: Product, asked: str, status: int, part: bytes) -> None:
    async with running.client() as wire:
        ref = await put(wire, b"0123456789")
        got = await wire.http.get(ref["uri"], headers={"Range": asked})
        assert (got.status_code, got.content) == (status, part)
        if status == 206:
            start = b"0123456789".index(part)
            assert got.headers["content-range"] == f"bytes {start}-{start + len(part) - 1}/10"


async def test_who_has_it_already_is_not_sent_it_again(running: Product) -> None:
    async with running.client() as wire:
        ref = await put(wire, b"0123456789")
        tag = (await wire.http.get(ref["uri"])).headers["etag"]
        for known in (tag, f"W/{tag}", f'"else", {tag}', "*"):
            got = await wire.http.get(ref["uri"], headers={"If-None-Match": known, "Range": "bytes=0-3"})
            assert (got.status_code, got.content, got.headers["etag"]) == (304, b"", tag)
        other = await wire.http.get(ref["uri"], headers={"If-None-Match": '"else"'})
        assert (other.status_code, other.content) == (200, b"0123456789")


async def test_what_is_anothers_answers_as_what_does_not_exist(running: Product) -> None:
    async with running.client() as wire, running.client("other") as other:
        ref = await put(wire, b"mine")
        answers = [
            (await other.http.get(path)) for path in (ref["uri"], f"/v1/content/cnt_{'0' * 26}", "/v1/content/nonsense")
        ]
        assert {(one.status_code, one.text) for one in answers} == {(404, answers[0].text)}
        nobody = await wire.http.get(ref["uri"], headers={"Authorization": "Bearer no"})
        assert nobody.status_code == 401
        run_id = await wire.start_run()
        foreign = await other.http.post("/v1/content", content=b"x", params={"run_id": run_id})
        assert (foreign.status_code, foreign.json()["code"]) == (404, "run_not_found")


async def test_a_secret_is_masked_for_people_and_there_for_who_produces(running: Product) -> None:
    """P8: take the search out of `ContentDesk` and the canary is shown."""
    async with running.client() as wire:
        data = f"before {SECRET} after".encode()
        ref = await put(wire, data)
        shown = await wire.http.get(ref["uri"])
        assert SECRET not in shown.text
        assert shown.text.startswith("before [masked:")
        assert shown.headers["runlane-content"] == "masked"
        assert SECRET not in (await wire.http.get(ref["uri"], headers={"Range": "bytes=0-200"})).text
        assert (await wire.http.get(ref["uri"], params={"raw": "true"})).content == data
        viewer = {"Authorization": f"Bearer {await key_with(running, 'view')}"}
        assert (await wire.http.get(ref["uri"], headers=viewer)).text == shown.text
        refused = await wire.http.get(ref["uri"], params={"raw": "true"}, headers=viewer)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        posted = await wire.http.post("/v1/content", content=b"x", headers=viewer)
        assert posted.status_code == 403
        vaulted = await put(wire, b"nothing bad", classification="restricted")
        for headers in ({}, viewer):
            assert (await wire.http.get(vaulted["uri"], headers=headers)).status_code == 403
        assert (await wire.http.get(vaulted["uri"], params={"raw": "true"})).content == b"nothing bad"


async def test_what_does_not_fit_is_refused_by_name(running: Product) -> None:
    async with running.client() as wire:
        assert "413" in await declared(running, 1 << 40)
        for params in ({"sha256": "0" * 64}, {"sha256": "x"}, {"classification": "secret"}):
            reply = await wire.http.post("/v1/content", content=b"x", params=params)
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")


async def test_content_goes_when_its_run_is_erased_and_stays_when_it_is_archived(running: Product) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    async with running.client() as wire:
        run_id = await wire.start_run()
        epoch = await wire.lease(run_id)
        mine = await put(wire, f"{canary} {SECRET}".encode(), run_id=run_id)
        loose = await put(wire, f"{canary} loose".encode())
        for name, ref in (("f1", mine), ("f2", loose)):
            await wire.append(run_id, epoch, fact("artifact.completed", artifact_id=name, content_ref=ref))
        await wire.append(run_id, epoch, fact("run.started"), fact("run.completed"))
        await wire.view(run_id)
        late = await wire.http.post("/v1/content", content=b"x", params={"run_id": run_id})
        assert (late.status_code, late.json()["code"]) == (409, "run_terminal")
        await running.cli("compact", run_id)
        assert canary in (await wire.http.get(mine["uri"])).text
        await running.cli("erase", run_id, "--reason", "r")
        for ref in (mine, loose):
            assert (await wire.http.get(ref["uri"])).status_code == 404
            assert (await wire.http.get(ref["uri"], params={"raw": "true"})).status_code == 404
    kept = [path for path in (running.state_dir / "objects").rglob("*") if path.is_file()]
    assert not [path for path in kept if canary.encode() in path.read_bytes()]


async def test_a_large_result_is_kept_as_content_and_handed_back_after_a_restart(running: Product) -> None:
    """The agent gets the same value whether the call ran now or in an earlier attempt; it runs once."""
    large = [f"row of a table, number {number}" for number in range(10_000)]
    pool, ran, seen = f"pool-{uuid.uuid4().hex[:8]}", [], []

    async def query(call: ToolInProgress) -> list[str]:
        ran.append(call.id)
        return large

    async def agent(run: RunContext) -> str:
        seen.append(await run.call("query", {"q": 1}, query))
        if len(seen) == 1:
            raise asyncio.CancelledError  # the worker goes away here
        report = await run.put_content(b"%PDF" + b"x" * 100_000, "application/pdf")
        assert await run.get_content(report) == b"%PDF" + b"x" * 100_000
        return "done"

    async with HttpTransport(running.url, running.tokens["demo"]) as transport, running.client() as wire:
        started = await wire.http.post("/v1/runs", json={"agent": "a", "input": {}, "pool": pool})
        run_id = started.json()["run_id"]

        async def work() -> None:
            await Worker(transport, pool=pool, agent=agent, ttl_s=2).run()

        worker = asyncio.ensure_future(work())
        await eventually(lambda: len(seen) >= 2 or worker.done(), within_s=40)
        if worker.done():
            worker = asyncio.ensure_future(work())
            await eventually(lambda: len(seen) >= 2, within_s=40)
        assert seen == [large, large]
        assert len(ran) == 1
        wire.written.pop(run_id, None)
        facts = await wire.facts(run_id)
        (outcome,) = [one["payload"] for one in facts if one["type"] == "tool.completed"]
        assert outcome["content_ref"]["size"] > 64 * 1024
        assert "result" not in outcome
        got = await wire.http.get(outcome["content_ref"]["uri"])
        assert got.json() == large
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
