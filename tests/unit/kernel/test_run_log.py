"""One run opened for writing: group commit, conflicts, refusals, repeats."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.errors import Conflict, Retryable
from runlane.kernel.event_log import NOTHING, StoredCommit
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor, Commit
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft
from runlane_contracts.problems import Code
from runlane_contracts.streams import MAX_COMMIT_BYTES
from runlane_contracts.subjects import RunAddress

RUN = RunAddress("demo", "r1")
AGENT = Actor(kind="agent", id="a")


def open_run(log: MemoryEventLog) -> RunLog:
    return RunLogs(log, now=utc_now, new_id=new_id).of(RUN)


async def a_leased_run(log: MemoryEventLog) -> RunLog:
    run = open_run(log)
    start = [draft(events.RunCreated(agent="a")), draft(events.RunLeased(lease_epoch=1, worker_id="w"))]
    await run.transact(lambda _: start, lease_epoch=0, actor=AGENT)
    return run


def task(n: int, **kw: str) -> FactDraft:
    return draft(events.TaskCreated(task_id=f"t{n}"), **kw)


async def history(log: MemoryEventLog) -> list[Commit]:
    return [stored.commit async for stored in log.read(RUN)]


async def test_what_queues_while_a_commit_is_in_flight_is_the_next_commit() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)
    got = await asyncio.gather(*(run.append([task(n)], lease_epoch=1, actor=AGENT) for n in range(500)))
    assert [sequence for ((_, sequence),) in got] == list(range(3, 503))
    commits = await history(log)
    assert [f.sequence for c in commits for f in c.facts] == list(range(1, 503))
    assert len(commits) <= 3


async def test_one_refused_transaction_of_a_group_leaves_the_others_alone() -> None:
    run = await a_leased_run(MemoryEventLog())
    results = await asyncio.gather(
        run.append([task(1)], lease_epoch=1, actor=AGENT),
        run.append([task(2)], lease_epoch=7, actor=AGENT),
        run.append([task(3)], lease_epoch=1, actor=AGENT, expected_sequence=3),
        run.append([task(4)], lease_epoch=1, actor=AGENT, expected_sequence=3),
        return_exceptions=True,
    )
    assert [r if isinstance(r, list) else r.code for r in results] == [
        [(results[0][0][0], 3)], Code.LEASE_FENCED, [(results[2][0][0], 4)], Code.SEQUENCE_CONFLICT,
    ]  # fmt: skip
    assert results[3].current_sequence == 4


async def test_a_writer_that_lost_the_race_decides_again() -> None:
    log = MemoryEventLog()
    first, second = await a_leased_run(log), open_run(log)
    await second.load()
    await asyncio.gather(
        *(run.append([task(n)], lease_epoch=1, actor=AGENT) for n, run in enumerate([first, second] * 20))
    )
    facts = [f for c in await history(log) for f in c.facts]
    assert [f.sequence for f in facts] == list(range(1, 43))
    assert len({f.event_id for f in facts}) == 42


async def test_an_owner_that_lost_its_lease_finds_out_at_its_next_commit() -> None:
    log = MemoryEventLog()
    old, other = await a_leased_run(log), open_run(log)
    taken = [draft(events.RunLeaseLost(lease_epoch=1)), draft(events.RunLeased(lease_epoch=2, worker_id="w2"))]
    await other.transact(lambda _: taken, lease_epoch=0, actor=AGENT)
    with pytest.raises(Refused) as refused:
        await old.append([task(1)], lease_epoch=1, actor=AGENT)
    assert refused.value.code == Code.LEASE_FENCED
    await other.append([task(1)], lease_epoch=2, actor=AGENT)


async def test_repeating_event_ids_gives_the_first_answer_also_within_one_group() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)
    batch = [task(1, event_id="e1"), task(2, event_id="e2")]
    got = await asyncio.gather(*(run.append(batch, lease_epoch=1, actor=AGENT) for _ in range(5)))
    assert got == [[("e1", 3), ("e2", 4)]] * 5
    assert await open_run(log).append(batch, lease_epoch=1, actor=AGENT) == got[0]
    with pytest.raises(Refused) as refused:
        await run.append([task(1, event_id="e1"), task(9, event_id="e9")], lease_epoch=1, actor=AGENT)
    assert refused.value.code == Code.IDEMPOTENCY_CONFLICT


async def test_a_lost_answer_is_found_when_the_same_facts_come_again() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)

    async def written_but_unanswered(commit: Commit, *, after: object) -> None:
        await MemoryEventLog.commit(log, commit, after=after)
        log.commit = original
        raise Retryable("the answer was lost")

    original, log.commit = log.commit, written_but_unanswered
    with pytest.raises(Retryable):
        await run.append([task(1, event_id="e1")], lease_epoch=1, actor=AGENT)
    assert await run.append([task(1, event_id="e1")], lease_epoch=1, actor=AGENT) == [("e1", 3)]
    assert await run.append([task(2, event_id="e2")], lease_epoch=1, actor=AGENT) == [("e2", 4)]


async def test_a_fault_of_the_log_reaches_everyone_who_waited_and_nobody_after() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)

    def down(_: Commit) -> None:
        raise Retryable("down")

    log.faults.append(down)
    results = await asyncio.gather(
        *(run.append([task(n)], lease_epoch=1, actor=AGENT) for n in range(3)), return_exceptions=True
    )
    assert all(isinstance(r, Retryable) for r in results)
    assert await run.append([task(9)], lease_epoch=1, actor=AGENT)


async def test_a_run_that_never_lets_us_win_is_an_error_not_a_loop() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)

    def race(_: Commit) -> None:
        raise Conflict("somebody was first")

    log.faults.extend([race] * 60)
    with pytest.raises(Retryable, match="compare-and-sets"):
        await run.append([task(1)], lease_epoch=1, actor=AGENT)


async def test_a_commit_is_bounded_and_one_that_cannot_fit_is_refused() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)
    big = [draft(events.TaskCreated(task_id=f"t{n}", title="x" * 500_000)) for n in range(8)]
    await asyncio.gather(*(run.append([one], lease_epoch=1, actor=AGENT) for one in big))
    sizes = [sum(len(bytes(f.payload)) for f in c.facts) for c in await history(log)]
    assert max(sizes) <= MAX_COMMIT_BYTES
    with pytest.raises(Refused) as refused:
        await run.append(big, lease_epoch=1, actor=AGENT)
    assert refused.value.code == Code.PAYLOAD_TOO_LARGE
    many = [task(n) for n in range(1000)]
    await asyncio.gather(*(run.append(many, lease_epoch=1, actor=AGENT) for _ in range(3)))
    assert max(len(c.facts) for c in await history(log)) <= 1001


async def test_a_question_that_nothing_can_answer_is_refused_by_name() -> None:
    """To see it fail: take `_refuse_unanswerable` out of `append`; then it is asked, and no answer ever fits it."""
    log = MemoryEventLog()
    run = await a_leased_run(log)
    asked = [events.InputRequested(input_id="i", prompt="?", schema=schema) for schema in ({}, {"type": "no such"})]
    with pytest.raises(Refused, match=r"nothing can fit the schema: not a JSON Schema: \$\.type") as caught:
        await run.append([draft(one) for one in asked], lease_epoch=1, actor=AGENT)
    assert (caught.value.code, caught.value.index) == (Code.INVALID_REQUEST, 1)
    assert len(await history(log)) == 1, "all or nothing"
    await run.append([draft(asked[0])], lease_epoch=1, actor=AGENT)


async def test_a_terminal_fact_closes_what_is_open_in_the_same_commit() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)
    await run.append(
        [draft(events.ToolRequested(tool_call_id="c", name="n", arguments={}))], lease_epoch=1, actor=AGENT
    )
    got = await run.append([draft(events.RunCompleted())], lease_epoch=1, actor=AGENT)
    assert [sequence for _, sequence in got] == [5]
    assert [f.type for f in (await history(log))[-1].facts] == ["tool.cancelled", "run.completed"]
    with pytest.raises(Refused) as refused:
        await run.append([task(1)], lease_epoch=1, actor=AGENT)
    assert refused.value.code == Code.RUN_TERMINAL


async def test_a_caller_that_goes_away_tears_nothing() -> None:
    log = MemoryEventLog()
    run = await a_leased_run(log)
    calls = [asyncio.ensure_future(run.append([task(n)], lease_epoch=1, actor=AGENT)) for n in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(d, list) for d in done) == 9
    assert [f.sequence for c in await history(log) for f in c.facts] in (list(range(1, 12)), list(range(1, 13)))


async def test_a_decision_that_raises_is_its_callers_fault_only() -> None:
    run = await a_leased_run(MemoryEventLog())

    def broken(_: RunLifecycle) -> list[FactDraft]:
        raise ZeroDivisionError

    results = await asyncio.gather(
        run.transact(broken, lease_epoch=0, actor=AGENT), run.append([task(1)], lease_epoch=1, actor=AGENT),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(results[0], ZeroDivisionError)
    assert results[1][0][1] == 3


def test_idle_runs_are_forgotten_when_there_are_too_many() -> None:
    logs = RunLogs(MemoryEventLog(), now=utc_now, new_id=new_id, max_runs=3)
    kept = [logs.of(RunAddress("demo", f"r{n}")) for n in range(5)]
    assert len(logs) == 3
    assert logs.of(RunAddress("demo", "r4")) is kept[4]


def test_a_forgotten_run_that_somebody_holds_is_found_again() -> None:
    """Two writers of one run in one process would run into each other's compare-and-sets."""
    logs = RunLogs(MemoryEventLog(), now=utc_now, new_id=new_id, max_runs=1)
    held = logs.of(RUN)
    logs.of(RunAddress("demo", "r2"))
    assert logs.of(RUN) is held


