"""Leases: one owner, rising epochs, crashes between the two writes, expiry as a decision."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings, strategies as st

from runlane.kernel.clock import new_id
from runlane.kernel.errors import Conflict, Fenced, Overloaded, Retryable
from runlane.kernel.lease import LeaseDesk, LeaseHeld
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.run_log import RunLogs
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor, Commit
from runlane_contracts.lifecycle import Refused, draft
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

RUN = RunAddress("demo", "r1")
ME = Actor(kind="user", id="u")


@dataclass(frozen=True)
class Entry:
    value: bytes
    revision: int


class MemoryBucket:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = 0

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(0)
        return self.entries.get(key)

    async def create(self, key: str, value: bytes) -> int:
        await asyncio.sleep(0)
        if key in self.entries:
            raise Conflict("exists")
        return self._put(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        await asyncio.sleep(0)
        if key not in self.entries or self.entries[key].revision != revision:
            raise Conflict("changed")
        return self._put(key, value)

    async def delete(self, key: str, revision: int | None = None) -> None:
        await asyncio.sleep(0)
        if revision is not None and (key not in self.entries or self.entries[key].revision != revision):
            raise Conflict("changed")
        self.entries.pop(key, None)

    def _put(self, key: str, value: bytes) -> int:
        self.revision += 1
        self.entries[key] = Entry(value, self.revision)
        return self.revision


class BoundedLog(MemoryEventLog):
    full = False

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        if self.full:
            raise Overloaded("full")
        return await super().commit(commit, after=after)


class World:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)
        self.log, self.bucket = BoundedLog(), MemoryBucket()

    def now(self) -> datetime:
        return self.at

    def desk(self) -> LeaseDesk:
        return LeaseDesk(self.bucket, self.run_logs(), now=self.now)

    def run_logs(self) -> RunLogs:
        return RunLogs(self.log, now=self.now, new_id=new_id)

    async def start(self) -> "World":
        await self.run_logs().of(RUN).transact(lambda _: [draft(events.RunCreated(agent="a"))], lease_epoch=0, actor=ME)
        return self

    async def end(self) -> None:
        await self.run_logs().of(RUN).transact(lambda _: [draft(events.RunFailed(error=events.Problem(code="x")))],
                                               lease_epoch=0, actor=ME)  # fmt: skip

    async def types(self) -> list[str]:
        return [f.type async for stored in self.log.read(RUN) for f in stored.commit.facts]

    def pass_s(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


async def test_one_owner_at_a_time_and_a_name_proves_nothing() -> None:
    world = await World().start()
    lease = await world.desk().take(RUN, "w", 10)
    assert lease.lease_epoch == 1
    for worker in ("other", "w"):
        with pytest.raises(LeaseHeld):
            await world.desk().take(RUN, worker, 10)
    assert await world.types() == ["run.created", "run.leased"]


async def test_a_renewed_lease_lives_on_and_one_that_was_not_is_over() -> None:
    world = await World().start()
    lease = await world.desk().take(RUN, "w", 10)
    for _ in range(5):
        world.pass_s(9)
        await world.desk().renew(RUN, "w", lease.lease_epoch)
    world.pass_s(10)
    with pytest.raises(Fenced):
        await world.desk().renew(RUN, "w", lease.lease_epoch)
    with pytest.raises(Fenced):
        await world.desk().check(RUN, lease.lease_epoch)


async def test_taking_over_records_the_loss_in_the_same_commit() -> None:
    world = await World().start()
    await world.desk().take(RUN, "old", 1)
    world.pass_s(2)
    lease = await world.desk().take(RUN, "new", 10)
    assert lease.lease_epoch == 2
    assert await world.types() == ["run.created", "run.leased", "run.lease_lost", "run.leased"]
    for act in (world.desk().renew, world.desk().release):
        with pytest.raises(Fenced):
            await act(RUN, "old", 1)
    with pytest.raises(Fenced):
        await world.desk().check(RUN, 1)


async def test_expiry_is_declared_once_and_the_run_can_be_taken_again() -> None:
    world = await World().start()
    await world.desk().take(RUN, "w", 1)
    assert await world.desk().expire(RUN) is not None
    world.pass_s(2)
    await asyncio.gather(*(world.desk().expire(RUN) for _ in range(4)))
    assert (await world.types()).count("run.lease_lost") == 1
    assert world.bucket.entries == {}
    assert (await world.desk().take(RUN, "x", 1)).lease_epoch == 2


async def test_a_watcher_that_dies_while_declaring_leaves_it_to_the_next_one() -> None:
    world = await World().start()
    await world.desk().take(RUN, "w", 1)
    world.pass_s(2)

    def dies(_: object) -> None:
        raise Retryable("killed here")

    world.log.faults.append(dies)
    with pytest.raises(Retryable):
        await world.desk().expire(RUN)
    with pytest.raises(Fenced):
        await world.desk().renew(RUN, "w", 1)
    await world.desk().expire(RUN)
    assert (await world.types())[-1] == "run.lease_lost"


async def test_a_taker_that_dies_between_the_two_writes_only_delays() -> None:
    world = await World().start()

    def dies(_: object) -> None:
        raise Retryable("killed here")

    world.log.faults.append(dies)
    with pytest.raises(Retryable):
        await world.desk().take(RUN, "w", 1)
    with pytest.raises(LeaseHeld):
        await world.desk().take(RUN, "x", 1)
    world.pass_s(2)
    await world.desk().expire(RUN)
    assert await world.types() == ["run.created"]
    assert (await world.desk().take(RUN, "x", 1)).lease_epoch == 1


async def test_releasing_gives_the_run_back_at_once() -> None:
    world = await World().start()
    lease = await world.desk().take(RUN, "w", 60)
    await world.desk().release(RUN, "w", lease.lease_epoch)
    assert (await world.types())[-1] == "run.lease_lost"
    assert (await world.desk().take(RUN, "x", 60)).lease_epoch == 2


async def test_a_finished_run_cannot_be_taken_and_its_release_writes_nothing() -> None:
    world = await World().start()
    lease = await world.desk().take(RUN, "w", 60)
    await world.end()
    before = await world.types()
    await world.desk().release(RUN, "w", lease.lease_epoch)
    assert await world.types() == before
    with pytest.raises(Refused) as refused:
        await world.desk().take(RUN, "x", 60)
    assert refused.value.code == Code.RUN_TERMINAL
    assert world.bucket.entries == {}


async def test_a_run_that_does_not_exist_cannot_be_taken() -> None:
    with pytest.raises(Refused) as refused:
        await World().desk().take(RUN, "w", 1)
    assert refused.value.code == Code.RUN_NOT_FOUND


STEPS = st.tuples(st.sampled_from(["take", "renew", "release", "expire"]), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=60, deadline=None)
def test_epochs_never_fall_and_never_two_owners(steps: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        world = await World().start()
        held: dict[int, int] = {}  # worker → epoch it believes in
        for act, worker, seconds in steps:
            world.pass_s(seconds)
            name, desk = f"w{worker}", world.desk()
            try:
                if act == "take":
                    held[worker] = (await desk.take(RUN, name, 3)).lease_epoch
                elif act == "renew" and worker in held:
                    await desk.renew(RUN, name, held[worker])
                elif act == "release" and worker in held:
                    await desk.release(RUN, name, held.pop(worker))
                elif act == "expire":
                    await desk.expire(RUN)
            except (LeaseHeld, Fenced):
                pass
        live = 0
        for epoch in set(held.values()):
            try:
                await world.desk().check(RUN, epoch)
                live += 1
            except Fenced:
                pass
        assert live <= 1
        epochs = [f.payload async for s in world.log.read(RUN) for f in s.commit.facts if f.type == "run.leased"]
        numbers = [int(bytes(p).split(b'"lease_epoch":')[1].split(b",")[0]) for p in epochs]
        assert numbers == sorted(set(numbers))

    asyncio.run(play())


async def test_an_owner_whose_successor_never_reached_the_log_is_lost_with_it() -> None:
    world = await World().start()
    await world.desk().take(RUN, "old", 1)
    world.pass_s(2)
    world.log.full = True
    with pytest.raises(Retryable):
        await world.desk().take(RUN, "new", 1)
    world.log.full = False
    world.pass_s(2)
    assert await world.desk().expire(RUN) is None
    assert await world.types() == ["run.created", "run.leased", "run.lease_lost"]


async def test_a_fenced_owner_holds_nothing_whatever_its_time() -> None:
    world = await World().start()
    lease = await world.desk().take(RUN, "w", 60)
    await world.desk().fence(RUN, lease.lease_epoch - 1)
    await world.desk().check(RUN, lease.lease_epoch)
    await world.desk().fence(RUN, lease.lease_epoch)
    for act in (world.desk().renew, world.desk().release):
        with pytest.raises(Fenced):
            await act(RUN, "w", lease.lease_epoch)
    await world.desk().fence(RUN, lease.lease_epoch)


async def test_who_watches_may_say_what_a_loss_leads_to() -> None:
    world = await World().start()
    await world.desk().take(RUN, "w", 1)
    world.pass_s(2)
    await world.desk().expire(RUN, lambda _run: [draft(events.RunCancelled())])
    assert await world.types() == ["run.created", "run.leased", "run.cancelled"]
