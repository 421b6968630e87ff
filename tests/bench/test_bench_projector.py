"""How many facts a second the projector folds, beside what the pull loop alone, and the fold alone, can do.

One JSON object a line on stdout. Nothing is asserted about speed.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from runlane.kernel.connection import connect
from runlane.kernel.consumer import BatchConsumer
from runlane.kernel.delivery import Delivery
from runlane.projector.projector import PROJECTION
from runlane.read_store import ReadStore
from runlane_contracts import reducer
from runlane_contracts.codec import decode_commit, encode
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server
from support.postgres import postgres_server
from support.runs import a_short_run
from support.view_stream import STREAM, provisioned, running_projector, unmake

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.timeout(300)]

RUNS, FACTS_A_COMMIT = 2000, 4
SPEC = next(spec for spec in SMALL.consumers() if spec.stream == STREAM)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server(sync_interval="2m") as one:
        await provisioned(one)
        yield one


async def fill(server: NatsServer) -> int:
    """Store runs whose commits are interleaved; returns how many facts."""
    connection = await connect(url=server.url, name="fill")
    stories = [a_short_run(f"run_{n}") for n in range(RUNS)]
    rounds = zip(*(story.commits(FACTS_A_COMMIT) for story in stories), strict=True)
    for commit in (commit for one_round in rounds for commit in one_round):
        headers = {FIRST_SEQUENCE: str(commit.first_sequence), LAST_SEQUENCE: str(commit.last_sequence)}
        subject = SMALL.subjects.view(commit.tenant_id, commit.run_id)
        await connection.nc.publish(subject, encode(commit), headers=headers)
    await connection.request("$JS.API.INFO", b"")
    await connection.close()
    return sum(len(story.facts) for story in stories)


async def consumed(server: NatsServer, handle: Callable[[list[Delivery]], Awaitable[int]], last_seq: int) -> float:
    """How long a consumer with this handler takes for the whole stream."""
    connection = await connect(url=server.url, name="bench")
    done = asyncio.Event()

    async def counted(batch: list[Delivery]) -> int:
        seq = await handle(batch)
        if seq >= last_seq:
            done.set()
        return seq

    async def from_the_start() -> int:
        return 0

    consumer = BatchConsumer(connection, SPEC, SMALL, counted, on_active=from_the_start)
    began = time.perf_counter()
    task = asyncio.ensure_future(consumer.run())
    await done.wait()
    took = time.perf_counter() - began
    consumer.stop()
    await task
    await connection.close()
    return took


async def projected(server: NatsServer, url: str, last_seq: int) -> float:
    """How long the projector takes for the whole stream, into an empty database; its start is not counted."""
    async with ReadStore.open(url) as store:
        await store.create()

        async def reached() -> int:
            return (await store.progress(PROJECTION, STREAM)).position.stream_seq

        async with running_projector(server, url):
            await eventually(reached, within_s=240, every_s=0.002)
            first, began = await reached(), time.perf_counter()
            await eventually(partial(_is_at, reached, last_seq), within_s=240, every_s=0.01)
            return (time.perf_counter() - began) * last_seq / max(1, last_seq - first)


async def _is_at(reached: Callable[[], Awaitable[int]], last_seq: int) -> bool:
    return await reached() >= last_seq


async def begin_again(server: NatsServer) -> None:
    """A durable to which nothing was delivered yet."""
    await unmake(server, f"CONSUMER.DELETE.{STREAM}.{SPEC.durable}")
    await provisioned(server)


def tell(what: str, facts: int, messages: int, took_s: float, pulled_s: float) -> None:
    """`ratio`: of the bare pull loop in the same run, which neither decodes nor folds nor stores."""
    result = {"bench": "projector", "what": what, "facts_per_s": round(facts / took_s),
              "messages_per_s": round(messages / took_s), "ratio": round(pulled_s / took_s, 3), "runs": RUNS,
              "facts_a_commit": FACTS_A_COMMIT}  # fmt: skip
    print(json.dumps(result))


async def test_facts_a_second(server: NatsServer, tmp_path: Path) -> None:
    facts = await fill(server)
    last_seq = RUNS * (12 // FACTS_A_COMMIT)

    async def nothing(batch: list[Delivery]) -> int:
        return batch[-1].stream_seq

    states: dict[RunAddress, reducer.State] = {}

    async def fold_only(batch: list[Delivery]) -> int:
        for one in batch:
            commit = decode_commit(one.data)
            run = RunAddress(commit.tenant_id, commit.run_id)
            state = states.setdefault(run, reducer.initial_state(*run))
            for fact in commit.facts:
                reducer.reduce(state, fact)
        return batch[-1].stream_seq

    pulled_s = await consumed(server, nothing, last_seq)
    tell("pull loop", facts, last_seq, pulled_s, pulled_s)
    await begin_again(server)
    tell("pull loop and fold", facts, last_seq, await consumed(server, fold_only, last_seq), pulled_s)
    await begin_again(server)
    took = await projected(server, f"sqlite:///{tmp_path}/read.sqlite", last_seq)
    tell("projector, SQLite", facts, last_seq, took, pulled_s)
    await begin_again(server)
    with postgres_server() as postgres:
        took = await projected(server, await postgres.new_database(), last_seq)
    tell("projector, PostgreSQL without fsync", facts, last_seq, took, pulled_s)
