"""P14: the projector may die or stand still at any moment; what is stored is right, and nobody has to act."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from runlane.read_store import PROJECTION, ReadStore
from runlane_contracts import reducer
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.nats import NatsServer, nats_server
from support.postgres import postgres_server
from support.runs import Story, a_short_run, a_waiting_run
from support.view_stream import STREAM, provisioned, replayed, view_stream

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server(sync_interval="2m") as one:
        await provisioned(one)
        yield one


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/read.sqlite"
        return
    with postgres_server() as postgres:
        yield await postgres.new_database()


@contextmanager
def projector(server: NatsServer, database_url: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A projector process; killed with the block if it still lives."""
    environment = os.environ | {
        "RUNLANE_NATS_URL": server.url,
        "RUNLANE_HEALTH_PORT": "-1",
        "RUNLANE_PROJECTOR_READ_STORE_URL": database_url,
    }
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "runlane.projector"], env=environment, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stories() -> list[Story]:
    return [make(f"run_{n}") for n in range(40) for make in (a_short_run if n % 3 else a_waiting_run,)]


async def is_whole(store: ReadStore, story: Story) -> bool:
    """Whether the stored run is what a full replay gives, after making sure that it is some prefix of it."""
    found = await store.load(RunAddress("acme", story.run.run_id))
    if found is None:
        return False
    sequence = found.position.sequence
    assert reducer.checksum(found.state) == replayed(story.facts[:sequence], story.run.run_id), sequence
    return sequence == len(story.facts)


async def test_a_projector_killed_again_and_again_folds_each_fact_once(
    server: NatsServer, database_url: str, tmp_path: Path
) -> None:
    chance = random.Random(3)
    told = stories()
    queues = [story.commits(chance.randint(1, 3)) for story in told]

    async def write() -> None:
        async with view_stream(server) as view:
            while waiting := [queue for queue in queues if queue]:
                await view.put(chance.choice(waiting).pop(0))
                await asyncio.sleep(0.005)

    async with ReadStore.open(database_url) as store:
        await store.create()
        writing = asyncio.ensure_future(write())
        kills = 0
        while not writing.done() or kills < 4:
            with projector(server, database_url, tmp_path / "log") as process:
                await asyncio.sleep(chance.uniform(1.0, 3.0))
                assert process.poll() is None, (tmp_path / "log").read_text()
            kills += 1
            for story in told:
                await is_whole(store, story)
        await writing
        with projector(server, database_url, tmp_path / "log"):
            for story in told:
                await eventually(lambda story=story: is_whole(store, story), within_s=60, every_s=0.1)  # type: ignore[misc]


async def test_a_projector_that_stood_still_and_was_replaced_overwrites_nothing(
    server: NatsServer, database_url: str, tmp_path: Path
) -> None:
    story = a_short_run()
    commits = story.commits(1)
    async with ReadStore.open(database_url) as store, view_stream(server) as view:
        await store.create()
        with projector(server, database_url, tmp_path / "first") as first:
            await view.put(*commits[:3])
            await eventually(lambda: _reached(store, 3), within_s=60, every_s=0.1)
            os.kill(first.pid, signal.SIGSTOP)
            try:
                await view.put(*commits[3:6])
                with projector(server, database_url, tmp_path / "second"):
                    await eventually(lambda: _reached(store, 6), within_s=60, every_s=0.1)
                    os.kill(first.pid, signal.SIGCONT)
                    for commit in commits[6:]:
                        await view.put(commit)
                        await asyncio.sleep(0.1)
                    await eventually(lambda: is_whole(store, story), within_s=60, every_s=0.1)
            finally:
                os.kill(first.pid, signal.SIGCONT)
        assert await is_whole(store, story)


async def _reached(store: ReadStore, stream_seq: int) -> bool:
    progress = await store.progress(PROJECTION, STREAM)
    return progress.position.stream_seq >= stream_seq


async def test_a_projector_stops_cleanly_on_sigterm(server: NatsServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/read.sqlite"
    async with ReadStore.open(url) as store, view_stream(server) as view:
        await store.create()
        with projector(server, url, tmp_path / "log") as process:
            await view.put(*a_short_run().commits(2))
            await eventually(lambda: _reached(store, 6), within_s=60, every_s=0.1)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 20) == 0, (tmp_path / "log").read_text()
