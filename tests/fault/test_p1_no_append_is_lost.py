"""P1: an acknowledged append is never lost, repeated or reordered.

The broker, the appender, and both at once are killed with SIGKILL at random moments while runs are written from
several places. One replica, `sync_interval: always`. Every acknowledged event id must then be in its run's log
exactly once, at the sequence that was answered; each run is gapless from 1; and what one writer stated one after the
other is in that order.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable
from random import Random

import pytest

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.errors import Retryable
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts.subjects import RunAddress
from support.builders import AGENT, SYSTEM, a_run, created, leased, said
from support.children import ENVIRONMENT
from support.nats import SMALL, NatsServer, nats_server

KILLS = 20
APPENDS = 5_000
RUNS = 6
WRITERS_PER_RUN = 6  # in each of two places

Acked = dict[RunAddress, dict[str, int]]


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_p1_no_append_is_lost_repeated_or_reordered_when_the_broker_is_killed() -> None:  # noqa: C901 - one story
    """In `NatsEventLog.commit`, answer a Retryable with the position that would have been: what was acknowledged is
    missing. Two layers keep an unheard commit from being written twice, so both have to go to see it: the settling
    (`except Conflict` in `_attempt`) and the repeat check of `lifecycle.admit`."""
    random = Random(1)
    acked: Acked = defaultdict(dict)
    stated: dict[RunAddress, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    kills = 0
    async with nats_server() as server:
        places = [await a_place(server, f"place {n}", provision_it=not n) for n in range(2)]
        runs = [a_run(f"run_{n}") for n in range(RUNS)]
        for run in runs:
            await places[0][1].of(run).transact(lambda _: [created(), leased()], lease_epoch=0, actor=SYSTEM)

        def enough() -> bool:
            return kills >= KILLS and sum(map(len, acked.values())) >= APPENDS

        async def write(run_log: RunLog, writer: str) -> None:
            number = 0
            run = run_log.address
            while not enough():
                ids = [f"{writer}_{number}_{part}" for part in range(random.randint(1, 3))]
                number += 1
                stated[run][writer] += ids
                drafts = [said(event_id, event_id=event_id) for event_id in ids]
                placed = await until_acknowledged(run_log, drafts)
                acked[run].update(placed)

        async def kill() -> None:
            nonlocal kills
            while not enough():
                await asyncio.sleep(random.uniform(0.05, 0.9))
                await server.restart()
                kills += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill())
            for number, (_, logs) in enumerate(places):
                for run in runs:
                    for writer in range(WRITERS_PER_RUN):
                        tasks.create_task(write(logs.of(run), f"{run.run_id}_{number}_{writer}"))

        for run in runs:
            await check(places[0][0], run, acked[run], stated[run])
        for connection, _ in places:
            await connection.close()
    assert kills >= KILLS
    assert sum(map(len, acked.values())) >= APPENDS


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_p1_nothing_acknowledged_is_lost_when_appender_or_appender_and_broker_are_killed() -> None:
    """Acknowledge before the log's answer (`succeed` before `commit` in `RunLog._commit`) and lines are missing."""
    random = Random(2)
    acked: Acked = defaultdict(dict)
    async with nats_server() as server:
        connection, _ = await a_place(server, "reader", provision_it=True)
        for round_ in range(8):
            processes = [await start_appender(server, f"p{round_}_{n}") for n in range(2)]
            said_so = [await process.stdout.readline() for process in processes]  # they are at it
            await asyncio.sleep(random.uniform(0.1, 0.7))
            for process in processes:
                process.kill()
            if round_ % 2:
                server.kill9()
            for process in processes:
                said_so += (await process.stdout.read()).splitlines(keepends=True)
                await process.wait()
            for line in said_so:
                if line.endswith(b"\n"):
                    run_id, event_id, sequence = line.decode().split()
                    acked[a_run(run_id)][event_id] = int(sequence)
            if round_ % 2:
                await server.restart()
        assert sum(map(len, acked.values())) > 500
        for run, placed in acked.items():
            await check(connection, run, placed, {})
        await connection.close()


async def a_place(server: NatsServer, name: str, *, provision_it: bool) -> tuple[Connection, RunLogs]:
    """A process's worth of writing: its own connection, its own idea of every run."""
    connection = await connect(url=server.url, name=name)
    if provision_it:
        await provision(connection, SMALL, now=utc_now)
    log = NatsEventLog(connection, SMALL, publish_timeout_s=2.0)
    return connection, RunLogs(log, now=utc_now, new_id=new_id)


async def until_acknowledged(run_log: RunLog, drafts: list) -> list[tuple[str, int]]:
    """What a producer does: the same event ids again until there is an answer."""
    while True:
        try:
            return await run_log.append(drafts, lease_epoch=1, actor=AGENT)
        except Retryable:
            await asyncio.sleep(0.05)


async def start_appender(server: NatsServer, prefix: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.appender", server.url, prefix,
        stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT, limit=64 * 1024 * 1024,
    )  # fmt: skip


async def check(connection: Connection, run: RunAddress, acked: dict[str, int], stated: dict[str, list[str]]) -> None:
    log = NatsEventLog(connection, SMALL)
    facts = [fact async for stored in retrying(log, run) for fact in stored.commit.facts]
    await log.close()
    assert [fact.sequence for fact in facts] == list(range(1, len(facts) + 1))
    ids = [fact.event_id for fact in facts]
    assert len(ids) == len(set(ids)), "an event is in the log twice"
    at = {fact.event_id: fact.sequence for fact in facts}
    assert {event_id: at.get(event_id) for event_id in acked} == acked
    for writer, in_order in stated.items():
        assert [event_id for event_id in ids if event_id in set(in_order)] == in_order, writer


async def retrying(log: NatsEventLog, run: RunAddress):
    """Read a run whole, however long the server takes to be back."""
    read: Callable[[], object] = log.head
    async with asyncio.timeout(20):
        while True:
            try:
                await read(run)
                break
            except Retryable:
                await asyncio.sleep(0.1)
    async for stored in log.read(run):
        yield stored
