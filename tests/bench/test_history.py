"""What it costs to look back into a run of 10,000 facts, beside only decoding them.

One JSON object a line on stdout; nothing is asserted about speed. `ratio`: how often the record could have been decoded
in that time.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runlane.edge_gateway.last import before_last
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.run_state import NothingFolded, RunStates
from runlane.edge_gateway.snapshots import Snapshots
from runlane.edge_gateway.timelines import Timelines
from runlane_contracts import events
from runlane_contracts.codec import decode_commit, encode
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.runs import Story

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

RUN = RunAddress("acme", "run_1")
FACTS = 10_000


def a_busy_run() -> Story:
    story = Story().then(events.RunCreated(agent="a", input=None))
    number = 0
    while len(story.facts) < FACTS:
        number += 1
        name, id_ = ("read", "grep", "write")[number % 3], f"c{number}"
        story.then(
            events.ToolRequested(tool_call_id=id_, name=name, arguments={"path": "/src/" * 8}),
            events.ToolRunning(tool_call_id=id_),
            events.ToolCompleted(tool_call_id=id_, result={"out": "y" * 200}),
        )
        if number % 10 == 0:
            story.then(events.MessageCompleted(message_id=f"m{number}", role="assistant", content="z" * 300))
    return story


async def least(work: Callable[[], Awaitable[object]], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        await work()
        best = min(best, time.perf_counter() - began)
    return best


async def test_looking_back() -> None:
    story, view = a_busy_run(), MemoryView()
    head = Position("", 0, 0)
    for commit in story.commits(3):
        head = view.store(RUN, commit.facts).position
    bodies = [encode(commit) for commit in story.commits(3)]
    states = RunStates(view, NothingFolded())
    kept, rows = Snapshots(states, monotonic=time.monotonic), Timelines(view)

    async def decode_only() -> None:
        for body in bodies:
            decode_commit(body)

    raw_s = await least(decode_only)
    await kept.at(RUN, FACTS // 2, head)
    await rows.at_least(RUN, head)
    measured: dict[str, Callable[[], Awaitable[Any]]] = {
        "decode only": decode_only,
        "snapshot at the end": lambda: Snapshots(states, monotonic=time.monotonic).at(RUN, FACTS, head),
        "snapshot in the middle": lambda: Snapshots(states, monotonic=time.monotonic).at(RUN, FACTS // 2, head),
        "the same again": lambda: kept.at(RUN, FACTS // 2, head),
        "100 at once": lambda: asyncio.gather(*(kept.at(RUN, FACTS // 3, head) for _ in range(100))),
        "timeline": lambda: Timelines(view).at_least(RUN, head),
        "a page of a known timeline": lambda: _page(rows, head),
        "last 50": lambda: before_last(states, view, RUN, head, 50),
    }
    for what, work in measured.items():
        took_s = await least(work)
        print(json.dumps({"bench": "history", "what": what, "facts": FACTS, "ms": round(took_s * 1000, 2),
                          "ratio": round(took_s / raw_s, 3)}))  # fmt: skip


async def _page(rows: Timelines, head: Position) -> object:
    return (await rows.at_least(RUN, head)).rows(after=FACTS // 2, limit=100)
