"""P5, P13, P14 for readers: many join in mid-stream, gateway and broker die, too many come. Nobody misses a fact."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from runlane_contracts import events
from runlane_contracts.codec import decode_json
from support.edge_process import KEY, EdgeProcess, edge_process
from support.eventually import eventually
from support.nats import SMALL
from support.reconnecting import ReconnectingReader
from support.runs import Story
from support.view_writer import put

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

READERS = 100
FACTS = 500


class Run:
    """A run that goes on, one commit after another."""

    def __init__(self, edge: EdgeProcess, run_id: str) -> None:
        self.run_id = run_id
        self.edge = edge
        self.story = Story("acme", run_id).then(events.RunCreated(agent="a"), events.RunStarted())
        self._chance = random.Random(7)

    async def begin(self) -> None:
        await put(self.edge, self.story.facts)

    async def go_on(self, facts: int, *, pause_s: float = 0.0) -> None:
        until = len(self.story.facts) + facts
        while len(self.story.facts) < until:
            before = len(self.story.facts)
            for _ in range(self._chance.randint(1, 8)):
                self.story.then(events.TaskCreated(task_id=f"t{len(self.story.facts)}", title="x" * 200))
            await put(self.edge, self.story.facts[before:])
            await asyncio.sleep(pause_s)

    async def end(self) -> None:
        self.story.then(events.RunCompleted())
        await put(self.edge, self.story.facts[-1:])

    @property
    def sequences(self) -> list[int]:
        return list(range(1, len(self.story.facts) + 1))


@dataclass
class Gateway:
    edge: EdgeProcess
    http: httpx.AsyncClient

    def reader(self, run: Run, *, cut_after: int | None = None, **params: str) -> ReconnectingReader:
        return ReconnectingReader(self.http, run.run_id, params, cut_after)


@asynccontextmanager
async def a_gateway(directory: Path, **environment: str) -> AsyncIterator[Gateway]:
    async with edge_process(directory, layout=SMALL, RUNLANE_EDGE_RING_BYTES="32768", **environment) as edge:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=f"http://{edge.host}:{edge.port}", headers={"Authorization": f"Bearer {KEY}"}, timeout=30,
            trust_env=False, limits=limits,
        ) as http:  # fmt: skip
            yield Gateway(edge, http)


async def test_a_hundred_who_join_in_mid_stream_each_get_every_fact_once_and_in_order(tmp_path: Path) -> None:
    """A third of them is cut off again and again. Let `RunHub.holds` always say yes, and who joins misses facts."""
    chance = random.Random(11)
    async with a_gateway(tmp_path) as gateway:
        run = Run(gateway.edge, "run_mid")
        await run.begin()
        await run.go_on(200)
        readers: list[ReconnectingReader] = []

        async def join(number: int) -> None:
            await asyncio.sleep(chance.random() * 2)
            cut = chance.randint(10, 90) if number % 3 == 0 else None
            reader = gateway.reader(run, cut_after=cut, previews="true" if number % 2 else "false")
            readers.append(reader)
            await reader.follow()

        async with asyncio.TaskGroup() as tasks:
            for number in range(READERS):
                tasks.create_task(join(number))
            await run.go_on(FACTS - 200, pause_s=0.03)
            await eventually(lambda: len(readers) == READERS, within_s=30)
            await run.end()
        for reader in readers:
            assert reader.sequences == run.sequences
            assert set(reader.outcomes) <= {"resumed", "run_terminal"}


async def test_a_gateway_that_dies_or_is_stopped_costs_its_readers_a_reconnect_and_no_fact(tmp_path: Path) -> None:
    """Take the loop out of `Crowd.shut_down` and nobody is told; break `History` and what was missed stays missed."""
    async with a_gateway(tmp_path) as gateway:
        run, edge = Run(gateway.edge, "run_moved"), gateway.edge
        await run.begin()
        readers = [gateway.reader(run) for _ in range(8)]
        async with asyncio.TaskGroup() as tasks:
            for reader in readers:
                tasks.create_task(reader.follow())
            for lives, number in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
                await eventually(lambda: all(len(reader.outcomes) >= lives for reader in readers), within_s=30)  # noqa: B023
                await run.go_on(60, pause_s=0.005)
                await edge.stop(number)
                await run.go_on(20)
                await edge.start()
            await run.end()
        for reader in readers:
            assert reader.sequences == run.sequences
            assert reader.ends == ["shutdown", "run_terminal"], "who is killed says nothing"


async def test_open_watches_outlive_the_broker(tmp_path: Path) -> None:
    """Take `sweep_soon` out of the reconnect listener and the last facts come only with the next ones or the sweep."""
    async with a_gateway(tmp_path) as gateway:
        run, edge = Run(gateway.edge, "run_broker"), gateway.edge
        await run.begin()
        readers = [gateway.reader(run) for _ in range(8)]
        async with asyncio.TaskGroup() as tasks:
            for reader in readers:
                tasks.create_task(reader.follow())
            await run.go_on(60, pause_s=0.005)
            edge.server.kill9()
            await asyncio.sleep(0.5)
            await edge.server.start()
            await eventually(lambda: edge.filter.is_connected, within_s=20)
            await run.go_on(30)
            await run.end()
        for reader in readers:
            assert reader.sequences == run.sequences
            assert (reader.ends, len(reader.outcomes)) == (["run_terminal"], 1)


async def test_too_many_are_refused_by_name_and_those_who_watch_notice_nothing(tmp_path: Path) -> None:
    """Take `check` out of `Watches.serve` and `Crowd.joined`, and everybody is let in."""
    async with a_gateway(tmp_path, RUNLANE_EDGE_MAX_TENANT_WATCHERS="8") as gateway:
        run = Run(gateway.edge, "run_full")
        await run.begin()
        inside, others = ([gateway.reader(run) for _ in range(8)] for _ in range(2))
        async with asyncio.TaskGroup() as tasks:
            for reader in inside:
                tasks.create_task(reader.follow())
            await eventually(lambda: all(reader.outcomes for reader in inside), within_s=30)
            for reader in others:
                tasks.create_task(reader.follow())
            await run.go_on(60, pause_s=0.005)
            await eventually(lambda: all(reader.refusals for reader in others), within_s=30)
            await run.end()
        for reader in [*inside, *others]:
            assert reader.sequences == run.sequences
        assert not any(reader.refusals for reader in inside)
        assert {status for reader in others for status in reader.refusals} == {429}


async def test_watchers_make_no_consumers(tmp_path: Path) -> None:
    """However many watch: the broker knows one subscription per watched run."""
    async with a_gateway(tmp_path) as gateway:
        runs = [Run(gateway.edge, f"run_{number}") for number in range(3)]
        for run in runs:
            await run.begin()
        before = await consumers(gateway.edge)
        readers = [gateway.reader(run) for run in runs for _ in range(5)]
        async with asyncio.TaskGroup() as tasks:
            for reader in readers:
                tasks.create_task(reader.follow())
            await eventually(lambda: all(reader.outcomes for reader in readers), within_s=30)
            assert await consumers(gateway.edge) == before
            for run in runs:
                await run.end()


async def consumers(edge: EdgeProcess) -> int:
    info = await edge.filter.request(f"$JS.API.STREAM.INFO.{SMALL.view_stream_at(0)}", b"")
    return int(decode_json(info.data)["state"]["consumer_count"])
