"""P1 on three replicas, where the server answers a repeat differently: `duplicate` instead of a conflict, and
"in process" while another publish of the run is on its way.
"""

import asyncio
from random import Random

import pytest

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, KernelError, Retryable
from runlane.kernel.event_log import NOTHING, EventLog
from runlane.kernel.jetstream import api
from runlane.kernel.kv import Bucket
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.publisher import PubAck, WindowedPublisher
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts.cursor import Position
from runlane_contracts.streams import MIB, Layout
from runlane_contracts.subjects import RunAddress
from support.builders import AGENT, SYSTEM, a_commit, a_run, created, leased, said
from support.eventually import eventually
from support.nats import nats_cluster

LAYOUT = Layout(replicas=3, max_bytes=64 * MIB)
RUN = a_run()


class LosesAnswers:
    """Every third answer gets lost after the servers stored the message."""

    def __init__(self, publisher: WindowedPublisher) -> None:
        self._publisher = publisher
        self._count = 0

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck:
        ack = await self._publisher.publish(subject, data, headers, timeout_s=timeout_s)
        self._count += 1
        if self._count % 3 == 0:
            raise Retryable("no answer in time")
        return ack


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_p1_on_three_replicas_answers_are_settled_and_a_killed_leader_loses_nothing() -> None:
    """Take the settling out of `NatsEventLog._attempt` and a commit conflicts with itself."""
    async with nats_cluster(layout=LAYOUT) as servers:
        connection = await connect(url=",".join(server.url for server in servers), name="test", wait_s=30)
        await eventually(lambda: provisioned(connection), within_s=60, every_s=0.5)
        publisher = LosesAnswers(WindowedPublisher(connection))
        log = NatsEventLog(connection, LAYOUT, publisher=publisher, budget_s=30)
        await one_commit_after_the_other(log)
        await racers(log)
        async with DirectReader(connection) as direct:
            await buckets(Bucket(publisher, direct, LAYOUT.lease_bucket))

        stream = LAYOUT.log_stream(RUN.run_id)
        leader = (await api(connection, f"STREAM.INFO.{stream}", answer=dict))["cluster"]["leader"]
        await while_the_leader_is_killed(log, lambda: killed(servers, leader))
        await log.close()
        await connection.close()


async def provisioned(connection: Connection) -> bool:
    try:
        await provision(connection, LAYOUT, now=utc_now)
    except KernelError:  # no leader yet
        return False
    return True


async def one_commit_after_the_other(log: EventLog) -> None:
    after = NOTHING
    positions = []
    for size in (1, 3, 2, 1, 4, 1):
        after = await log.commit(a_commit(RUN, after, size), after=after)
        positions.append(after)
    assert [stored.position for stored in await read(log, RUN)] == positions
    assert await log.commit(a_commit(RUN, NOTHING, 1), after=NOTHING) == positions[0]  # long after
    with pytest.raises(Conflict):
        await log.commit(a_commit(RUN, positions[0], commit_id="another"), after=positions[0])


async def racers(log: EventLog) -> None:
    run = a_run("raced")
    outcomes = await asyncio.gather(
        *(log.commit(a_commit(run, NOTHING, commit_id=f"c{n}"), after=NOTHING) for n in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Position) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
    assert len(await read(log, run)) == 1


async def buckets(bucket: Bucket) -> None:
    first = await bucket.create("k", b"1")
    second = await bucket.update("k", b"2", first)
    await bucket.delete("k", second)
    again = await bucket.create("k", b"3")
    assert first < second < again
    with pytest.raises(Conflict):
        await bucket.update("k", b"4", second)


async def while_the_leader_is_killed(log: NatsEventLog, kill) -> None:
    logs = RunLogs(log, now=utc_now, new_id=new_id)
    random = Random(3)
    acked: dict[RunAddress, dict[str, int]] = {a_run(f"run_{n}"): {} for n in range(4)}
    for run in acked:
        await logs.of(run).transact(lambda _: [created(), leased()], lease_epoch=0, actor=SYSTEM)
    stop = asyncio.Event()

    async def write(run_log: RunLog, writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            event_id = f"{run_log.address.run_id}_{writer}_{number}"
            while True:
                try:
                    placed = await run_log.append([said(event_id, event_id=event_id)], lease_epoch=1, actor=AGENT)
                    break
                except Retryable:
                    await asyncio.sleep(random.uniform(0.05, 0.2))
            acked[run_log.address].update(placed)

    async with asyncio.TaskGroup() as tasks:
        for run in acked:
            for writer in range(3):
                tasks.create_task(write(logs.of(run), writer))
        await asyncio.sleep(1)
        before = sum(map(len, acked.values()))
        await kill()
        async with asyncio.timeout(60):
            while sum(map(len, acked.values())) < before + 200:
                await asyncio.sleep(0.1)
        stop.set()

    for run, placed in acked.items():
        ids = [fact.event_id for stored in await read(log, run) for fact in stored.commit.facts]
        assert len(ids) == len(set(ids))
        assert {event_id: ids.index(event_id) + 1 for event_id in placed} == placed


async def killed(servers, leader: str) -> None:
    for server in servers:
        if server.server_name == leader:
            server.kill9()


async def read(log: EventLog, run: RunAddress):
    """Whole; a replica may be behind, so until it has the head."""
    async with asyncio.timeout(20):
        while True:
            try:
                return [stored async for stored in log.read(run)]
            except Retryable:
                await asyncio.sleep(0.1)
