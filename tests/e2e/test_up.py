"""`runlane up` as a person meets it: ready, stopped, started again, killed in parts, refused by name."""

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import httpx

from support.product import Wire, fact, product


async def test_it_stops_cleanly_and_continues_where_it_was(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as up:
        async with up.client() as wire:
            run_id = await wire.start_run()
            epoch = await wire.lease(run_id)
            await wire.append(run_id, epoch, fact("run.started"), fact("turn.started", turn_id="t1"))
            before = await wire.facts(run_id)
            async with wire.watch(run_id, **{"from": "start"}) as frames:
                cursor = None
                async for frame in frames:
                    if frame.event == "fact":
                        cursor = frame.id
                    if frame.event == "synced":
                        break
        tokens = up.tokens
        assert await up.stop() == 0
        await up.start()
        assert up.tokens == tokens
        async with up.client() as wire:
            assert await wire.facts(run_id) == before
            await wire.append(run_id, epoch, fact("turn.completed", turn_id="t1"), fact("run.completed"))
            async with wire.watch(run_id, last_event_id=cursor) as frames:
                seen = [frame async for frame in frames]
        assert seen[0].data["outcome"] in {"resumed", "run_terminal"}
        assert [f.data["sequence"] for f in seen if f.event == "fact"] == [len(before) + 1, len(before) + 2]


async def test_the_broker_killed_under_it_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as up, up.client() as wire:
        run_id = await wire.start_run()
        epoch = await wire.lease(run_id)
        await wire.append(run_id, epoch, fact("run.started"))
        for n in range(3):
            os.kill(up.broker_pid, signal.SIGKILL)
            written = await _append_until_accepted(wire, run_id, epoch, f"t{n}")
            assert written
        await wire.append(run_id, epoch, fact("run.completed"))
        # Each service has a connection of its own; the reading one may still be on its way back.
        await eventually_answers(wire, f"/v1/runs/{run_id}/events")
        facts = await wire.facts(run_id)
    assert [f["sequence"] for f in facts] == list(range(1, len(facts) + 1))
    assert [f["payload"]["turn_id"] for f in facts if f["type"] == "turn.started"] == ["t0", "t1", "t2"]


async def eventually_answers(wire: Wire, path: str) -> None:
    for _ in range(100):
        reply = await wire.http.get(path)
        if reply.status_code == 200:
            return
        assert reply.status_code == 503, reply.text
        assert int(reply.headers["Retry-After"]) >= 1
        await asyncio.sleep(0.1)
    raise AssertionError(f"{path} stays unavailable")


async def _append_until_accepted(wire, run_id: str, epoch: int, turn_id: str) -> bool:
    event = fact("turn.started", turn_id=turn_id) | {"event_id": f"evt_{turn_id}"}
    for _ in range(100):
        try:
            reply = await wire.http.post(f"/v1/runs/{run_id}/events", json={"lease_epoch": epoch, "events": [event]})
        except httpx.HTTPError:
            reply = None
        if reply is not None and reply.status_code == 200:
            wire.written[run_id] = reply.json()["events"][-1]["sequence"]
            return True
        assert reply is None or reply.status_code == 503, reply.text
        await asyncio.sleep(0.1)
    return False


async def test_a_killed_process_leaves_no_broker_behind_and_can_be_started_again(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as up:
        async with up.client() as wire:
            run_id = await wire.start_run()
        broker = up.broker_pid
        await up.stop(signal.SIGKILL)
        for _ in range(200):
            if not Path(f"/proc/{broker}").exists():
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("the broker lives on")
        await up.start()
        async with up.client() as wire:
            assert (await wire.facts(run_id))[0]["type"] == "run.created"


async def test_a_folder_in_use_and_a_port_that_is_taken_are_said_by_name(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as up:
        second = await _ends(up.state_dir, "--http", "127.0.0.1:0", "--nats-port", "0")
        in_use = f"{up.state_dir} is in use by process {up.process.pid}; choose another with --state-dir"
        assert second == (1, f"runlane: cannot_start: {in_use}\n")
        port = up.url.rsplit(":", 1)[1]
        code, said = await _ends(tmp_path / "other", "--http", f"127.0.0.1:{port}", "--nats-port", "0")
        assert code == 1
        assert port in said
        assert "Traceback" not in said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = await _ends(tmp_path / "third", "--http", "127.0.0.1:0", "--nats-port", port)
    assert code == 1
    assert port in said
    assert "Traceback" not in said


async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    code, said = await _ends(tmp_path / "state", "--http", "0.0.0.0:0")
    assert code == 2
    assert "loopback" in said
    assert not (tmp_path / "state").exists()


async def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as up:
        for path in up.state_dir.rglob("*"):
            if path.name in {"keys.json", "connection.json"} or path.suffix == ".conf":
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        for token in up.tokens.values():
            assert token not in up.said()
        assert (up.state_dir / "connection.json").exists()
        await up.stop()
        assert not (up.state_dir / "connection.json").exists()


async def _ends(state_dir: Path, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runlane.cli", "up", "--state-dir", str(state_dir), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, err.decode()
