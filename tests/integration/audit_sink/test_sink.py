"""The sink on a real broker, as its own user, beside a gateway and a supervisor."""

import asyncio
import json
from typing import Any

import nats

from runlane.kernel.jetstream import api
from runlane_contracts.audit import PLATFORM
from support.audit_side import check, records, sink
from support.write_side import Client, WriteSide, a_waiting_run, eventually, fact


async def decided(me: Client) -> str:
    """A run that was asked, answered, and cancelled."""
    run_id, _ = await a_waiting_run(me)
    for _ in range(2):
        await me.command(run_id, "approval.resolve", {"approval_id": "a1", "decision": "approved"})
    await me.command(run_id, "run.cancel")
    return run_id


def shown(found: list[Any]) -> set[tuple[str, str, str]]:
    return {(f"{one.actor.kind}:{one.actor.id}", one.action, one.outcome) for one in found}


async def test_everything_that_was_decided_is_in_its_tenants_chain(side: WriteSide):
    async with sink(side):
        run_id = await decided(side.client())

        async def complete():
            found = await records(side, "demo")
            return [one for one in found if one.action == "run.cancel" and one.outcome == "applied"] and found

        found = await eventually(complete)

        async def cancelled():
            return [
                one for one in await records(side, "demo") if one.action in {"run.cancelled", "run.cancel_requested"}
            ]

        await eventually(cancelled)
        found = await records(side, "demo")
    assert {one.target.run_id for one in found if one.category != "checkpoint"} == {run_id}
    assert shown(found) >= {
        ("user:demo", "run.start", "accepted"),
        ("service:run_supervisor", "run.start", "applied"),
        ("user:demo", "run.created", "recorded"),
        ("system:runlane", "run.leased", "lease_epoch_1"),
        ("agent:w1@lease_epoch_1", "approval.requested", "recorded"),
        ("user:demo", "approval.resolve", "accepted"),
        ("user:demo", "approval.resolved", "approved"),
        ("service:run_supervisor", "approval.resolve", "applied"),
        ("service:run_supervisor", "approval.resolve", "rejected.already_resolved"),
        ("user:demo", "run.cancel", "accepted"),
    }
    await check(side)
    connection = await side.connections.of("audit_sink")
    assert connection.permission_violations == 0


async def test_refusals_wait_for_a_sink_that_is_not_there_and_need_no_run(side: WriteSide):
    other = side.client("other")
    assert (await other.http.get("/v1/commands/cmd_1", headers={"Authorization": "Bearer x"})).status_code == 401
    assert (await other.http.post("/v1/runs/run_x/commands", json={"type": "run.cancel"})).status_code == 404
    assert (await other.http.get("/v1/commands/cmd_2")).status_code == 404

    async with sink(side):

        async def all_three():
            return len(await records(side, category="access")) == 3

        await eventually(all_three)
    assert shown(await records(side, "other")) == {
        ("user:other", "POST /v1/runs/*/commands", "run_not_found"),
        ("user:other", "GET /v1/commands/*", "command_not_found"),
    }
    (nobody,) = await records(side, PLATFORM)
    assert (nobody.actor.id, nobody.action, nobody.outcome) == ("unknown", "GET /v1/commands/*", "unauthenticated")
    await check(side)


async def test_a_sink_that_starts_again_goes_on_where_the_stream_ends(side: WriteSide):
    me = side.client()
    for round_ in range(3):
        async with sink(side, checkpoint_records=5):
            run_id = await me.start_run()

            async def created(run_id: str = run_id):
                found = await records(side, "demo")
                return {(one.action, one.outcome) for one in found if one.target.run_id == run_id} >= {
                    ("run.created", "recorded"), ("run.start", "accepted"), ("run.start", "applied"),
                }  # fmt: skip

            await eventually(created)
        assert len(await records(side, "demo", "run")) == round_ + 1
    positions = [one.source_position for one in await records(side) if one.category != "checkpoint"]
    assert len(positions) == len(set(positions)) == 9
    assert (await check(side)).covered["demo"] >= 5


async def test_a_full_audit_says_so_and_loses_nothing(side: WriteSide):
    me = side.client()
    async with sink(side) as running:
        await me.start_run()

        async def sealed():
            return len(await records(side)) == 3

        await eventually(sealed)
        wide = await _bound(side, max_bytes=2500)
        runs = [await me.start_run() for _ in range(5)]

        async def waits():
            return "maximum bytes exceeded" in (await running.health()).detail.get("trouble", "")

        await eventually(waits)
        assert (await running.health()).ready
        await _bound(side, max_bytes=wide)

        async def all_of_them():
            return len([one for one in await records(side) if one.target.run_id in runs]) == 15

        await eventually(all_of_them, within_s=40)
        assert "trouble" not in (await running.health()).detail
    await check(side)


async def _bound(side: WriteSide, *, max_bytes: int) -> int:
    operator = await side.connections.of("operator")
    stream = side.layout.audit_stream
    config = (await api(operator, f"STREAM.INFO.{stream}", answer=dict[str, Any]))["config"]
    await api(operator, f"STREAM.UPDATE.{stream}", {**config, "max_bytes": max_bytes}, answer=dict[str, Any])
    return int(config["max_bytes"])


async def test_an_operator_has_the_chains_signed(side: WriteSide):
    async with sink(side) as running:
        run_id = await side.client().start_run()
        epoch = await side.client().lease(run_id)
        await side.client().append(run_id, epoch, fact("run.started"))

        async def sealed():
            return len(await records(side, "demo")) == 5

        await eventually(sealed)
        await running.operations["checkpoint"](b"")
    assert (await check(side)).covered == {"demo": 5}


async def test_what_the_broker_refuses_is_audited_with_who_and_what(side: WriteSide):
    """In `serve`, do not follow the logs."""
    server = side.server
    assert server.passwords is not None
    async with sink(side, broker_logs=(server.log_path,)):
        observer = await nats.connect(server.url_of("observer"), error_cb=_quiet, name='a "client" of\nmany lines')
        for subject in ("rl.log.00.demo.run_1", "rl.cmd.00.demo.run_1", "rl.cmd.00.demo.run_1"):
            await observer.publish(subject, b"")
        await observer.subscribe("rl.log.>")
        await observer.flush()
        await observer.close()
        await _log_in(server.port, "observer", "guessed")

        async def all_of_them():
            found = await records(side, PLATFORM, "access")
            return sum(one.count for one in found) >= 5 and found

        found = await eventually(all_of_them)
    told = {(one.actor.id, one.action, one.target.id, one.outcome) for one in found}
    assert told == {
        ("observer", "publish", "rl.log.00.demo.run_1", "forbidden"),
        ("observer", "publish", "rl.cmd.00.demo.run_1", "forbidden"),
        ("observer", "subscribe", "rl.log.>", "forbidden"),
        ("observer", "connect", "-", "unauthenticated"),
    }
    assert {one.causes for one in found} == {("broker",)}
    await check(side)


async def _log_in(port: int, user: str, password: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = {"user": user, "pass": password, "verbose": False, "pedantic": False}
    writer.write(f"CONNECT {json.dumps(said)}\r\nPING\r\n".encode())
    assert b"Authorization Violation" in await reader.read()
    writer.close()
    await writer.wait_closed()


async def _quiet(_error: Exception) -> None:
    """As is expected."""
