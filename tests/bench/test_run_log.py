"""How fast runs are written, against bare publishing to the same server, with an fsync for every message.

Prints a table and one JSON line; asserts no time. The two ratios that count: one run with group commit against
awaiting each publish, and 64 runs against the windowed publisher.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import uvloop

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import connect
from runlane.kernel.event_log import NOTHING
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.lifecycle import FactDraft, draft
from runlane_contracts.streams import GIB, Layout
from support.builders import AGENT, SYSTEM, a_commit, a_run, created, leased
from support.nats import nats_server

ROUNDS = 8
SLICE_S = 0.4
RUNS = 64
LAYOUT = Layout(max_bytes=4 * GIB)


@dataclass
class Way:
    """One way to write, and what it did so far."""

    name: str
    write: Callable[[], Awaitable[object]]
    writers: int
    facts: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def per_s(self) -> float:
        return self.facts / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.facts * 1e6

    async def go_on(self) -> None:
        """Let its writers each write one after the other for a while."""
        cpu, began = time.process_time(), time.perf_counter()
        self.facts += sum(await asyncio.gather(*(self._one(began + SLICE_S) for _ in range(self.writers))))
        self.seconds += time.perf_counter() - began
        self.cpu_s += time.process_time() - cpu

    async def _one(self, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            await self.write()
            done += 1
        return done


def a_draft(n: int) -> FactDraft:
    return draft(events.TaskUpdated(task_id=f"task_{n % 10}", title="a step of some length, as an agent states it"))


async def open_runs(logs: RunLogs, prefix: str, count: int) -> list[RunLog]:
    runs = [logs.of(a_run(f"{prefix}_{n}")) for n in range(count)]
    for run in runs:
        await run.transact(lambda _: [created(), leased()], lease_epoch=0, actor=SYSTEM)
    return runs


async def bench() -> dict[str, Way]:
    async with nats_server(layout=LAYOUT) as server:
        connection = await connect(url=server.url, name="bench")
        await provision(connection, LAYOUT, now=utc_now)
        publisher = WindowedPublisher(connection)
        log = NatsEventLog(connection, LAYOUT, publisher=publisher)
        logs = RunLogs(log, now=utc_now, new_id=new_id)
        data = encode(a_commit(a_run(), NOTHING))
        subject = LAYOUT.subjects.log("acme", "raw")

        async def bare() -> None:
            await publisher.publish(subject, data, {"Nats-Msg-Id": new_id("cmt")})

        (alone,) = await open_runs(logs, "alone", 1)
        (shared,) = await open_runs(logs, "shared", 1)
        many = await open_runs(logs, "many", RUNS)
        turn = 0

        async def on(run: RunLog) -> None:
            nonlocal turn
            turn += 1
            await run.append([a_draft(turn)], lease_epoch=1, actor=AGENT)

        free = list(many)

        async def on_one_of_many() -> None:
            run = free.pop()
            try:
                await on(run)
            finally:
                free.append(run)

        ways = {
            "bare_await_each": Way("publish, await each", bare, 1),
            "bare_windowed": Way(f"publish, {RUNS} in flight", bare, RUNS),
            "one_run_one_writer": Way("one run, one writer, await each", lambda: on(alone), 1),
            "one_run_group_commit": Way(f"one run, {RUNS} writers, group commit", lambda: on(shared), RUNS),
            "many_runs": Way(f"{RUNS} runs, one writer each", on_one_of_many, RUNS),
        }
        for _ in range(ROUNDS):  # in turn, in short slices: whatever else the machine does, it does to all of them
            for way in ways.values():
                await way.go_on()
        await log.close()
        await publisher.close()
        await connection.close()
        return ways


@pytest.mark.bench
@pytest.mark.timeout(180)
def test_bench_of_writing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    results = uvloop.run(bench())
    ratios = {
        "group_commit_to_await_each": results["one_run_group_commit"].per_s / results["bare_await_each"].per_s,
        "many_runs_to_windowed": results["many_runs"].per_s / results["bare_windowed"].per_s,
    }
    lines = [
        f"{one.name:42} {one.per_s:9,.0f} facts/s {one.cpu_s / one.facts * 1e6:7.1f} us CPU each"
        for one in results.values()
    ]
    lines += [f"{name:42} {ratio:9.2f}" for name, ratio in ratios.items()]
    rates = {name: round(one.per_s) for name, one in results.items()}
    lines.append(json.dumps({"bench": "run_log", "facts_per_s": rates, "ratios": ratios}))
    with capsys.disabled():
        print("", *lines, sep="\n")
