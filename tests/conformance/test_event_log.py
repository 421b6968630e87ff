"""The promises of `EventLog`, kept by the log in memory and by the one on a real server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.errors import AheadOfStream, Conflict, Permanent, Retryable, StreamReplaced
from runlane.kernel.event_log import NOTHING, EventLog, StoredCommit
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.publisher import PubAck, WindowedPublisher
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.builders import a_commit, a_run, sequences
from support.nats import SMALL, nats_server

RUN = a_run()


@dataclass
class Subject:
    """A log under test and the ways to harm it."""

    log: EventLog
    lose_answers: Callable[[int], None]
    recreate: Callable[[], Awaitable[None]]


class LosesAnswers:
    """A publisher whose next `count` answers get lost after the server stored the message."""

    def __init__(self, publisher: WindowedPublisher) -> None:
        self.count = 0
        self._publisher = publisher

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck:
        ack = await self._publisher.publish(subject, data, headers, timeout_s=timeout_s)
        if self.count:
            self.count -= 1
            raise Retryable("no answer in time")
        return ack


@pytest.fixture
async def memory() -> Subject:
    log = MemoryEventLog(now=utc_now)

    async def recreate() -> None:
        log.recreate()

    def lose(count: int) -> None:
        log.settled_answers = count

    return Subject(log, lose, recreate)


@pytest.fixture
async def jetstream() -> AsyncIterator[Subject]:
    async with nats_server() as server:
        connection = await connect(url=server.url, name="test")
        await provision(connection, SMALL, now=utc_now)
        publisher = LosesAnswers(WindowedPublisher(connection))
        log = NatsEventLog(connection, SMALL, publisher=publisher)

        async def recreate() -> None:
            js = connection.nc.jetstream()
            await js.delete_stream(SMALL.log_stream(RUN.run_id))
            await provision(connection, SMALL, now=utc_now)

        def lose(count: int) -> None:
            publisher.count = count

        yield Subject(log, lose, recreate)
        await log.close()
        await connection.close()


@pytest.fixture(params=["memory", "jetstream"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.getfixturevalue(request.param)


async def write(log: EventLog, *sizes: int, run: RunAddress = RUN, after: Position = NOTHING) -> list[Position]:
    positions = []
    for size in sizes:
        after = await log.commit(a_commit(run, after, size), after=after)
        positions.append(after)
    return positions


async def read(log: EventLog, after: Position = NOTHING, run: RunAddress = RUN) -> list[StoredCommit]:
    return [stored async for stored in log.read(run, after=after)]


async def take(log: EventLog, count: int, after: Position = NOTHING) -> list[StoredCommit]:
    taken: list[StoredCommit] = []
    tail = log.tail(RUN, after=after)
    async with asyncio.timeout(10):
        async for stored in tail:
            taken.append(stored)
            if len(taken) == count:
                break
    await tail.aclose()
    return taken


async def test_a_commit_is_read_back_as_it_was_written(subject: Subject) -> None:
    (position,) = await write(subject.log, 3)
    (stored,) = await read(subject.log)
    assert stored.commit == a_commit(RUN, NOTHING, 3)
    assert stored.position == position
    assert position.sequence == 3
    assert stored.recorded_at.endswith("Z")
    assert await subject.log.head(RUN) == stored


async def test_a_run_without_a_commit_has_no_head_and_reads_as_nothing(subject: Subject) -> None:
    await write(subject.log, 1, run=a_run("other"))
    assert await subject.log.head(RUN) is None
    assert await read(subject.log) == []


async def test_commits_are_gapless_in_order_and_positions_rise(subject: Subject) -> None:
    positions = await write(subject.log, 1, 5, 2, 1)
    assert [p.sequence for p in positions] == [1, 6, 8, 9]
    assert sequences(s.commit for s in await read(subject.log)) == list(range(1, 10))
    assert [s.position for s in await read(subject.log)] == positions


async def test_a_commit_after_anything_but_the_last_position_is_a_conflict(subject: Subject) -> None:
    first, second = await write(subject.log, 1, 1)
    for stale in (NOTHING, first):
        with pytest.raises(Conflict):
            await subject.log.commit(a_commit(RUN, stale, commit_id="other"), after=stale)
    assert [s.position for s in await read(subject.log)] == [first, second]


async def test_of_many_racers_at_one_position_exactly_one_wins(subject: Subject) -> None:
    (first,) = await write(subject.log, 1)
    racers = (subject.log.commit(a_commit(RUN, first, commit_id=f"c{n}"), after=first) for n in range(20))
    outcomes = await asyncio.gather(*racers, return_exceptions=True)
    assert sum(isinstance(outcome, Position) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
    assert len(await read(subject.log)) == 2


async def test_the_same_commit_again_answers_the_first_position_and_is_stored_once(subject: Subject) -> None:
    (first,) = await write(subject.log, 2)
    assert await subject.log.commit(a_commit(RUN, NOTHING, 2), after=NOTHING) == first
    assert len(await read(subject.log)) == 1


async def test_the_same_commit_again_is_found_though_others_have_written_since(subject: Subject) -> None:
    """Compare with the run's last message instead of the one that follows, and this is a false conflict."""
    first, *_ = await write(subject.log, 2, 1, 1)
    assert await subject.log.commit(a_commit(RUN, NOTHING, 2), after=NOTHING) == first
    assert len(await read(subject.log)) == 3


