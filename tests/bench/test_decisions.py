"""What a decision costs: from asking to applied, against what the broker alone needs for as many steps.

The bare way, in the same run: one request and its reply, then one stored publish. A command goes from the gateway to
the ledger, the command stream, the supervisor, the log, and back. Prints, asserts nothing about speed.
"""

import asyncio
import time
import uuid
from statistics import quantiles

import pytest

from support.write_side import Client, WriteSide, write_side

pytestmark = pytest.mark.bench

DECISIONS = 200
RUNS = 1_000
AT_ONCE = 64


def told(name: str, taken_s: list[float]) -> str:
    cuts = quantiles(taken_s, n=100)
    return f"{name:<44} p50 {cuts[49] * 1e3:7.2f} ms   p99 {cuts[98] * 1e3:7.2f} ms"


async def bare(side: WriteSide) -> tuple[list[float], float]:
    """A request that another client answers, and a publish that the stream acknowledges: what one takes after another,
    and how many are done in a second, `AT_ONCE` at once."""
    asking = await side.connections.of("command_gateway")
    answering = await side.connections.of("run_supervisor")
    subject = side.layout.subjects.service("run_supervisor", "share")

    async def answer(message: object) -> None:
        await answering.nc.publish(message.reply, b"ok")  # type: ignore[attr-defined]

    subscription = await answering.nc.subscribe(subject, cb=answer)
    await answering.nc.flush()
    operator = await side.connections.of("operator")
    slots = asyncio.Semaphore(AT_ONCE)

    async def once(n: int) -> float:
        async with slots:
            began = time.perf_counter()
            await operator.nc.request(subject, b"x" * 300, timeout=5)
            await asking.request(f"{side.layout.root}.cmd.00.bench.run_{n}", b"{}", timeout_s=5)
            return time.perf_counter() - began

    taken = [await once(n) for n in range(DECISIONS)]
    began = time.perf_counter()
    await asyncio.gather(*(once(n) for n in range(RUNS)))
    per_s = RUNS / (time.perf_counter() - began)
    await subscription.unsubscribe()
    return taken, per_s


async def one(me: Client, run_id: str) -> float:
    began = time.perf_counter()
    reply = await me.command(run_id, "message.send", {"content": "go on"}, key=uuid.uuid4().hex, wait_s=30)
    assert reply.status_code == 200, reply.text
    return time.perf_counter() - began


@pytest.mark.timeout(300)
async def test_what_a_decision_costs(capsys: pytest.CaptureFixture[str]) -> None:
    async with write_side(sync_interval="always", starts_burst=1e6, starts_per_s=1e6) as side:
        me = side.client()
        run_id = await me.start_run()
        decided = [await one(me, run_id) for _ in range(DECISIONS)]

        slots = asyncio.Semaphore(AT_ONCE)
        runs = [f"run_{n}" for n in range(RUNS)]

        async def start(run_id: str) -> None:
            async with slots:
                await me.start_run(run_id=run_id)

        async def decide(run_id: str) -> float:
            async with slots:
                return await one(me, run_id)

        began = time.perf_counter()
        await asyncio.gather(*map(start, runs))
        started_s = time.perf_counter() - began
        began = time.perf_counter()
        busy = await asyncio.gather(*map(decide, runs))
        busy_s = time.perf_counter() - began
        # Last: what it publishes is no command, and the supervisor has to bury it.
        alone, alone_per_s = await bare(side)
    mine, theirs = quantiles(decided, n=100), quantiles(alone, n=100)
    with capsys.disabled():
        print(
            "", told("a command, accepted to applied", decided), told("bare: request, reply, stored publish", alone),
            f"ratio p50 {mine[49] / theirs[49]:.1f}   p99 {mine[98] / theirs[98]:.1f}",
            told(f"a command, {AT_ONCE} at once over {RUNS} runs", busy),
            f"starts {RUNS / started_s:.0f}/s, commands {RUNS / busy_s:.0f}/s over {RUNS} runs (sync_interval: always)",
            f"bare, {AT_ONCE} at once: {alone_per_s:.0f}/s; ratio {alone_per_s * busy_s / RUNS:.1f}",
            sep="\n",
        )  # fmt: skip