async def test_a_refusal_is_never_decided_on_what_was_known_long_ago() -> None:
    log = MemoryEventLog()
    mine = await a_leased_run(log)
    elsewhere = open_run(log)
    over = [draft(events.RunLeaseLost(lease_epoch=1)), draft(events.RunLeased(lease_epoch=2, worker_id="w2"))]
    await elsewhere.transact(lambda _: over, lease_epoch=0, actor=AGENT)
    await mine.append([task(1)], lease_epoch=2, actor=AGENT)


async def test_there_is_nothing_to_write_is_never_decided_on_what_was_known_long_ago() -> None:
    log = MemoryEventLog()
    mine = await a_leased_run(log)
    elsewhere = open_run(log)
    await elsewhere.append([task(1)], lease_epoch=1, actor=AGENT)

    def close_what_is_open(run: RunLifecycle) -> list[FactDraft]:
        return [draft(events.TaskCompleted(task_id=id_)) for _, id_ in run.open_items]

    written = await mine.transact(close_what_is_open, lease_epoch=1, actor=AGENT)
    assert [fact.type for fact in written.facts] == ["task.completed"]


async def test_a_refusal_that_rests_on_facts_that_were_not_written_is_decided_again() -> None:
    log = MemoryEventLog()
    mine = await a_leased_run(log)
    elsewhere = open_run(log)
    await elsewhere.load()

    def first_of(name: str):
        def decide(run: RunLifecycle) -> list[FactDraft]:
            taken = [id_ for kind, id_ in run.open_items if kind == "task"]
            if taken:
                raise Refused(Code.ALREADY_RESOLVED, taken[0])
            return [draft(events.TaskCreated(task_id=name))]

        return decide

    await elsewhere.transact(first_of("theirs"), lease_epoch=1, actor=AGENT)
    results = await asyncio.gather(
        *(mine.transact(first_of(name), lease_epoch=1, actor=AGENT) for name in ("mine", "also")),
        return_exceptions=True,
    )
    assert [r.detail for r in results if isinstance(r, Refused)] == ["theirs", "theirs"]


class ALogThatIsAway(MemoryEventLog):
    """Answers no read while `away` says why."""

    def __init__(self) -> None:
        super().__init__()
        self.away: Exception | None = None

    def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        return self._unless_away(super().read(run, after=after))

    async def _unless_away(self, commits: AsyncGenerator[StoredCommit, None]) -> AsyncGenerator[StoredCommit, None]:
        if self.away is not None:
            raise self.away
        async for stored in commits:
            yield stored


@pytest.mark.parametrize("away", [Retryable("not connected"), ValueError("a fault of ours")])
async def test_who_is_being_decided_when_the_log_goes_away_is_told(away: Exception) -> None:
    """Without `answer_with_the_others`, or `_fail_if_unread` after a fault, some of them wait for ever."""
    log = ALogThatIsAway()
    run = await a_leased_run(log)
    log.away = away
    nothing = [run.transact(lambda _: [], lease_epoch=0, actor=AGENT) for _ in range(3)]
    async with asyncio.timeout(20):
        told = await asyncio.gather(*nothing, return_exceptions=True)
    assert {type(one) for one in told} == {Retryable}
    assert run.idle
    log.away = None
    assert (await run.append([task(1)], lease_epoch=1, actor=AGENT))[0][1] == 3
