"""Looking at a run whose moment came: what is overdue is written, what is not known is looked at again."""

from datetime import UTC, datetime, timedelta

from runlane.kernel.clock import new_id
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.run_log import RunLogs
from runlane.run_supervisor import moments
from runlane.run_supervisor.meters import Meters
from runlane.run_supervisor.moment_book import MomentBook
from runlane.run_supervisor.moments import Moments
from runlane.run_supervisor.recovery import HandOut
from runlane.run_supervisor.timetable import Timetable
from runlane.run_supervisor.watch import GIVE_UP_S, LOOK_AGAIN_S, RunWatch
from runlane_contracts import events
from runlane_contracts.codec import timestamp
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import RunLifecycle, draft
from runlane_contracts.subjects import RunAddress
from support.buckets import MemoryBucket

RUN = RunAddress("demo", "run_1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOST = events.RunLeaseLost(lease_epoch=1)


class Orders:
    def __init__(self) -> None:
        self.given: list[HandOut] = []

    async def hand_out(self, run: RunLifecycle, order: HandOut) -> None:
        assert run.run_id == RUN.run_id
        self.given.append(order)


class World:
    def __init__(self) -> None:
        self.at = NOW
        self.log = MemoryEventLog()
        self.run_logs = RunLogs(self.log, now=self.now, new_id=new_id)
        self.book = MomentBook(MemoryBucket(), Timetable({}, now=self.now))
        self.orders, self.meters = Orders(), Meters()
        self.watch = RunWatch(
            self.run_logs,
            self.book,
            self.orders,
            meters=self.meters,
            now=self.now,  # type: ignore[arg-type]
        )

    def now(self) -> datetime:
        return self.at

    async def wrote(self, *payloads: events.Payload, follow: bool = True) -> "World":
        drafts = [draft(payload) for payload in payloads]
        await self.run_logs.of(RUN).transact(lambda _: drafts, lease_epoch=0, actor=Actor(kind="agent", id="a"))

        def change(found: Moments) -> None:
            for payload in payloads:
                if payload.TYPE in moments.RELEVANT:
                    moments.apply(found, payload.TYPE, payload, now=self.at)

        if follow:
            await self.book.change(RUN, change)
        return self

    async def started(self, *then: events.Payload, **created: object) -> "World":
        first = events.RunCreated(agent="a", **created)  # type: ignore[arg-type]
        return await self.wrote(first, events.RunLeased(lease_epoch=1, worker_id="w"), events.RunStarted(), *then)

    async def types(self) -> list[str]:
        return [fact.type async for stored in self.log.read(RUN) for fact in stored.commit.facts]


def in_s(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def an_ask(id_: str, seconds: float) -> events.ApprovalRequested:
    return events.ApprovalRequested(
        approval_id=id_, description="d", risk="r", version=1, action_digest="d", expires_at=timestamp(in_s(seconds))
    )


async def test_what_came_is_written_and_struck_and_the_next_moment_named() -> None:
    world = await World().started(an_ask("a1", 1), an_ask("a2", 9))
    world.at = in_s(1)
    assert await world.watch.look(RUN) == in_s(9)
    assert (await world.types())[-1] == "approval.resolved"
    assert world.book.due(RUN) == {"approval:a2": timestamp(in_s(9))}


async def test_a_look_that_comes_early_writes_nothing() -> None:
    world = await World().started(an_ask("a1", 5))
    assert await world.watch.look(RUN) == in_s(5)
    assert (await world.types())[-1] == "approval.requested"


async def test_a_moment_the_log_does_not_show_yet_is_kept_and_looked_at_again() -> None:
    world = await World().started()
    await world.book.change(RUN, lambda found: found.due.update({"approval:ahead": timestamp(NOW)}))
    assert await world.watch.look(RUN) == in_s(LOOK_AGAIN_S)
    assert world.book.due(RUN) == {"approval:ahead": timestamp(NOW)}


async def test_a_moment_that_the_log_never_shows_is_given_up_after_a_minute_of_looks() -> None:
    """It was in a commit whose facts are no good. To see it fail: let `_is_behind_for_good` always say no."""
    world = await World().started()
    await world.book.change(RUN, lambda found: found.due.update({"approval:a9": timestamp(in_s(1))}))
    for second in range(1, int(GIVE_UP_S) + 1):
        world.at = in_s(second)
        assert await world.watch.look(RUN) == in_s(second + LOOK_AGAIN_S)
    world.at = in_s(GIVE_UP_S + 1)
    assert await world.watch.look(RUN) is None
    assert world.book.due(RUN) == {}
    await world.book.change(RUN, lambda found: found.due.update({"approval:a9": timestamp(in_s(1))}))
    world.at = in_s(9 * GIVE_UP_S)
    assert await world.watch.look(RUN) == in_s(9 * GIVE_UP_S + LOOK_AGAIN_S), "each row of looks counts anew"


async def test_a_run_that_ended_leaves_no_moment() -> None:
    world = await World().started(an_ask("a1", 1), deadline_at=timestamp(in_s(1)))
    world.at = in_s(2)
    assert await world.watch.look(RUN) is None
    assert (await world.types())[-1] == "run.failed"
    assert len(world.book) == 0


async def test_a_lost_run_rests_and_is_handed_out() -> None:
    world = await World().started(LOST)
    assert await world.watch.look(RUN) == in_s(1)
    assert world.orders.given == []
    world.at = in_s(1)
    assert await world.watch.look(RUN) is None
    assert world.orders.given == [HandOut("default", 2)]
    assert len(world.book) == 0


async def test_a_run_without_attempts_left_is_given_up() -> None:
    world = await World().started(LOST, limits=events.Limits(max_attempts=1))
    world.at = in_s(1)
    await world.watch.look(RUN)
    assert (await world.types())[-1] == "run.failed"
    assert world.meters.recoveries == {"given_up": 1}


async def test_a_run_that_waits_for_a_person_is_held_until_that_person_spoke() -> None:
    world = await World().started(an_ask("a1", 99), events.RunWaiting(), LOST)
    world.at = in_s(1)
    assert await world.watch.look(RUN) == in_s(99)
    assert world.orders.given == []
    await world.wrote(events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u", version=1))
    assert world.book.due(RUN) == {"recover": timestamp(in_s(1))}
    await world.watch.look(RUN)
    assert world.orders.given == [HandOut("default", 2)]


async def test_a_person_who_speaks_while_the_run_is_being_held_is_heard() -> None:
    world = await World().started(an_ask("a1", 99), events.RunWaiting(), LOST)
    world.at = in_s(1)
    hold = world.book.change
    spoken = False

    async def speak_first(run: RunAddress, change: object) -> None:
        nonlocal spoken
        if change is moments.hold and not spoken:
            spoken = True
            await world.wrote(events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u", version=1))
        await hold(run, change)  # type: ignore[arg-type]

    world.book.change = speak_first  # type: ignore[assignment, method-assign]
    assert await world.watch.look(RUN) is None
    assert spoken
    assert world.orders.given == [HandOut("default", 2)]
    assert len(world.book) == 0
