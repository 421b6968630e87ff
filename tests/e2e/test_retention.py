"""Finished runs of the whole product, archived and erased, seen from outside."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.eventually import eventually
from support.product import Frame, Product, Wire, fact, product


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("retention") / "state") as started:
        yield started


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def a_finished_run(wire: Wire, text: str = "hello") -> str:
    run_id = await wire.start_run(input={"text": text})
    epoch = await wire.lease(run_id)
    await wire.append(run_id, epoch, fact("run.started"))
    await wire.append(
        run_id, epoch, fact("message.completed", message_id="m1", role="assistant", content=text),
        fact("tool.requested", tool_call_id="c1", name="t", arguments={"x": text}, side_effect="none"),
        fact("approval.requested", approval_id="a1", description=text, risk="low", version=1, action_digest="d",
             tool_call_id="c1"),
    )  # fmt: skip
    decided = await wire.command(run_id, "approval.resolve", {"approval_id": "a1", "decision": "approved"})
    assert decided.status_code == 200
    await wire.append(
        run_id, epoch, fact("tool.running", tool_call_id="c1"),
        fact("tool.completed", tool_call_id="c1", result={"y": text}),
    )  # fmt: skip
    await wire.append(run_id, epoch, fact("run.completed", output={"z": text}))
    return run_id


async def everything(wire: Wire, run_id: str, **params: Any) -> list[Frame]:
    """All frames of a watch of a finished run."""
    async with asyncio.timeout(20), wire.watch(run_id, **params) as frames:
        return [frame async for frame in frames]


async def compact(running: Product, run_id: str) -> dict[str, Any]:
    _, out, _ = await running.cli("compact", run_id, "--json")
    return dict(json.loads(out))


async def test_an_archived_run_answers_as_before_and_an_old_cursor_is_told_to_start_over(running: Product) -> None:
    async with running.client() as wire:
        run_id = await a_finished_run(wire)
        facts, before = await wire.facts(run_id), await wire.snapshot(run_id)
        page = (await wire.http.get(f"/v1/runs/{run_id}/events", params={"limit": 2})).json()
        report = await compact(running, run_id)
        last = before["through_sequence"]
        assert (report["outcome"], report["from_sequence"], report["to_sequence"]) == ("compacted", 1, last)

        expired = await wire.http.get(f"/v1/runs/{run_id}/events", params={"cursor": page["cursor"]})
        assert (expired.status_code, expired.json()["code"]) == (410, "cursor_expired")
        address = expired.json()["snapshot"]
        after = (await wire.http.get(address)).json()
        assert (after["through_sequence"], after["state"]["run"]["status"]) == (last + 1, "completed")
        there = (await wire.http.get(report["snapshot_ref"])).json()
        assert there["checksum"] == before["checksum"]
        assert after["state"]["items"] == before["state"]["items"]

        view = (await wire.http.get(f"/v1/runs/{run_id}")).json()
        assert (view["status"], view["through_sequence"]) == ("completed", last + 1)
        again = await wire.facts(run_id)
        assert again[:last] == facts
        assert (again[last]["type"], again[last]["payload"]["reason"]) == ("log.compacted", "retention")

        reset = await everything(wire, run_id, cursor=page["cursor"])
        assert [frame.event for frame in reset] == ["hello", "snapshot", "synced", "end"]
        assert (reset[0].data["outcome"], reset[0].data["reason"]) == ("reset_required", "compacted")
        assert reset[1].data["checksum"] == after["checksum"]
        watched = [frame.data for frame in await everything(wire, run_id, **{"from": "start"}) if frame.event == "fact"]
        assert watched == again


async def test_every_moment_of_an_archived_run_can_still_be_looked_at(running: Product) -> None:
    async with running.client() as wire:
        run_id = await a_finished_run(wire)
        last = (await wire.snapshot(run_id))["through_sequence"]

        async def checksums() -> list[str]:
            found = []
            for sequence in range(1, last + 1):
                reply = await wire.http.get(f"/v1/runs/{run_id}/snapshot", params={"at_sequence": sequence})
                assert reply.status_code == 200, reply.text
                found.append(reply.json()["checksum"])
            return found

        before = await checksums()
        await compact(running, run_id)
        assert await checksums() == before
        code, out, _ = await running.cli("replay", run_id, "--json")
        assert code == 0
        assert [json.loads(line)["sequence"] for line in out.splitlines()] == list(range(1, last + 2))


async def test_a_reader_resumes_at_every_cut_inside_the_archive(running: Product) -> None:
    """P5 on an archived run: cursors that were given since it was archived continue exactly."""
    async with running.client() as wire:
        run_id = await a_finished_run(wire)
        await wire.view(run_id)
        await compact(running, run_id)
        frames = [f for f in await everything(wire, run_id, **{"from": "start"}) if f.event == "fact"]
        sequences = [frame.data["sequence"] for frame in frames]
        for cut, frame in enumerate(frames[:-1], 1):
            rest = await everything(wire, run_id, last_event_id=frame.id)
            assert [one.data["sequence"] for one in rest if one.event == "fact"] == sequences[cut:]


async def test_an_archived_run_is_over_and_its_id_stays_used(running: Product) -> None:
    async with running.client() as wire:
        run_id = await a_finished_run(wire)
        await wire.view(run_id)
        await compact(running, run_id)
        for type_, payload in (
            ("run.cancel", {}), ("message.send", {"content": "x"}),
            ("approval.resolve", {"approval_id": "a1", "decision": "rejected"}),
        ):  # fmt: skip
            late = await wire.command(run_id, type_, payload)
            assert (late.status_code, late.json()["code"]) == (409, "run_terminal"), type_
        lease = await wire.http.post(f"/v1/runs/{run_id}/lease", json={"worker_id": "w", "ttl_s": 5})
        assert (lease.status_code, lease.json()["code"]) == (409, "run_terminal")
        same = await wire.http.post("/v1/runs", json={"agent": "test", "input": {}, "run_id": run_id})
        assert (same.status_code, same.json()["code"]) == (409, "already_exists")
        assert (await compact(running, run_id))["outcome"] == "already"


async def test_what_is_folded_again_from_the_archive_is_the_same(running: Product) -> None:
    async with running.client() as wire:
        run_id = await a_finished_run(wire)
        await wire.view(run_id)
        await compact(running, run_id)
        before = await wire.snapshot(run_id)
        _, out, _ = await running.cli("rebuild", "--json")
        report = json.loads(out)
        assert report["switched"], report
        assert (report.get("missing_runs", 0), report["differences"]) == (0, [])
        assert (await wire.snapshot(run_id))["checksum"] == before["checksum"]


async def test_a_pass_takes_what_is_due_and_never_a_running_run(running: Product) -> None:
    async with running.client() as wire:
        done, going = await a_finished_run(wire), await wire.start_run()
        await wire.view(done)
        _, out, _ = await running.cli("compact", "--older-than", "0s", "--dry-run", "--json")
        due = {json.loads(line)["run_id"] for line in out.splitlines()}
        assert done in due
        assert going not in due
        _, out, _ = await running.cli("compact", "--older-than", "0s", "--json")
        assert done in {one["run_id"] for one in map(json.loads, out.splitlines()) if one["outcome"] == "compacted"}
        for verb in (("compact", going), ("erase", going, "--reason", "r")):
            code, _, said = await running.cli(*verb, check=False)
            assert (code, "run_not_terminal" in said) == (1, True)
        code, _, said = await running.cli("erase", done, "--reason", "r", "--tenant", "other", check=False)
        assert (code, "run_not_found" in said) == (1, True)
        epoch = await wire.lease(going)
        await wire.append(going, epoch, fact("run.started"))


async def test_an_erased_run_is_forgotten_everywhere_and_keeps_its_proof(running: Product) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    async with running.client() as wire:
        run_id = await a_finished_run(wire, canary)
        before = await wire.facts(run_id)
        old = (await wire.http.get(f"/v1/runs/{run_id}/events", params={"limit": 3})).json()["cursor"]
        async with wire.watch(run_id, **{"from": "start"}) as frames:  # its frames are at hand in the gateway
            assert canary in json.dumps([frame.data async for frame in frames])
        await running.cli("erase", run_id, "--reason", "asked to")
        _, out, _ = await running.cli("erase", run_id, "--reason", "again", "--json")
        assert json.loads(out)["outcome"] == "already"

        after = await wire.facts(run_id)
        for was, now in zip(before, after, strict=False):
            assert (now["sequence"], now["type"], now["payload"]) == (was["sequence"], was["type"], {})
            (mark,) = now["redactions"]
            assert (mark["path"], mark["rule"], mark["action"]) == ("", "erasure", "removed")
            assert len(mark["sha256"]) == 64
        assert after[-1]["payload"]["reason"] == "erasure"
        expired = await wire.http.get(f"/v1/runs/{run_id}/events", params={"cursor": old})
        assert expired.status_code == 410
        assert (await wire.view(run_id))["status"] == "completed"
        seen = [frame.data for frame in await everything(wire, run_id, **{"from": "start"})]
        seen += [frame.data for frame in await everything(wire, run_id, cursor=old)]
        assert canary not in json.dumps(seen)
        for path in ("", "/snapshot", "/snapshot?at_sequence=4", "/timeline"):
            reply = await wire.http.get(f"/v1/runs/{run_id}{path}")
            assert (reply.status_code, canary in reply.text) == (200, False), path
        _, said, _ = await running.cli("audit", "show", "--json")
        assert any('"log.compacted"' in line and run_id in line and "erasure" in line for line in said.splitlines())
    await eventually(lambda: not holding(running.state_dir, canary), within_s=20)


def holding(folder: Path, text: str) -> list[str]:
    """The files that hold a text."""
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(path.name)
        except FileNotFoundError:
            continue
    return found
