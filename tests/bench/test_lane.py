"""The whole lane: from an append that is durable to the frame a reader gets, beside bare JetStream.

A platform worker appends one fact at a time over NATS to a running product; an SSE reader notes when each arrives.
Beside it, in the same run and with the same `sync_interval: always`, a bare client publishes to a JetStream stream
of its own and a bare subscription notes the arrival. Prints a table and one JSON line; asserts no time.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
import pytest

from runlane.cli.state_dir import connection_info
from runlane.client import Fact, RunReader, RunWriter
from runlane.client.transports.http import HttpTransport
from runlane.client.transports.nats import NatsTransport
from runlane_contracts import events
from support.nats import nats_server
from support.product import product

ROUNDS = 600
PAUSE_S = 0.005


def ms(seconds: Sequence[float], share: float) -> float:
    return round(sorted(seconds)[min(int(len(seconds) * share), len(seconds) - 1)] * 1e3, 2)


async def bare(client: Any, js: Any, arrived: "asyncio.Queue[float]") -> float:
    began = time.perf_counter()
    await js.publish("bench.one", b"x" * 300)
    return await arrived.get() - began


@pytest.mark.bench
@pytest.mark.timeout(300)
async def test_append_to_reader_beside_publish_to_subscriber(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as up, nats_server() as plain:
        info = connection_info(up.state_dir)
        assert info is not None
        client = await nats.connect(plain.url)
        js = client.jetstream()
        await js.add_stream(name="BENCH", subjects=["bench.>"])
        bare_arrivals: asyncio.Queue[float] = asyncio.Queue()

        async def heard(_: Any) -> None:
            bare_arrivals.put_nowait(time.perf_counter())

        await js.subscribe("bench.>", cb=heard, ordered_consumer=True)
        async with (
            NatsTransport.connect(info.worker_nats_url, "demo") as worker,
            HttpTransport(up.url, up.tokens["demo"]) as reader_side,
        ):
            writer = await RunWriter.start(reader_side, agent="bench")
            arrivals: asyncio.Queue[float] = asyncio.Queue()
            async with RunWriter.attach(worker, writer.run_id) as run:
                await run.append(events.RunStarted())
                reading = asyncio.ensure_future(_read(reader_side, run.run_id, run.sequence, arrivals))
                await arrivals.get()
                bare_s: list[float] = []
                lane_s: list[float] = []
                acked_s: list[float] = []
                for n in range(ROUNDS):
                    bare_s.append(await bare(client, js, bare_arrivals))
                    await asyncio.sleep(PAUSE_S)
                    began = time.perf_counter()
                    await run.append(events.TaskCreated(task_id=f"t{n}", title="x" * 120))
                    acked_s.append(time.perf_counter() - began)
                    lane_s.append(await arrivals.get() - began)
                    await asyncio.sleep(PAUSE_S)
                reading.cancel()
        await client.close()
    result = {
        "bare_p50_ms": ms(bare_s, 0.5), "lane_p50_ms": ms(lane_s, 0.5), "bare_p99_ms": ms(bare_s, 0.99),
        "lane_p99_ms": ms(lane_s, 0.99), "append_acked_p50_ms": ms(acked_s, 0.5),
        "ratio_p50": round(ms(lane_s, 0.5) / ms(bare_s, 0.5), 2),
    }  # fmt: skip
    print("\n  append to SSE frame, beside publish to subscriber, fsync on:")
    print("  " + "  ".join(f"{name}={value}" for name, value in result.items()))
    print(json.dumps({"bench": "lane", **result}))


async def _read(transport: HttpTransport, run_id: str, after: int, arrivals: "asyncio.Queue[float]") -> None:
    async with RunReader(transport, run_id, from_="start", previews=False) as reader:
        async for item in reader:
            if isinstance(item, Fact) and item.sequence >= after:
                arrivals.put_nowait(time.perf_counter())
