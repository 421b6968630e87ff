"""What WebSocket costs beside SSE, side by side in one run: delivery to many, catching up, and what a connection holds.

Prints a table and one JSON line; asserts no time. The clients are bare sockets that count, so that the gateway is what
is measured; the view is written directly.
"""

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from runlane_contracts.streams import GIB, Layout
from support.edge_process import EdgeProcess, RawWatch, edge_process
from support.raw_websocket import client_frame, open_ws
from support.view_writer import a_story, ms, put, put_all

LAYOUT = Layout(max_bytes=2 * GIB)
WATCHERS = 300
ROUNDS = 60
LONG = 10_000
_CURSOR = re.compile(rb'"cursor":"([^"]+)","fact"')


KINDS = {"sse": (b"event: fact", b"event: synced"), "ws": (b'"run/fact"', b'"run/synced"')}


async def measure_fan_out(edge: EdgeProcess, kind: str) -> dict[str, Any]:
    run_id = f"run_wide_{kind}"
    story = a_story(run_id, ROUNDS + 2)
    await put(edge, story.facts[:2])
    fact_mark, synced_mark = KINDS[kind]
    synced, at = 0, list[float]()

    def on_data(data: bytes) -> None:
        nonlocal synced
        at.extend([time.perf_counter()] * data.count(fact_mark))
        synced += data.count(synced_mark)

    async def open_one() -> RawWatch:
        if kind == "sse":
            return await edge.watch(run_id, on_data, "from=now")
        return await open_ws(edge, run_id, on_data, **{"from": "now"})

    watches: list[RawWatch] = []
    for _ in range(0, WATCHERS, 50):
        watches += await asyncio.gather(*(open_one() for _ in range(50)))
    async with asyncio.timeout(30):
        while synced < WATCHERS:
            await asyncio.sleep(0.01)
    delays: list[float] = []
    cpu = edge.cpu_s
    for fact in story.facts[2:]:
        at.clear()
        sent = time.perf_counter()
        await put(edge, [fact])
        while len(at) < WATCHERS:
            await asyncio.sleep(0.001)
        delays += [when - sent for when in at]
    used = edge.cpu_s - cpu
    for watch in watches:
        watch.close()
    return {
        "p50_ms": ms(delays, 0.5), "p99_ms": ms(delays, 0.99), "us_per_delivery": round(used / len(delays) * 1e6, 2)
    }  # fmt: skip


async def measure_catching_up(edge: EdgeProcess, kind: str, *, ack_every: int = 0) -> dict[str, Any]:
    """Seconds until 10,000 facts have come, ten a commit. `ack_every`: as a client that acknowledges would."""
    cpu = edge.cpu_s
    took = [await catch_up(edge, kind, ack_every) for _ in range(3)]
    return {
        "best_s": round(min(took), 3), "facts_per_s": round(LONG / min(took)), "cpu_s": round((edge.cpu_s - cpu) / 3, 3)
    }  # fmt: skip


async def catch_up(edge: EdgeProcess, kind: str, ack_every: int) -> float:
    fact_mark, synced_mark = KINDS[kind]
    done, owed, tail = asyncio.Event(), 0, b""

    def on_data(data: bytes) -> None:
        nonlocal owed, tail
        owed += data.count(fact_mark)
        tail = (tail + data)[-4096:]
        cursors = _CURSOR.findall(data) if ack_every and owed >= ack_every else []
        if cursors:
            owed = 0
            ack = client_frame("run/ack", subscription="sub_1", cursor=cursors[-1].decode())
            protocol.transport.write(ack)
        if synced_mark in tail:
            done.set()

    began = time.perf_counter()
    if kind == "sse":
        protocol = await edge.watch("run_long", on_data)
    else:
        protocol = await open_ws(edge, None, on_data)
        protocol.transport.write(client_frame("run/watch", 2, run_id="run_long", credit=100_000, **{"from": "start"}))
    async with asyncio.timeout(30):
        await done.wait()
    protocol.close()
    return time.perf_counter() - began


async def measure_memory(edge: EdgeProcess) -> dict[str, float]:
    """KiB that a connection holds without a watch, and what a watch adds."""
    await put(edge, a_story("run_held", 2).facts)
    synced = 0

    def on_data(data: bytes) -> None:
        nonlocal synced
        synced += data.count(KINDS["ws"][1])

    before = edge.rss_bytes
    sockets = [await open_ws(edge, None, on_data) for _ in range(WATCHERS)]
    idle = edge.rss_bytes
    for one in sockets:
        one.transport.write(client_frame("run/watch", 2, run_id="run_held", **{"from": "now"}))
    while synced < WATCHERS:
        await asyncio.sleep(0.01)
    held = edge.rss_bytes
    for one in sockets:
        one.close()
    kib = 1024 * WATCHERS
    return {"idle_kib": round((idle - before) / kib, 1), "watch_kib": round((held - idle) / kib, 1)}


async def measure(directory: Path) -> dict[str, Any]:
    credit = {"RUNLANE_EDGE_SOCKET_CREDIT": "100000"}
    async with edge_process(directory, layout=LAYOUT, **credit) as edge:
        await put_all(edge, a_story("run_long", LONG), 10)
        found: dict[str, Any] = {"memory_ws": await measure_memory(edge)}
        for kind in ("sse", "ws"):
            found[f"fan_out_{kind}"] = await measure_fan_out(edge, kind)
        found["catch_up_sse"] = await measure_catching_up(edge, "sse")
        found["catch_up_ws"] = await measure_catching_up(edge, "ws")
        found["catch_up_ws_acked"] = await measure_catching_up(edge, "ws", ack_every=100)
        found["ratios_to_sse"] = {
            "us_per_delivery": _ratio(found, "fan_out_ws", "fan_out_sse", "us_per_delivery"),
            "p99": _ratio(found, "fan_out_ws", "fan_out_sse", "p99_ms"),
            "catch_up": _ratio(found, "catch_up_ws", "catch_up_sse", "best_s"),
            "catch_up_acked": _ratio(found, "catch_up_ws_acked", "catch_up_sse", "best_s"),
        }
        return found


def _ratio(found: dict[str, Any], one: str, other: str, what: str) -> float:
    return round(found[one][what] / found[other][what], 2)


@pytest.mark.bench
@pytest.mark.timeout(300)
def test_what_websocket_costs_beside_sse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = uvloop.run(measure(tmp_path))
    lines = [f"  {name:18} {value}" for name, value in found.items()]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, json.dumps({"bench": "websocket", **found}), ""]))
