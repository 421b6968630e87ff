"""What measuring costs: of one call without a collector, and of the whole product with one.

One JSON object a line on stdout. Nothing is asserted about speed.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runlane.hosting.http_meter import HttpMeter
from runlane.hosting.measured_log import MeasuredLog
from runlane.hosting.settings import CommonSettings
from runlane.hosting.spans import measured
from runlane.hosting.telemetry import start_telemetry
from runlane.kernel.delivery import Delivery
from runlane.kernel.event_log import NOTHING
from runlane_contracts.cursor import Position
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import Subjects
from support.builders import a_commit, a_run
from support.collector import collector
from support.product import Product, Wire, fact, product

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.timeout(300)]

CALLS = 20_000
PRODUCERS, SECONDS = 8, 6.0


def say(**numbers: object) -> None:
    print(json.dumps(numbers))


async def us_each(call: Callable[[], Awaitable[object]]) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(CALLS // 3):
            await call()
        best = min(best, (time.perf_counter() - began) / (CALLS // 3))
    return best * 1e6


async def test_one_call_without_a_collector() -> None:
    telemetry = start_telemetry(CommonSettings(), "bench", "1")

    async def answer(_scope, _receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def sent(_message) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/runs/r/events", "headers": [], "endpoint": answer}
    metered = HttpMeter(answer, "bench")
    bare, with_meter = (
        await us_each(lambda: answer(scope, None, sent)),
        await us_each(lambda: metered(scope, None, sent)),
    )
    say(case="request", bare_us=round(bare, 2), measured_us=round(with_meter, 2))

    class Log:
        async def commit(self, _commit, *, after) -> Position:
            return after

    commit, log = a_commit(a_run(), NOTHING), Log()
    wrapped = MeasuredLog(log, Layout(), "bench")
    bare = await us_each(lambda: log.commit(commit, after=NOTHING))
    say(
        case="append",
        bare_us=round(bare, 2),
        measured_us=round(await us_each(lambda: wrapped.commit(commit, after=NOTHING)), 2),
    )

    batch = [Delivery("rl.log.00.a.r", b"", {}, "RL_LOG_0", n, n, 1, time.time_ns(), 0, "x") for n in range(1, 101)]

    async def handle(_batch) -> int:
        return 100

    timed = measured(handle, Layout().consumers()[0], Subjects())
    bare, with_meter = await us_each(lambda: handle(batch)), await us_each(lambda: timed(batch))
    say(case="batch of 100", bare_us=round(bare, 2), measured_us=round(with_meter, 2))
    telemetry.close()


async def appends_per_s(up: Product) -> float:
    async def produce(wire: Wire) -> int:
        run_id = await wire.start_run()
        epoch, count = await wire.lease(run_id), 0
        await wire.append(run_id, epoch, fact("run.started"))
        until = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < until:
            await wire.append(run_id, epoch, fact("turn.started", turn_id=f"t{count}"))
            count += 1
        return count

    async with up.client() as wire:
        return sum(await asyncio.gather(*(produce(wire) for _ in range(PRODUCERS)))) / SECONDS


async def test_the_whole_product_with_a_collector(tmp_path: Path) -> None:
    async with collector(tmp_path) as taps:
        speeds: dict[str, list[float]] = {"off": [], "tenth": [], "all": []}
        for turn in range(2):
            for name, environment in {
                "off": {},
                "tenth": {"RUNLANE_TELEMETRY_ENDPOINT": taps.url, "RUNLANE_TELEMETRY_SAMPLE_RATIO": "0.1"},
                "all": {"RUNLANE_TELEMETRY_ENDPOINT": taps.url},
            }.items():
                os.environ.update(environment)
                try:
                    async with product(tmp_path / f"{name}{turn}") as up:
                        speeds[name].append(await appends_per_s(up))
                finally:
                    for key in environment:
                        del os.environ[key]
    best = {name: max(found) for name, found in speeds.items()}
    ratios = {f"{name}_ratio": round(best[name] / best["off"], 2) for name in ("tenth", "all")}
    say(case="appends over HTTP", off_per_s=round(best["off"]), **ratios)
