"""P4: the same command twice has one effect and one answer, whoever is killed in between."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runlane.kernel.errors import Retryable
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.subjects import RunAddress
from support.write_side import WriteSide, eventually, fact, problem, write_side

pytestmark = pytest.mark.fault


@contextmanager
def supervisor(side: WriteSide) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor in a process of its own."""
    assert side.server.passwords is not None
    environment = {
        **os.environ,
        "RUNLANE_NATS_URL": side.server.url,
        "RUNLANE_NATS_PASSWORD": side.server.passwords["run_supervisor"],
        "RUNLANE_STREAM_MAX_BYTES": str(side.layout.max_bytes),
        "RUNLANE_HEALTH_PORT": "-1",
    }
    process = subprocess.Popen([sys.executable, "-m", "runlane.run_supervisor"], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_p4_a_supervisor_that_is_killed_again_and_again_applies_each_command_once() -> None:
    """To see it fail: let `machine.decide` not look at `applied_commands`."""
    chance = random.Random(4)
    async with write_side(supervisor=False) as side:
        me = side.client()
        keys = [f"k{n}" for n in range(150)]
        with supervisor(side):
            run_id = await me.start_run()
        done = asyncio.Event()

        async def keep_killing() -> None:
            while not done.is_set():
                with supervisor(side) as process:
                    await asyncio.sleep(7 + chance.random())  # a predecessor's pin takes five seconds to lapse
                    process.send_signal(signal.SIGKILL)

        async def ask(key: str) -> int:
            while True:
                reply = await me.command(run_id, "message.send", {"content": key}, key=key, wait_s=30)
                if reply.status_code == 200:
                    return int(reply.json()["applied_sequence"])
                assert reply.status_code in {202, 503}, reply.text

        killer = asyncio.get_running_loop().create_task(keep_killing())
        try:
            sequences = []
            for at in range(0, len(keys), 5):
                sequences += await asyncio.gather(*(ask(key) for key in keys[at : at + 5]))
                await asyncio.sleep(0.3)
        finally:
            done.set()
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        said = await side.payloads(run_id, "message.completed")
        assert Counter(one["content"] for one in said) == dict.fromkeys(keys, 1)
        again = [(await me.command(run_id, "message.send", {"content": key}, key=key)).json() for key in keys]
        assert [one["applied_sequence"] for one in again] == sequences, "the first answer, for ever"


async def test_p4_a_gateway_that_died_before_it_sent_the_command_is_made_good_by_the_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To see it fail: let `Intake._accept` send only what it entered itself (`entry.accepted_at == at`)."""
    async with write_side() as side:
        me = side.client()
        run_id = await me.start_run()
        with monkeypatch.context() as dying:

            async def dies(*_args: object, **_kw: object) -> None:
                raise Retryable("killed")

            publish = WindowedPublisher.publish

            async def dies_on_commands(self: WindowedPublisher, subject: str, *args: object, **kw: object) -> object:
                if subject.startswith("rl.cmd."):
                    await dies()
                return await publish(self, subject, *args, **kw)  # type: ignore[arg-type]

            dying.setattr(WindowedPublisher, "publish", dies_on_commands)
            lost = await me.command(run_id, "message.send", {"content": "hi"}, key="once")
        problem(lost, 503, "overloaded")
        known = (await me.http.get("/v1/commands", params={"idempotency_key": "once"})).json()
        assert known["status"] == "accepted"
        replies = await asyncio.gather(
            *(me.command(run_id, "message.send", {"content": "hi"}, key="once") for _ in range(4))
        )
        assert {reply.status_code for reply in replies} == {200}
        assert len(await side.payloads(run_id, "message.completed")) == 1


async def test_p4_a_cancel_goes_before_what_waits() -> None:
    """To see it fail: take `urgent=is_urgent` out of the supervisor's `app.py`."""
    async with write_side() as side:
        me = side.client()
        run_id = await me.start_run()
        await side.stop_supervisor()
        for n in range(5):
            await me.command(run_id, "message.send", {"content": f"m{n}"}, key=f"m{n}", wait_s=None)
        await me.command(run_id, "run.cancel", key="cancel", wait_s=None)
        await side.start_supervisor()

        async def status(key: str) -> str:
            found = await me.http.get("/v1/commands", params={"idempotency_key": key})
            return str(found.json()["status"])

        async def all_settled() -> list[str] | None:
            found = [await status(f"m{n}") for n in range(5)] + [await status("cancel")]
            return None if "accepted" in found else found

        settled = await eventually(all_settled, within_s=20)
        assert settled[-1] == "applied"
        # The first of them may have been in hand when the cancel arrived.
        assert settled[:5].count("rejected") >= 4, settled
        assert (await side.types(run_id))[-1] == "run.cancelled"


@pytest.mark.slow
async def test_p14_a_second_supervisor_takes_over_and_no_moment_is_lost() -> None:
    """To see it fail: let `LeaseWatch._learn` answer None: nobody looks when a lease runs out."""
    async with write_side(supervisor=False) as side:
        me = side.client()
        with supervisor(side) as first:
            run_id = await me.start_run()
            lost = await me.start_run()
            await me.lease(lost, ttl_s=3)
            with supervisor(side):
                await asyncio.sleep(1.5)
                first.send_signal(signal.SIGKILL)
                reply = await me.command(run_id, "message.send", {"content": "hi"}, wait_s=20)
                assert reply.status_code == 200, reply.text

                async def is_lost() -> bool:
                    return "run.lease_lost" in await side.types(lost)

                await eventually(is_lost, within_s=15)
                assert (await side.types(lost)).count("run.lease_lost") == 1


async def test_two_supervisors_that_look_at_the_same_moment_write_it_once() -> None:
    """To see it fail: let `machine.on_approval_expired` not look at the resolution."""
    async with write_side() as side:
        other = WriteSide(side.server, side.layout, side.connections, side.common)
        await other.start_supervisor()
        me = side.client()
        runs = [await me.start_run() for _ in range(5)]
        for run_id in runs:
            epoch = await me.lease(run_id, ttl_s=0.5)
            ask = fact("approval.requested", approval_id="a", description="d", risk="r", version=1, action_digest="d",
                       expires_at="2020-01-01T00:00:00Z")  # fmt: skip
            await me.append(run_id, epoch, fact("run.started"), ask)

        async def settled(run_id: str) -> bool:
            return {"run.lease_lost", "approval.resolved"} <= set(await side.types(run_id))

        for run_id in runs:
            await eventually(lambda run_id=run_id: settled(run_id))
            counts = Counter(await side.types(run_id))
            assert counts["run.lease_lost"] == counts["approval.resolved"] == 1, RunAddress("demo", run_id)
        await other.stop_supervisor()
