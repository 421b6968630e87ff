"""P14: several supervisors share the partitions; one that dies loses nothing, and no run is decided by two."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.direct import DirectReader
from runlane.kernel.kv import Bucket
from runlane.kernel.ledger import Ledger
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.run_supervisor.app import NAME
from runlane.run_supervisor.dispatch import Dispatcher
from runlane.run_supervisor.handler import CommandHandler
from runlane.run_supervisor.meters import Meters
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.commands import Command, ResolveApproval
from runlane_contracts.envelope import Actor
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import virtual_partition
from support.write_side import WriteSide, a_waiting_run, eventually, write_side

pytestmark = pytest.mark.fault

PARTITIONS = 4


def another(side: WriteSide) -> WriteSide:
    return WriteSide(side.server, side.layout, side.connections, side.common)


async def held(side: WriteSide) -> list[int]:
    """Which partitions this supervisor decides for."""
    return [n for n, one in enumerate(side.commands) if one.is_active]


def partition(run_id: str) -> int:
    return virtual_partition(run_id) * PARTITIONS // 256


@pytest.mark.timeout(90)
async def test_p14_two_supervisors_share_the_partitions_and_one_takes_over_those_of_the_other() -> None:
    """To see it fail: let `Sharing._let_go_of_one` do nothing (no share), or `pinned=False` (both decide for all)."""
    async with write_side(supervisor=False, partitions=PARTITIONS) as side:
        other = another(side)
        await side.start_supervisor()
        await other.start_supervisor()
        me = side.client()

        runs = [await me.start_run(run_id=f"run_{n}") for n in range(16)]
        assert {partition(run_id) for run_id in runs} == set(range(PARTITIONS))

        async def shared() -> bool:
            # A pin comes with a delivery: where nothing is asked, nobody has to be active.
            await asyncio.gather(*(me.command(run_id, "run.pause", wait_s=20) for run_id in runs))
            mine, theirs = await held(side), await held(other)
            return len(mine) == len(theirs) == 2 and sorted(mine + theirs) == list(range(PARTITIONS))

        await eventually(shared, within_s=30)
        asking = [me.command(run_id, "message.send", {"content": "hi"}, wait_s=20) for run_id in runs]
        began = time.monotonic()
        _, *replies = await asyncio.gather(other.kill_supervisor(), *asking)
        assert {reply.status_code for reply in replies} == {200}
        assert time.monotonic() - began < 15
        for run_id in runs:
            assert (await side.types(run_id)).count("message.completed") == 1

        async def all_here() -> bool:
            await asyncio.gather(*(me.command(run_id, "run.pause", wait_s=20) for run_id in runs))
            return await held(side) == list(range(PARTITIONS))

        await eventually(all_here, within_s=20)


async def settled_share(*supervisors: WriteSide) -> list[list[int]]:
    """What each holds, once every partition has exactly one owner and none holds two more than another."""

    async def shared() -> list[list[int]]:
        parts = [await held(one) for one in supervisors]
        counts = [len(part) for part in parts]
        whole = sorted(n for part in parts for n in part) == list(range(PARTITIONS))
        return parts if whole and max(counts) - min(counts) <= 1 else []

    parts: list[list[int]] = await eventually(shared, within_s=40)
    return parts


@pytest.mark.timeout(180)
async def test_p14_among_three_and_four_supervisors_each_partition_has_one_owner_also_where_nobody_asks() -> None:
    """One is killed and two are added while commands come; then nobody asks anything, and all is owned all the same.

    To see it fail: let `_free_what_nobody_has` set back only where `self._on_active is not None`; a partition that
    is idle when its owner goes has none then.
    """
    async with write_side(supervisor=False, partitions=PARTITIONS) as side:
        crew = [side, *(another(side) for _ in range(4))]
        for one in crew[:3]:
            await one.start_supervisor()
        me = side.client()
        runs = [await me.start_run(run_id=f"run_{n}") for n in range(16)]
        await settled_share(*crew[:3])

        stop, said = asyncio.Event(), Counter[str]()

        async def talk(run_id: str) -> None:
            while not stop.is_set():
                reply = await me.command(run_id, "message.send", {"content": "hi"}, wait_s=30)
                assert reply.status_code == 200, reply.text
                said[run_id] += 1

        async with asyncio.TaskGroup() as tasks:
            for run_id in runs:
                tasks.create_task(talk(run_id))
            await crew[1].kill_supervisor()
            await settled_share(crew[0], crew[2])
            for one in crew[3:]:
                await one.start_supervisor()
            await settled_share(crew[0], *crew[2:])
            stop.set()
        for run_id in runs:
            assert (await side.types(run_id)).count("message.completed") == said[run_id] > 0

        await crew[3].kill_supervisor()  # and now nobody asks anything
        await settled_share(crew[0], crew[2], crew[4])
        replies = await asyncio.gather(*(me.command(run_id, "run.cancel", wait_s=10) for run_id in runs))
        assert {reply.status_code for reply in replies} == {200}
        for one in (crew[2], crew[4]):
            await one.stop_supervisor()


@asynccontextmanager
async def a_handler(side: WriteSide) -> AsyncIterator[CommandHandler]:
    """What a supervisor decides with, without the pin that makes one of them active."""
    connection = await side.connections.of(NAME)
    publisher, direct = WindowedPublisher(connection), DirectReader(connection)
    log = NatsEventLog(connection, side.layout, publisher=publisher, direct=direct)
    yield CommandHandler(
        run_logs=RunLogs(log, now=utc_now, new_id=new_id),
        ledger=Ledger(Bucket(publisher, direct, side.layout.ledger_bucket)),
        dispatcher=Dispatcher(publisher, side.layout.subjects), wake=connection.nc.publish,
        subjects=side.layout.subjects, meters=Meters(), expiry_s=3600, now=utc_now,
    )  # fmt: skip
    await publisher.close()
    await direct.close()


async def test_p14_two_that_decide_for_one_run_all_the_same_are_told_apart_by_the_log() -> None:
    """To see it fail: let `RunLog._commit` publish without the expected sequence."""
    async with write_side() as side, a_handler(side) as one, a_handler(side) as two:
        me = side.client()
        for n in range(5):
            run_id, _ = await a_waiting_run(me)

            def decision(key: str, by: str, n: int = n, run_id: str = run_id) -> Command:
                payload = ResolveApproval(approval_id="a1", decision="approved" if by == "u" else "rejected")
                return Command(
                    command_id=f"cmd_{n}{key}", idempotency_key=key, type=payload.TYPE, tenant_id="demo", run_id=run_id,
                    issued_at=timestamp(utc_now()), issued_by=Actor(kind="user", id=by), payload=Raw(encode(payload)),
                )  # fmt: skip

            same = decision("A", "u")
            entries = await asyncio.gather(
                one.settle(same), two.settle(same), one.settle(decision("B", "v")), two.settle(decision("C", "v"))
            )
            assert Counter(entry.status.value for entry in {entry.command_id: entry for entry in entries}.values()) == {
                "applied": 1, "rejected": 2,
            }  # fmt: skip
            assert entries[0] == entries[1], "one command, one answer"
            assert len(await side.payloads(run_id, "approval.resolved")) == 1


def test_each_command_belongs_to_exactly_one_partition_and_each_number_of_them_has_cursors_of_its_own() -> None:
    names = set()
    for count in (1, 2, 3, 4):
        layout = Layout(supervisor_partitions=count)
        own = [spec for spec in layout.consumers() if spec.service == NAME and spec.stream == layout.command_stream]
        filters = [subject for spec in own for subject in spec.filter_subjects]
        assert len(own) == count
        assert len(filters) == len(set(filters)) == (1 if count == 1 else 256)
        assert {(spec.pinned, spec.pin_ttl_s) for spec in own} == {(True, 1.0)}
        names |= {spec.durable for spec in own}
    assert len(names) == 1 + 2 + 3 + 4
