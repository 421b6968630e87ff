"""What watching costs: delivery beside a bare subscriber, catching up, and a thousand watchers of one run.

Prints a table and one JSON line; asserts no time. The view is written directly, so that only the gateway is
measured; the bare client is a NATS subscription on the subject to which the broker republishes.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from runlane.kernel.connection import connect
from runlane_contracts.streams import GIB, Layout
from support.edge_process import EdgeProcess, edge_process
from support.view_writer import a_story, ms, put, put_all

LAYOUT = Layout(max_bytes=2 * GIB)
WATCHERS = 1000
LONG = 10_000


async def measure_latency(edge: EdgeProcess, rounds: int = 400) -> dict[str, Any]:
    story = a_story("run_latency", rounds + 2)
    await put(edge, story.facts[:2])
    seen_raw: list[float] = []
    seen_sse: list[float] = []
    arrived = asyncio.Event()

    async def on_live(_message: Any) -> None:
        seen_raw.append(time.perf_counter())

    def on_data(data: bytes) -> None:
        if b"event: fact" in data:
            seen_sse.extend([time.perf_counter()] * data.count(b"event: fact"))
            arrived.set()

    await edge.filter.nc.subscribe("_INBOX_redaction_filter.raw", cb=on_live)
    watch = await edge.watch("run_latency", on_data, "from=now")
    await asyncio.sleep(0.5)
    seen_sse.clear()
    raw, sse = [], []
    observer = await observing(edge, "run_latency", on_live)
    for fact in story.facts[2:]:
        arrived.clear()
        began = time.perf_counter()
        await put(edge, [fact])
        await asyncio.wait_for(arrived.wait(), 5)
        while len(seen_raw) < len(seen_sse):
            await asyncio.sleep(0)
        raw.append(seen_raw[-1] - began)
        sse.append(seen_sse[-1] - began)
        await asyncio.sleep(0.001)
    watch.close()
    await observer.close()
    return {
        "raw_p50_ms": ms(raw, 0.5), "sse_p50_ms": ms(sse, 0.5),
        "raw_p99_ms": ms(raw, 0.99), "sse_p99_ms": ms(sse, 0.99),
        "ratio_p50": round(ms(sse, 0.5) / ms(raw, 0.5), 2),
    }  # fmt: skip


async def observing(edge: EdgeProcess, run_id: str, on_live: Any) -> Any:
    assert edge.server.passwords is not None
    observer = await connect(
        url=edge.server.url, user="observer", password=edge.server.passwords["observer"], name="observer"
    )
    await observer.nc.subscribe(edge.layout.subjects.live("acme", run_id), cb=on_live)
    await observer.nc.flush()
    return observer


async def measure_resume(edge: EdgeProcess, size: int) -> dict[str, Any]:
    run_id = f"run_long_{size}"
    await put_all(edge, a_story(run_id, LONG), size)
    cpu, broker_cpu = edge.cpu_s, edge.broker_cpu_s
    took = [await read_all(edge, run_id) for _ in range(3)]
    return {
        "facts": LONG, "facts_per_commit": size, "best_s": round(min(took), 3),
        "facts_per_s": round(LONG / min(took)), "gateway_cpu_s": round((edge.cpu_s - cpu) / 3, 2),
        "broker_cpu_s": round((edge.broker_cpu_s - broker_cpu) / 3, 2),
    }  # fmt: skip


async def read_all(edge: EdgeProcess, run_id: str) -> float:
    """Seconds from asking until `synced`."""
    done = asyncio.Event()
    tail = b""

    def on_data(data: bytes) -> None:
        nonlocal tail
        tail = (tail + data)[-200:]
        if b"event: synced" in tail:
            done.set()

    began = time.perf_counter()
    watch = await edge.watch(run_id, on_data)
    await asyncio.wait_for(done.wait(), 30)
    took = time.perf_counter() - began
    watch.close()
    return took


async def measure_fan_out(edge: EdgeProcess, rounds: int = 100) -> dict[str, Any]:
    story = a_story("run_wide", rounds + 2)
    await put(edge, story.facts[:2])
    before = edge.rss_bytes
    synced = 0
    at: list[float] = []

    def on_data(data: bytes) -> None:
        nonlocal synced
        now = time.perf_counter()
        at.extend([now] * data.count(b"event: fact"))
        synced += data.count(b"event: synced")

    watches = []
    began = time.perf_counter()
    for start in range(0, WATCHERS, 50):
        watches += await asyncio.gather(*(edge.watch("run_wide", on_data, "from=now") for _ in range(50)))
        assert start < WATCHERS
    while synced < WATCHERS:
        await asyncio.sleep(0.01)
    opened_s = time.perf_counter() - began
    await asyncio.sleep(0.5)
    per_watcher = (edge.rss_bytes - before) / WATCHERS
    at.clear()
    delays: list[float] = []
    cpu = edge.cpu_s
    for fact in story.facts[2:]:
        at.clear()
        sent = time.perf_counter()
        await put(edge, [fact])
        while len(at) < WATCHERS:
            await asyncio.sleep(0.001)
        delays += [when - sent for when in at]
        await asyncio.sleep(0.02)
    used = edge.cpu_s - cpu
    for watch in watches:
        watch.close()
    return {
        "watchers": WATCHERS, "opened_per_s": round(WATCHERS / opened_s),
        "rss_kib_per_watcher": round(per_watcher / 1024, 1), "p50_ms": ms(delays, 0.5), "p99_ms": ms(delays, 0.99),
        "gateway_us_per_delivery": round(used / len(delays) * 1e6, 1), "rss_mib": round(edge.rss_bytes / 2**20, 1),
    }  # fmt: skip


async def measure(directory: Path) -> dict[str, Any]:
    async with edge_process(directory, layout=LAYOUT) as edge:
        return {
            "latency": await measure_latency(edge),
            "fan_out": await measure_fan_out(edge),
            "resume": [await measure_resume(edge, 1), await measure_resume(edge, 10)],
        }


@pytest.mark.bench
@pytest.mark.timeout(300)
def test_what_watching_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = uvloop.run(measure(tmp_path))
    lines = [
        f"  {name:8} " + "  ".join(f"{key}={value}" for key, value in one.items())
        for name, values in found.items()
        for one in (values if isinstance(values, list) else [values])
    ]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, json.dumps({"bench": "edge_watch", **found}), ""]))
