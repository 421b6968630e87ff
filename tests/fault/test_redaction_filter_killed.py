"""The view and the signals are exact, whoever is killed: filters and the broker, at random moments, under load.

Every commit of the log appears in VIEW exactly once, in log order, gapless by run; every fact in SIGNAL exactly
once, in the order of its run.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from runlane.kernel.errors import KernelError
from runlane_contracts import events
from runlane_contracts.codec import decode_commit, decode_fact
from runlane_contracts.headers import LOG_POSITION
from runlane_contracts.streams import GIB, Layout
from support.eventually import eventually
from support.lanes import Lanes, lanes
from support.runs import Story

RUNS = 12
LAYOUT = Layout(max_bytes=GIB)


@asynccontextmanager
async def filter_process(broker: Lanes, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m runlane.redaction_filter`, as it is deployed."""
    environment = os.environ | {
        "RUNLANE_NATS_URL": broker.server.url,
        "RUNLANE_INSTANCE": name,
        "RUNLANE_HEALTH_PORT": "-1",
        "RUNLANE_STREAM_MAX_BYTES": str(broker.layout.max_bytes),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runlane.redaction_filter", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Load:
    """Writes runs, one commit after the other, until told to stop; a commit is tried until it is known to be there."""

    def __init__(self, broker: Lanes) -> None:
        self.stopping = False
        self.commits = 0
        self.facts = 0
        self._broker = broker

    async def write(self, number: int) -> None:
        """One run after the other."""
        generation = 0
        while not self.stopping:
            story = Story("acme", f"run_{number}_{generation}").then(events.RunCreated(agent="a"))
            story.then(
                *(events.MessageCompleted(message_id=f"m{n}", role="user", content="x" * 200) for n in range(40))
            )
            for commit in story.commits(size=3):
                if self.stopping:
                    return
                await self._append(commit)
            generation += 1

    async def _append(self, commit: object) -> None:
        while True:
            try:
                await self._broker.append(commit, once=True)  # type: ignore[arg-type]
                break
            except KernelError:
                await asyncio.sleep(0.05)
        self.commits += 1
        self.facts += len(commit.facts)  # type: ignore[attr-defined]
        await asyncio.sleep(0.02)


async def check(broker: Lanes, load: Load) -> None:
    log = await broker.direct.stream_state(broker.layout.log_stream_at(0))
    assert log.messages == load.commits
    view = await broker.view_reaches(log.last_seq, timeout_s=60)
    signals = await broker.signals_reach(load.facts, timeout_s=60)
    assert [int(one.headers[LOG_POSITION].partition(":")[2]) for one in view] == list(range(1, log.last_seq + 1))
    seen: dict[str, list[int]] = {}
    for one in view:
        commit = decode_commit(one.data)
        assert not any(fact.type == "log.quarantined" for fact in commit.facts)
        seen.setdefault(commit.run_id, []).extend(fact.sequence for fact in commit.facts)
    assert all(sequences == list(range(1, len(sequences) + 1)) for sequences in seen.values())
    signalled: dict[str, list[int]] = {}
    for one in signals:
        fact = decode_fact(one.data)
        signalled.setdefault(fact.run_id, []).append(fact.sequence)
    assert signalled == seen


@asynccontextmanager
async def writing(load: Load) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        for number in range(RUNS):
            tasks.create_task(load.write(number))
        try:
            yield
        finally:
            load.stopping = True


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_filters_killed_at_random_moments_leave_no_gap_and_no_repeat() -> None:
    """Where `Outputs.view_end` tells nothing of the view's last message, commits are in the view again."""
    random = Random(7)
    async with lanes(LAYOUT) as broker:
        load = Load(broker)
        async with writing(load):
            for round_ in range(6):
                async with (
                    filter_process(broker, f"a{round_}") as first,
                    filter_process(broker, f"b{round_}") as second,
                ):
                    await asyncio.sleep(random.uniform(1.5, 3.0))
                    victim = random.choice((first, second))
                    victim.send_signal(random.choice((signal.SIGKILL, signal.SIGTERM)))
                    await asyncio.sleep(random.uniform(0.1, 1.0))
        async with filter_process(broker, "last"):
            await check(broker, load)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_filter_that_was_frozen_while_another_took_over_writes_nothing_more() -> None:
    """Without `Nats-Expected-Last-Sequence` the frozen one would write its batch a second time."""
    async with lanes(LAYOUT) as broker:
        load = Load(broker)
        async with writing(load), filter_process(broker, "frozen") as first:
            await _grows(broker)
            first.send_signal(signal.SIGSTOP)
            async with filter_process(broker, "successor"):
                await _grows(broker)
                first.send_signal(signal.SIGCONT)
                await asyncio.sleep(2)
                load.stopping = True
                await check(broker, load)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_broker_killed_at_random_moments_leaves_no_gap_and_no_repeat() -> None:
    """The link is lost with batches under way: what of them is stored is read from the streams, not guessed."""
    random = Random(8)
    async with lanes(LAYOUT, sync_interval="always") as broker:
        load = Load(broker)
        async with filter_process(broker, "a"):
            async with writing(load):
                for _ in range(5):
                    await asyncio.sleep(random.uniform(0.5, 2.0))
                    await broker.server.restart()
            await check(broker, load)


async def _grows(broker: Lanes) -> None:
    """Until some filter writes."""
    stream = broker.layout.view_stream_at(0)
    before = (await broker.direct.stream_state(stream)).last_seq

    async def grown() -> bool:
        return (await broker.direct.stream_state(stream)).last_seq > before + 100

    await eventually(grown, within_s=40)
