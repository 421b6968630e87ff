"""How many runs of a tenant are driven at once: never more than it may, no seat is ever lost, whatever crashes."""

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from runlane.kernel.clock import new_id
from runlane.kernel.direct import Page, StoredMessage
from runlane.kernel.errors import Fenced, Retryable
from runlane.kernel.lease import Lease, LeaseDesk, LeaseHeld, NoRoom, decode_lease
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.run_log import RunLogs
from runlane.kernel.seats import Seats
from runlane.kernel.tenants import TenantBook
from runlane_contracts import events
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import draft
from runlane_contracts.subjects import RunAddress
from runlane_contracts.tenants import DEFAULT_KEY, TenantLimits
from support.buckets import MemoryBucket

ME = Actor(kind="user", id="u")


class Pages:
    """Reads a memory bucket as direct get reads the stream of a real one."""

    def __init__(self, bucket: MemoryBucket) -> None:
        self.bucket, self.away, self.behind = bucket, False, 0

    async def page(self, _stream: str, subject: str, start_seq: int = 1) -> Page:
        await asyncio.sleep(0)
        if self.away:
            raise Retryable("away")
        prefix, tenant = "$KV.L.", subject.removeprefix("$KV.L.").removesuffix("*")
        found = [
            StoredMessage(prefix + one.key, one.revision, 0, {}, one.value)
            for one in self.bucket.entries()
            if one.key.startswith(tenant) and one.revision >= start_seq
        ]
        if self.behind:
            self.behind -= 1
            found = found[:-1]
        return Page(sorted(found, key=lambda one: one.seq), 0)


class World:
    def __init__(self, most: int | None) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)
        self.log, self.leases, self.limits = MemoryEventLog(), MemoryBucket(), MemoryBucket()
        self.pages, self.most = Pages(self.leases), most

    def now(self) -> datetime:
        return self.at

    def desk(self) -> LeaseDesk:
        """That of one process: nothing is shared but the bucket and the log."""
        seats = Seats(self.pages, "L", TenantBook(self.limits, fresh_s=0), now=self.now)
        return LeaseDesk(self.leases, RunLogs(self.log, now=self.now, new_id=new_id), now=self.now, seats=seats)

    async def start(self, *runs: str, dispatch: str = "pool") -> "World":
        if self.most is not None:
            await self.limit("acme", TenantLimits(max_running=self.most))
        logs = RunLogs(self.log, now=self.now, new_id=new_id)
        for run in runs:
            created = events.RunCreated(agent="a", dispatch=dispatch)
            await logs.of(RunAddress("acme", run)).transact(
                lambda _, created=created: [draft(created)], lease_epoch=0, actor=ME
            )
        return self

    async def limit(self, key: str, limits: TenantLimits) -> None:
        entry = await self.limits.get(key)
        value = msgspec.json.encode(limits)
        await (self.limits.create(key, value) if entry is None else self.limits.update(key, value, entry.revision))

    def live(self) -> list[str]:
        return [
            one.key
            for one in self.leases.entries()
            if one.value and decode_lease(one.value).seat is not None and decode_lease(one.value).is_live(self.at)
        ]


def run(name: str) -> RunAddress:
    return RunAddress("acme", name)


async def test_at_the_bound_a_run_waits_and_goes_on_when_another_ends():
    world = await World(2).start("r1", "r2", "r3")
    desk = world.desk()
    first = await desk.take(run("r1"), "w", 10)
    await desk.take(run("r2"), "w", 10)
    with pytest.raises(NoRoom):
        await world.desk().take(run("r3"), "w", 10)
    await desk.release(run("r1"), "w", first.lease_epoch)
    await world.desk().take(run("r3"), "w", 10)


async def test_a_seat_that_nobody_renews_is_free_again_without_anybody_doing_anything():
    """A killed worker holds no seat for longer than its lease. Leave `is_live` out of `_seats` to see it fail."""
    world = await World(1).start("r1", "r2")
    await world.desk().take(run("r1"), "w", 10)
    world.at += timedelta(seconds=11)
    await world.desk().take(run("r2"), "w", 10)


async def test_a_renewal_keeps_the_place_that_was_taken_first():
    """Leave `seat` out of `renew` to see it fail: renewing would put the first one behind the second."""
    world = await World(1).start("r1", "r2")
    desk = world.desk()
    lease = await desk.take(run("r1"), "w", 10)
    for _ in range(3):
        await desk.renew(run("r1"), "w", lease.lease_epoch)
    with pytest.raises(NoRoom):
        await world.desk().take(run("r2"), "w", 10)
    entry = await world.leases.get("acme.r1")
    assert entry is not None
    assert decode_lease(entry.value).seat == 1


