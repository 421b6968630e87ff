"""How fast the log is derived, against a bare pull loop that only counts the same messages.

Prints a table and one JSON line; asserts no time. Both are one process beside one broker. The pull loop neither
decodes nor writes; the filter validates, masks, writes a view message a commit and a signal a fact.
"""

import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass

import msgspec
import pytest
import uvloop

from runlane.kernel.tail import Tail
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.streams import GIB, Layout
from support import secrets
from support.lanes import Lanes, lanes
from support.runs import Story

COMMITS = int(os.environ.get("BENCH_COMMITS", "12000"))
RUNS = 200
LAYOUT = Layout(max_bytes=4 * GIB)
TEXT = "The build is green again; two tests were slow, and the third one needs a look at its fixtures. " * 4


@dataclass
class Result:
    """One shape of log, both ways."""

    shape: str
    commits: int
    facts: int
    pull_facts_per_s: int
    filter_facts_per_s: int
    filter_cpu_us_per_fact: float
    ratio: float


def bodies(facts_per_commit: int, secret_share: float) -> list[tuple[str, bytes]]:
    """Commits of many runs, interleaved."""
    token = secrets.tokens()["github"][1]
    per_run = COMMITS // RUNS
    commits = []
    for number in range(RUNS):
        story = Story("acme", f"run_{number}").then(events.RunCreated(agent="a"))
        for fact in range(1, per_run * facts_per_commit):
            text = f"{TEXT} {token}" if fact % 100 < secret_share * 100 else TEXT
            story.then(events.MessageCompleted(message_id=f"m{fact}", role="assistant", content=text))
        commits.append(story.commits(size=facts_per_commit))
    return [
        (LAYOUT.subjects.log("acme", f"run_{number}"), encode(commits[number][at]))
        for at in range(per_run)
        for number in range(RUNS)
    ]


async def measure(shape: str, facts_per_commit: int, secret_share: float) -> Result:
    """Write the log, pull it, filter it."""
    async with lanes(LAYOUT) as broker:
        messages = bodies(facts_per_commit, secret_share)
        for subject, body in messages:
            first = msgspec.json.decode(body)["first_sequence"]
            headers = {"Rl-First-Sequence": str(first), "Rl-Last-Sequence": str(first + facts_per_commit - 1)}
            await broker.publisher.send(subject, body, headers)
        await broker.publisher.drain()
        facts = len(messages) * facts_per_commit
        pulled_s = min([await pull(broker, len(messages)) for _ in range(3)])
        filtered_s, cpu_s = await filter_all(broker, len(messages))
    return Result(
        shape, len(messages), facts, round(facts / pulled_s), round(facts / filtered_s),
        round(cpu_s / facts * 1e6, 1), round(pulled_s / filtered_s, 2),
    )  # fmt: skip


async def pull(broker: Lanes, count: int) -> float:
    """Seconds to get every message, and do nothing with it."""
    tail = Tail(broker.connection, broker.direct, stream="RL_LOG_0", subjects=["rl.log.>"])
    began, got = time.perf_counter(), 0
    async for batch in tail.batches():
        got += len(batch)
        if got >= count:
            return time.perf_counter() - began
    raise AssertionError("the tail ended")


async def filter_all(broker: Lanes, count: int) -> tuple[float, float]:
    """Seconds for all messages until they are in VIEW and in SIGNAL, and of them on the CPU; without its start."""
    async with broker.filter() as running:

        async def reached() -> int:
            return int((await running.health()).detail["logs"]["RL_LOG_0"]["log_seq"])

        while not (first := await reached()):
            await asyncio.sleep(0.002)
        began, cpu = time.perf_counter(), time.process_time()
        while await reached() < count:
            await asyncio.sleep(0.01)
        share = (count - first) / count
        return (time.perf_counter() - began) / share, (time.process_time() - cpu) / share


@pytest.mark.bench
@pytest.mark.timeout(600)
def test_how_fast_the_log_is_derived() -> None:
    results = [
        uvloop.run(measure("1 fact a commit", 1, 0.0)),
        uvloop.run(measure("5 facts a commit", 5, 0.0)),
        uvloop.run(measure("5 facts a commit, 5 % with a secret", 5, 0.05)),
    ]
    for one in results:
        print(f"{one.shape:40} pull {one.pull_facts_per_s:>8}/s  filter {one.filter_facts_per_s:>7}/s  "
              f"{one.filter_cpu_us_per_fact} us CPU a fact  ratio {one.ratio}")  # fmt: skip
    print(json.dumps([asdict(one) for one in results]))