async def test_a_lost_answer_is_settled_before_the_call_returns(subject: Subject) -> None:
    """Take the settling out and the caller hears of a conflict with itself."""
    subject.lose_answers(1)
    first, second = await write(subject.log, 1, 1)
    subject.lose_answers(3)
    third = await subject.log.commit(a_commit(RUN, second, 4), after=second)
    assert [s.position for s in await read(subject.log)] == [first, second, third]


async def test_a_lost_answer_of_a_loser_is_still_a_conflict(subject: Subject) -> None:
    (first,) = await write(subject.log, 1)
    await write(subject.log, 1, after=first)
    subject.lose_answers(1)
    with pytest.raises(Conflict):
        await subject.log.commit(a_commit(RUN, first, commit_id="other"), after=first)


@pytest.mark.parametrize("commits_read", [0, 1, 2, 3, 4])
async def test_reading_after_any_position_gives_exactly_the_rest(subject: Subject, commits_read: int) -> None:
    positions = [NOTHING, *await write(subject.log, 3, 1, 2, 4)]
    rest = await read(subject.log, after=positions[commits_read])
    assert [s.position for s in rest] == positions[commits_read + 1 :]


async def test_a_position_inside_a_commit_yields_that_commit_whole(subject: Subject) -> None:
    first, second, third = await write(subject.log, 3, 4, 1)
    inside = Position(second.epoch, second.stream_seq, 5)
    assert [s.position for s in await read(subject.log, after=inside)] == [second, third]
    assert [s.position for s in await take(subject.log, 2, after=inside)] == [second, third]
    assert first.sequence == 3


async def test_a_tail_gives_history_and_then_what_comes(subject: Subject) -> None:
    history = await write(subject.log, 2, 2)
    taking = asyncio.ensure_future(take(subject.log, 5))
    await asyncio.sleep(0.05)
    new = await write(subject.log, 1, 3, 1, after=history[-1])
    assert [s.position for s in await taking] == [*history, *new]


async def test_a_tail_of_a_run_that_does_not_exist_yet_waits_for_it(subject: Subject) -> None:
    taking = asyncio.ensure_future(take(subject.log, 1))
    await asyncio.sleep(0.05)
    positions = await write(subject.log, 1)
    assert [s.position for s in await taking] == positions


async def test_a_tail_after_a_position_gives_exactly_the_rest(subject: Subject) -> None:
    first, second, third = await write(subject.log, 1, 2, 3)
    assert [s.position for s in await take(subject.log, 2, after=first)] == [second, third]


async def test_runs_of_other_tenants_and_other_runs_are_not_seen(subject: Subject) -> None:
    await write(subject.log, 1, 1, run=a_run("run_1", "globex"))
    await write(subject.log, 1, run=a_run("run_10"))
    (position,) = await write(subject.log, 2)
    assert [s.position for s in await read(subject.log)] == [position]
    head = await subject.log.head(RUN)
    assert head is not None
    assert head.position == position


async def test_a_recreated_log_is_never_taken_for_the_old_one(subject: Subject) -> None:
    old = (await write(subject.log, 1, 1))[-1]
    await subject.recreate()
    with pytest.raises(StreamReplaced):
        await _read_until_it_knows(subject.log, old)
    with pytest.raises(Conflict):
        await subject.log.commit(a_commit(RUN, old, commit_id="later"), after=old)
    new = await write(subject.log, 1, 1, 1)
    assert new[-1].epoch != old.epoch
    assert [s.position for s in await read(subject.log)] == new
    with pytest.raises(StreamReplaced):
        await read(subject.log, after=old)


async def _read_until_it_knows(log: EventLog, after: Position) -> None:
    for _ in range(50):
        try:
            await read(log, after=after)
        except Retryable:
            await asyncio.sleep(0.1)


async def test_a_position_past_the_end_is_said_to_be_ahead(subject: Subject) -> None:
    (first,) = await write(subject.log, 1)
    with pytest.raises(AheadOfStream):
        await read(subject.log, after=Position(first.epoch, first.stream_seq + 5, 6))


async def test_a_commit_that_can_never_be_written_is_permanent(subject: Subject) -> None:
    with pytest.raises(Permanent):
        await subject.log.commit(a_commit(RUN, NOTHING, 1, text="x" * 2_200_000), after=NOTHING)
    with pytest.raises(Permanent):
        await subject.log.commit(a_commit(RUN, Position("e", 1, 7)), after=NOTHING)
    for address in (a_run("a.b"), a_run("*"), a_run("r", "Acme.>")):
        with pytest.raises(Permanent):
            await subject.log.commit(a_commit(address, NOTHING), after=NOTHING)
    assert await read(subject.log) == []


async def test_a_commit_id_of_another_run_is_never_taken_for_success(subject: Subject) -> None:
    """Trust the server's `duplicate` alone and a commit that is nowhere counts as written."""
    await subject.log.commit(a_commit(a_run("other"), NOTHING, commit_id="cmt"), after=NOTHING)
    try:
        position = await subject.log.commit(a_commit(RUN, NOTHING, commit_id="cmt"), after=NOTHING)
    except Permanent:
        assert await read(subject.log) == []
    else:
        assert [s.position for s in await read(subject.log)] == [position]


async def test_a_long_run_is_read_whole(subject: Subject) -> None:
    positions = await write(subject.log, *([3] * 60))
    assert [s.position for s in await read(subject.log)] == positions
