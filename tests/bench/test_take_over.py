"""How long a run stands still after its worker was killed, in lease TTLs. Prints a table and one JSON line.

What it has to wait for: the lease to run out (it was confirmed a third of a TTL ago, so two thirds to one), the
supervisor to say so, the back-off of a first loss (1 s), and a worker to take it. Asserts no time.
"""

import asyncio
import json
import random
import statistics
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from runlane_contracts.codec import parse_timestamp
from support.crew import Crew, crew
from support.eventually import eventually
from support.product import Product, product

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

RUNS = 8
TTLS_S = (1.0, 3.0, 6.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("take-over") / "state") as running:
        yield running


async def stood_still_s(workers: Crew) -> list[float]:
    """Kill a worker that has `RUNS` runs; for each, the time from its last sign of life to its call running again."""
    first = await workers.hire()
    runs = [await workers.start(f"run{n}", slow_s=workers.ttl_s + 3) for n in range(RUNS)]
    await eventually(lambda: len(workers.book.lines("begins")) == RUNS, within_s=30)
    await workers.hire()  # it waits for work already
    await asyncio.sleep(random.uniform(0, workers.ttl_s / 3))
    killed_at = await workers.kill(first)
    found = []
    for run_id in runs:
        await workers.ended(run_id)
        again = [fact for fact in await workers.facts(run_id) if fact["type"] == "tool.running"][1]
        found.append((parse_timestamp(again["recorded_at"]) - killed_at).total_seconds())
    return found


@pytest.mark.parametrize("over", ["http", "nats"])
async def test_how_long_a_run_stands_still(
    running: Product, tmp_path: Path, over: str, capsys: pytest.CaptureFixture[str]
):
    rows, result = [], {}
    for ttl_s in TTLS_S:
        async with crew(running, f"ttl{ttl_s:.0f}", tmp_path / f"book{ttl_s}", over=over, ttl_s=ttl_s) as workers:
            took_s = await stood_still_s(workers)
        median, worst = statistics.median(took_s), max(took_s)
        rows.append(f"  {ttl_s:>5.1f} s {median:>8.2f} s {median / ttl_s:>7.2f} {worst:>8.2f} s {worst / ttl_s:>7.2f}")
        result[f"{ttl_s:.0f}"] = {"median": round(median / ttl_s, 2), "worst": round(worst / ttl_s, 2)}
    with capsys.disabled():
        print(f"\nover {over}, {RUNS} runs each\n    ttl    median   × ttl    worst   × ttl", *rows, sep="\n")
        print(json.dumps({"bench": "take_over", "over": over, "in_ttls": result}))
