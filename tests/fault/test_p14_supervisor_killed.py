"""P14: the supervisor is killed every two seconds while people decide; each command has one effect and one answer."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.fleet import TOKEN, Fleet, fleet
from support.product import Wire, fact

pytestmark = [pytest.mark.fault, pytest.mark.slow]

KILL_EVERY_S = 2.0
LOAD_S = 14.0
ANSWERED = asyncio.Event()
"""A command got its final answer."""


@asynccontextmanager
async def killed_again_and_again(all_: Fleet) -> AsyncIterator[list[float]]:
    """The supervisor, `kill -9` and started anew, until left. When it was killed.

    On a busy machine it needs seconds to start: it is never killed before it decided something.
    """
    kills: list[float] = []

    async def kill() -> None:
        while True:
            ANSWERED.clear()
            await asyncio.sleep(KILL_EVERY_S)
            await ANSWERED.wait()
            await all_.stop("run_supervisor", signal.SIGKILL)
            kills.append(time.monotonic())
            await all_.start("run_supervisor")

    killing = asyncio.ensure_future(kill())
    try:
        yield kills
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)


async def settled(wire: Wire, run_id: str, type_: str, payload: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Ask under one key until there is an answer that is final, as a client does that knows nothing of kills."""
    body = {"type": type_, "payload": payload}
    headers = {"Idempotency-Key": key, "Prefer": "wait=10"}
    while True:
        try:
            reply = await wire.http.post(f"/v1/runs/{run_id}/commands", json=body, headers=headers)
        except httpx.TransportError:
            continue
        if reply.status_code not in {202, 503}:
            ANSWERED.set()
            return {**reply.json(), "status": reply.status_code}
        await asyncio.sleep(0.1)


async def both(wire: Wire, run_id: str, type_: str, payload: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The same command twice at once: one answer."""
    one, two = await asyncio.gather(*(settled(wire, run_id, type_, payload, key) for _ in range(2)))
    assert one == two
    return one


async def a_run(wire: Wire, n: int) -> str:
    run_id = f"run_{n}"
    start = {"agent": "a", "dispatch": "external", "run_id": run_id, "idempotency_key": f"start{n}"}
    while (await wire.http.post("/v1/runs", json=start, headers={"Prefer": "wait=10"})).status_code != 201:
        await asyncio.sleep(0.1)
    epoch = await wire.lease(run_id, ttl_s=120)
    call = {"name": "pay", "arguments": {"n": n}, "action_digest": f"d{n}"}
    await wire.append(
        run_id, epoch, fact("run.started"), fact("tool.requested", tool_call_id="c1", **call),
        fact("tool.requested", tool_call_id="c2", **call),
        fact("tool.failed", tool_call_id="c2", error={"code": "timeout", "retryable": True}),
        fact("approval.requested", approval_id="a1", tool_call_id="c1", description="d", risk="r", version=1,
             action_digest=f"d{n}"),
    )  # fmt: skip
    return run_id


async def decide_on(wire: Wire, n: int) -> None:
    """Two answers race, two retries race, and in the end a cancel: of each race one has an effect."""
    run_id = await a_run(wire, n)
    yes, no, first, second = await asyncio.gather(
        both(wire, run_id, "approval.resolve", {"approval_id": "a1", "decision": "approved"}, f"yes{n}"),
        both(wire, run_id, "approval.resolve", {"approval_id": "a1", "decision": "rejected"}, f"no{n}"),
        both(wire, run_id, "tool.retry", {"tool_call_id": "c2"}, f"first{n}"),
        both(wire, run_id, "tool.retry", {"tool_call_id": "c2"}, f"second{n}"),
    )
    assert sorted((yes["status"], no["status"])) == [200, 409], (yes, no)
    won, lost = (yes, no) if yes["status"] == 200 else (no, yes)
    said = "approved" if won is yes else "rejected"
    assert (lost["code"], lost["recorded"]["decision"]) == ("already_resolved", said)
    assert sorted((first["status"], second["status"])) == [200, 409], (first, second)
    assert {first.get("code"), second.get("code")} == {None, "already_retried"}
    cancels = await asyncio.gather(*(both(wire, run_id, "run.cancel", {}, f"cancel{n}-{k}") for k in range(2)))
    assert {one["status"] for one in cancels} == {200}

    facts = await wire.facts(run_id)
    assert [one["sequence"] for one in facts] == list(range(1, len(facts) + 1))
    decided = [one for one in facts if one["type"] == "approval.resolved"]
    assert [one["payload"]["decision"] for one in decided] == [said]
    assert decided[0]["causation_ids"] == [won["command_id"]]
    assert [one["payload"].get("retry_of") for one in facts if one["type"] == "tool.requested"] == [None, None, "c2"]
    assert [one["type"] for one in facts].count("run.cancel_requested") == 1
    again = await settled(wire, run_id, "approval.resolve", {"approval_id": "a1", "decision": said}, _key(said, n))
    assert again == won, "the first answer, for ever"


def _key(said: str, n: int) -> str:
    return f"{'yes' if said == 'approved' else 'no'}{n}"


@pytest.mark.timeout(120)
async def test_p14_a_supervisor_that_is_killed_every_two_seconds_decides_each_command_once(tmp_path: Path) -> None:
    """To see it fail: let `machine.decide` not look at `applied_commands`, or acknowledge before `settle` returns."""
    async with fleet(tmp_path) as all_, Wire(all_.url, TOKEN) as wire:
        async with killed_again_and_again(all_) as kills:
            until, n = time.monotonic() + LOAD_S, 0
            while time.monotonic() < until:
                await asyncio.gather(*(decide_on(wire, n + k) for k in range(4)))
                n += 4
        assert len(kills) >= 2
