"""What a reader costs: one to a thousand of them beside a bare asyncio server that writes the same bytes, in one run.

Prints a table and one JSON line; asserts no time. The view is written directly. Both servers hear of a commit by the
same broker, and their readers are the same bare sockets.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from runlane_contracts import events
from runlane_contracts.streams import GIB, Layout
from support.children import ENVIRONMENT
from support.edge_process import KEY, EdgeProcess, RawWatch, edge_process
from support.eventually import eventually
from support.runs import Story
from support.view_stream import running_projector
from support.view_writer import a_story, ms, put, put_all

LAYOUT = Layout(max_bytes=2 * GIB)
RUN = "run_wide"
ROUNDS = 30
LONG = 100_000
OnData = Callable[[bytes], None]


@dataclass
class Served:
    """Something that serves the run to bare sockets."""

    host: str
    port: int
    pid: int
    query: str

    async def watch(self, on_data: OnData) -> RawWatch:
        transport, protocol = await asyncio.get_running_loop().create_connection(
            lambda: RawWatch(on_data), self.host, self.port
        )
        asked = f"GET /v1/runs/{RUN}/watch?{self.query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        transport.write(asked.encode())
        return protocol

    @property
    def cpu_s(self) -> float:
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)

    @property
    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


@asynccontextmanager
async def bare_server(edge: EdgeProcess) -> AsyncIterator[Served]:
    assert edge.server.passwords is not None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.bare_sse", edge.server.url, "observer", edge.server.passwords["observer"],
        edge.layout.subjects.live("acme", RUN), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 20))
        yield Served("127.0.0.1", port, process.pid, "")
    finally:
        process.kill()
        await process.wait()


class Fan:
    """So many readers of one server, and when their facts came."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.synced = 0
        self.at: list[float] = []
        self.watches: list[RawWatch] = []

    def _on_data(self, data: bytes) -> None:
        self.at.extend([time.perf_counter()] * data.count(b"event: fact"))
        self.synced += data.count(b"event: synced")

    async def open(self, count: int) -> None:
        while len(self.watches) < count:
            more = min(50, count - len(self.watches))
            self.watches += await asyncio.gather(*(self.served.watch(self._on_data) for _ in range(more)))
        await eventually(lambda: self.synced >= count, within_s=60)
        await asyncio.sleep(0.3)

    def close(self) -> None:
        for watch in self.watches:
            watch.close()

    async def delays(self, edge: EdgeProcess, rounds: list[Any]) -> tuple[list[float], float]:
        delays: list[float] = []
        cpu = self.served.cpu_s
        for facts in rounds:
            self.at.clear()
            sent = time.perf_counter()
            await put(edge, facts)
            while len(self.at) < len(self.watches):
                await asyncio.sleep(0.0005)
            delays += [when - sent for when in self.at]
            await asyncio.sleep(0.01)
        return delays, (self.served.cpu_s - cpu) / len(delays)


async def measure_fan_out(edge: EdgeProcess, count: int, facts: list[Any]) -> dict[str, Any]:
    """Each is measured alone, on the next facts of the run."""
    half = len(facts) // 2
    gateway = Served(edge.host, edge.port, edge.pid, "from=now")
    own = Fan(gateway)
    before = gateway.rss_bytes
    await own.open(count)
    idle = (gateway.rss_bytes - before) / count
    delays, cpu = await own.delays(edge, [[fact] for fact in facts[:half]])
    active = (gateway.rss_bytes - before) / count
    own.close()
    async with bare_server(edge) as bare:
        other = Fan(bare)
        await other.open(count)
        bare_delays, bare_cpu = await other.delays(edge, [[fact] for fact in facts[half:]])
        other.close()
    await asyncio.sleep(0.3)
    return {
        "readers": count, "p50_ms": ms(delays, 0.5), "p99_ms": ms(delays, 0.99), "bare_p99_ms": ms(bare_delays, 0.99),
        "ratio_p99": round(ms(delays, 0.99) / ms(bare_delays, 0.99), 2),
        "us_per_delivery": round(cpu * 1e6, 1), "bare_us": round(bare_cpu * 1e6, 1),
        "ratio_cpu": round(cpu / bare_cpu, 2),
        "idle_kib": round(idle / 1024, 1), "active_kib": round(active / 1024, 1),
    }  # fmt: skip


