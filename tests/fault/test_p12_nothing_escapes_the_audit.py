"""P12, first half: no decision escapes the audit.

The sink is killed with SIGKILL at random moments, stands frozen while another one takes over, or finds the broker gone,
while tenants start runs, decide, are refused. Then every command, every outcome, every decision and lease change of the
log, and every refusal has to be in its tenant's chain, once, and the chain has to be whole.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from runlane.audit_sink.records import category_of
from runlane.kernel.errors import KernelError
from runlane.kernel.jetstream import api
from runlane_contracts.audit import PLATFORM, AuditRecord
from support.audit_side import check, forget_the_dead, records, sink, sink_process
from support.eventually import eventually
from support.product import Wire, product
from support.write_side import Client, WriteSide, a_waiting_run, clustered_side, write_side

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]


class Load:
    """What tenants do all the time, and what of it has to be in the audit."""

    def __init__(self, side: WriteSide) -> None:
        self.side = side
        self.commands: dict[str, str] = {}
        """Command id → outcome."""
        self.runs: list[str] = []
        self.refused = Counter[tuple[str, str]]()
        self.done = asyncio.Event()
        self.last = ""

    async def tenant(self, me: Client, other: Client) -> None:
        while not self.done.is_set():
            run_id, _ = await a_waiting_run(me)
            self.runs.append(run_id)
            for decision in ("approved", "rejected"):
                payload = {"approval_id": "a1", "decision": decision}
                await self._command(me, run_id, "approval.resolve", payload)
            await self._refused(other, f"/v1/runs/{run_id}/commands", "run_not_found", "other")
            await self._command(me, run_id, "run.cancel", {"reason": "enough"})
            await asyncio.sleep(0.02)  # a load, not a race with the size of the stream

    async def nobody(self, me: Client) -> None:
        while not self.done.is_set():
            headers = {"Authorization": "Bearer nobody"}
            await self._refused(me, "/v1/runs", "unauthenticated", PLATFORM, headers=headers)
            await asyncio.sleep(0.02)

    async def _command(self, me: Client, run_id: str, type_: str, payload: dict) -> None:
        reply = await me.command(run_id, type_, payload, wait_s=20)
        if reply.status_code == 200:
            self.commands[reply.json()["command_id"]] = "applied"
        elif reply.status_code == 409:
            self.commands.setdefault(f"{run_id}/{type_}", f"rejected.{reply.json()['code']}")

    async def _refused(self, who: Client, path: str, code: str, tenant_id: str, **request) -> None:
        reply = await who.http.post(path, json={"type": "run.cancel"}, **request)
        assert reply.json()["code"] == code
        self.refused[tenant_id, code] += 1


def missing(load: Load, found: list[AuditRecord], facts: Counter[str]) -> str:
    """What is not in the audit yet, or there twice. Empty: it is as it should be."""
    said = Counter((one.target.id, one.outcome) for one in found if one.category == "command")
    for command, outcome in load.commands.items():
        if command.startswith("cmd_") and (said[command, "accepted"], said[command, outcome]) != (1, 1):
            return f"{command} {outcome}: {said[command, 'accepted']}, {said[command, outcome]}"
    rejected = sum(count for (_, outcome), count in said.items() if outcome.startswith("rejected."))
    if rejected != sum(outcome.startswith("rejected.") for outcome in load.commands.values()):
        return f"{rejected} rejections"
    stated = Counter(one.causes[0] for one in found if one.category in {"decision", "lease", "run"})
    if stated != facts:
        return f"facts: {list((facts - stated).items())[:3]} too few, {list((stated - facts).items())[:3]} too many"
    refused = Counter((one.tenant_id, one.outcome) for one in found if one.category == "access")
    return "" if refused == load.refused else f"refusals: {refused} instead of {load.refused}"


async def all_is_sealed(load: Load) -> None:
    async def nothing_is_missing() -> bool:
        facts: Counter[str] = Counter()
        try:
            for run_id in load.runs:
                facts.update(one.event_id for one in await load.side.facts(run_id) if category_of(one.type) is not None)
            load.last = missing(load, await records(load.side), facts)
        except KernelError as exc:  # the broker is coming back
            load.last = str(exc)
        return not load.last

    try:
        await eventually(nothing_is_missing, within_s=60, every_s=0.5)
    except AssertionError:
        raise AssertionError(load.last) from None
    await check(load.side)


async def under_load(side: WriteSide, harm) -> Load:
    load = Load(side)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(load.tenant(side.client(), side.client("other")))
        tasks.create_task(load.nobody(side.client()))
        await harm()
        load.done.set()
    return load


async def test_p12_a_sink_killed_at_random_points_seals_everything_once() -> None:
    """In `SourceHandler.resume`, answer the source's last sequence: what came while no sink ran is skipped. In
    `Sealer._message`, leave the header out: the next sink does not know where to go on."""
    chance = random.Random(12)
    async with write_side() as side:

        async def kill_again_and_again() -> None:
            for _ in range(14):
                with sink_process(side, checkpoint_records=25, batch_messages=chance.choice([1, 7, 256])) as process:
                    await asyncio.sleep(1.2 + chance.random() * 1.2)
                    process.send_signal(signal.SIGKILL)
                await forget_the_dead(side)

        load = await under_load(side, kill_again_and_again)
        with sink_process(side):
            await all_is_sealed(load)
        assert len(load.commands) > 100
        assert sum(load.refused.values()) > 100


async def test_p12_a_frozen_sink_and_the_one_that_took_over_write_one_chain() -> None:
    """In `publish_atomic`, leave the expected sequence out: the thawed one writes over its successor's head."""
    async with write_side() as side:

        async def freeze_one_after_the_other() -> None:
            with sink_process(side, checkpoint_records=25) as one, sink_process(side, checkpoint_records=25) as other:
                await asyncio.sleep(2)
                for process in (one, other, one, other):
                    os.kill(process.pid, signal.SIGSTOP)
                    await forget_the_dead(side)
                    await asyncio.sleep(1.5)
                    os.kill(process.pid, signal.SIGCONT)
                    await asyncio.sleep(0.5)

        load = await under_load(side, freeze_one_after_the_other)
        with sink_process(side):
            await all_is_sealed(load)