async def test_runs_that_no_pool_gave_out_take_no_seat():
    world = await World(1).start("r1", dispatch="external")
    await world.start("r2", "r3")
    desk = world.desk()
    await desk.take(run("r2"), "w", 10)
    await desk.take(run("r1"), "w", 10)
    with pytest.raises(NoRoom):
        await desk.take(run("r3"), "w", 10)


async def test_limits_for_everybody_count_where_a_tenant_has_none_and_zero_stops_it():
    world = await World(None).start("r1", "r2")
    await world.limit(DEFAULT_KEY, TenantLimits(max_running=0))
    with pytest.raises(NoRoom):
        await world.desk().take(run("r1"), "w", 10)
    await world.limit("acme", TenantLimits(weight=2))
    await world.desk().take(run("r1"), "w", 10)


async def test_a_replica_that_is_behind_is_asked_again():
    world = await World(1).start("r1")
    world.pages.behind = 3
    await world.desk().take(run("r1"), "w", 10)


async def test_what_cannot_be_counted_leaves_everything_as_it_was():
    world = await World(1).start("r1")

    class Flaky(Pages):
        asked = 0

        async def page(self, stream: str, subject: str, start_seq: int = 1) -> Page:
            self.asked += 1
            if self.asked == 2:  # the look before was answered, the one after is not
                raise Retryable("away")
            return await super().page(stream, subject, start_seq)

    world.pages = Flaky(world.leases)
    with pytest.raises(Retryable):
        await world.desk().take(run("r1"), "w", 10)
    assert world.live() == []
    await world.desk().take(run("r1"), "w", 10)


async def test_where_there_was_no_room_an_owner_that_ran_out_is_still_found_by_who_declares_it():
    """Delete the entry instead of putting it back, in `_keep_seat`, to see it fail: nobody would declare the loss."""
    world = await World(1).start("r1", "r2")
    desk = world.desk()
    await desk.take(run("r1"), "w", 1)
    world.at += timedelta(seconds=2)

    class Late(Pages):
        async def page(self, stream: str, subject: str, start_seq: int = 1) -> Page:
            page = await super().page(stream, subject, start_seq)
            if not taken:
                taken.append(await world.desk().take(run("r2"), "other", 10))  # right after the look
            return page

    taken: list[object] = [None]
    late = Late(world.leases)
    taken.clear()
    world_pages, world.pages = world.pages, late
    late_desk = world.desk()
    world.pages = world_pages
    with pytest.raises(NoRoom):
        await late_desk.take(run("r1"), "w2", 10)
    entry = await world.leases.get("acme.r1")
    assert entry is not None
    assert decode_lease(entry.value).worker_id == "w"
    assert await world.desk().expire(run("r1")) is None
    types = [fact.type async for stored in world.log.read(run("r1")) for fact in stored.commit.facts]
    assert types == ["run.created", "run.leased", "run.lease_lost"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 10), st.integers(0, 2**32))
async def test_however_many_take_at_once_the_bound_holds_and_nothing_starves(most: int, workers: int, seed: int):
    """Workers race for runs, renew, end, and crash. Let `keeps` answer True to see the bound broken."""
    chance = random.Random(seed)
    names = [f"r{n}" for n in range(15)]
    world = await World(most).start(*names)
    done: set[str] = set()
    held: dict[str, Lease] = {}

    async def work(worker: str) -> None:
        desk = world.desk()
        while len(done) < len(names):
            name = chance.choice([one for one in names if one not in done] or names)
            try:
                lease = await desk.take(run(name), worker, 10)
            except (NoRoom, LeaseHeld):
                for _ in range(chance.randrange(1, 6)):
                    await asyncio.sleep(0)
                continue
            held[name] = lease
            assert sum(one.is_live(world.at) for one in held.values()) <= most
            if chance.random() < 0.2:  # it is killed, and time passes until its lease, and every other, has run out
                world.at += timedelta(seconds=11)
                desk, worker = world.desk(), f"{worker}k"
                continue
            with suppress(Fenced):
                for _ in range(chance.randrange(4)):
                    held[name] = await desk.renew(run(name), worker, lease.lease_epoch)
                del held[name]
                await desk.release(run(name), worker, lease.lease_epoch)
                done.add(name)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for n in range(workers):
            tasks.create_task(work(f"w{n}"))
    assert done == set(names)