async def measure_throughput(
    edge: EdgeProcess, facts: list[Any], *, readers: int = 100, size: int = 20
) -> dict[str, Any]:
    """How many facts a second one core of the gateway delivers, when there is always more."""
    fan = Fan(Served(edge.host, edge.port, edge.pid, "from=now"))
    await fan.open(readers)
    cpu, began = edge.cpu_s, time.perf_counter()
    for at in range(0, len(facts), size):
        await put(edge, facts[at : at + size])
    await eventually(lambda: len(fan.at) >= readers * len(facts), within_s=60)
    took, used = time.perf_counter() - began, edge.cpu_s - cpu
    fan.close()
    delivered = readers * len(facts)
    return {
        "readers": readers, "facts_a_commit": size, "facts_per_s": round(delivered / took),
        "facts_per_core_s": round(delivered / used), "gateway_cores": round(used / took, 2),
    }  # fmt: skip


async def measure_long(edge: EdgeProcess, store: str) -> dict[str, Any]:
    """A run of a hundred thousand facts: all of it, and its state and what follows."""
    await put_all(edge, a_long_story(), 100)
    every = await seconds_to_synced(edge, "run_long", "from=start")
    without = await seconds_to_synced(edge, "run_long", "from=snapshot")
    async with running_projector(edge.server, store) as projector:
        await eventually(lambda: lag_is_zero(projector), within_s=60)
        await asyncio.sleep(1)
    await edge.stop()
    await edge.start()  # nothing is remembered but what the read store holds
    kept = await seconds_to_synced(edge, "run_long", "from=snapshot")
    return {
        "facts": LONG, "all_s": round(every, 2), "snapshot_s": round(kept, 2),
        "snapshot_without_store_s": round(without, 2),
        "ratio": round(every / kept, 1),
    }  # fmt: skip


def a_long_story() -> Story:
    """A long run that works on a thousand things."""
    story = Story("acme", "run_long").then(events.RunCreated(agent="bench"), events.RunStarted())
    for index in range(LONG - 2):
        story.then(
            events.TaskCreated(task_id=f"t{index}", title="x" * 60) if index < 1000
            else events.TaskUpdated(task_id=f"t{index % 1000}", title="y" * 60)
        )  # fmt: skip
    return story


async def lag_is_zero(projector: Any) -> bool:
    health = await projector.health()
    return bool(health.ready) and not health.detail.get("lag", 0)


async def seconds_to_synced(edge: EdgeProcess, run_id: str, query: str) -> float:
    done, tail = asyncio.Event(), b""

    def on_data(data: bytes) -> None:
        nonlocal tail
        tail = (tail + data)[-200:]
        if b"event: synced" in tail:
            done.set()

    began = time.perf_counter()
    watch = await edge.watch(run_id, on_data, query)
    await asyncio.wait_for(done.wait(), 60)
    watch.close()
    return time.perf_counter() - began


async def measure(directory: Path) -> dict[str, Any]:
    async with edge_process(directory, layout=LAYOUT) as edge:
        story = a_story(RUN, 2 + 8 * ROUNDS + 2_000)
        await put(edge, story.facts[:2])
        facts, fans = story.facts[2:], []
        for count in (1, 10, 100, 1000):
            fans.append(await measure_fan_out(edge, count, facts[: 2 * ROUNDS]))
            facts = facts[2 * ROUNDS :]
        return {
            "fan_out": fans,
            "throughput": await measure_throughput(edge, facts),
            "long": await measure_long(edge, edge.settings["RUNLANE_READ_STORE_URL"]),
        }


@pytest.mark.bench
@pytest.mark.timeout(300)
def test_what_a_reader_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = uvloop.run(measure(tmp_path))
    lines = [
        f"  {name:10} " + "  ".join(f"{key}={value}" for key, value in one.items())
        for name, values in found.items()
        for one in (values if isinstance(values, list) else [values])
    ]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, json.dumps({"bench": "edge_fan_out", **found}), ""]))