async def test_p12_a_broker_killed_while_sealing_leaves_a_whole_chain() -> None:
    """Keep the book after a Conflict and after an error (`Sealer._write`) and in `Sealer.resume`: a write that was
    stored and not heard of is never got over."""
    chance = random.Random(13)
    async with write_side(sync_interval="always") as side:

        async def for_a_while() -> None:
            await asyncio.sleep(12)

        load = await under_load(side, for_a_while)
        sealed = Sealed(side)
        with sink_process(side, checkpoint_records=25, batch_messages=2):
            for _ in range(12):
                await eventually(sealed.something_more, within_s=30, every_s=0.05)
                await asyncio.sleep(chance.random() * 0.1)
                await side.server.restart()
            await all_is_sealed(load)
        assert len(load.commands) > 50


class Sealed:
    """How many records there were when somebody last looked."""

    def __init__(self, side: WriteSide) -> None:
        self.side, self.count = side, 0

    async def something_more(self) -> bool:
        before = self.count
        try:
            self.count = len(await records(self.side))
        except KernelError:
            return False
        return self.count > before


async def leader_of(side: WriteSide, stream: str) -> str:
    info: dict = await api(await side.connections.of("operator"), f"STREAM.INFO.{stream}", answer=dict)
    return str(info["cluster"]["leader"])


async def test_p12_on_three_nodes_one_of_which_dies_one_whole_chain_has_everything() -> None:
    """What keeps it is what the other tests here take out; it has to do so on replicas and over an election too."""
    async with clustered_side() as (side, servers):

        async def one_node_dies_and_comes_back() -> None:
            await asyncio.sleep(2)
            name = await leader_of(side, side.layout.audit_stream)
            leader = next(one for one in servers if one.server_name == name)
            leader.kill9()
            await asyncio.sleep(8)
            await leader.start()
            await asyncio.sleep(2)

        async with sink(side, checkpoint_records=25, batch_messages=16):
            load = await under_load(side, one_node_dies_and_comes_back)
            await all_is_sealed(load)
        assert len(load.commands) > 10


async def test_p12_a_gateway_killed_right_after_it_answered_had_every_refusal_recorded(tmp_path: Path) -> None:
    """In hosting/http.py, `Problems`: answer without waiting for `stored`; the last ones of each round are lost."""
    answered: list[str] = []

    async def refused(me: Wire, round_: int, number: int) -> None:
        run_id = f"absent-{round_}-{number}"
        with contextlib.suppress(httpx.HTTPError):
            reply = await me.http.get(f"/v1/runs/{run_id}")
            assert reply.status_code == 404
            answered.append(run_id)

    async with product(tmp_path / "state") as up:
        for round_ in range(4):
            enough = len(answered) + 25
            async with up.client() as me:
                asking = [asyncio.ensure_future(refused(me, round_, number)) for number in range(50)]
                while len(answered) < enough:
                    await asyncio.sleep(0)
                await up.stop(signal.SIGKILL)
                await asyncio.gather(*asking)
            await up.start()

        async def all_recorded() -> bool:
            _, shown, _ = await up.cli("audit", "show", "--json")
            found = [json.loads(line)["target"].get("run_id") for line in shown.splitlines()]
            assert len(found) == len(set(found))
            return set(answered) <= set(found)

        await eventually(all_recorded, within_s=30, every_s=0.5)
        await up.cli("audit", "verify")
    assert len(answered) >= 100
