"""P1 in the small: whatever the log does to its writers, what was acknowledged is there once, in order.

Several writers in several places, on a log that at random refuses, conflicts, loses answers for good or settles
them. Thousands of interleavings, in memory.
"""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from runlane.kernel.errors import Conflict, Overloaded, Retryable
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft
from runlane_contracts.problems import Code
from support.builders import AGENT, SYSTEM, a_run, created, leased, numbered, said, ticking

RUN = a_run()


class TroubledLog(MemoryEventLog):
    """Harms every commit with some probability, and lets others run in between."""

    def __init__(self, random: Random, trouble: float) -> None:
        super().__init__(now=ticking())
        self._random = random
        self._trouble = trouble

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        for _ in range(self._random.randint(0, 3)):
            await asyncio.sleep(0)
        if self._random.random() < self._trouble:
            match self._random.randrange(4):
                case 0:
                    self.faults.append(_raise(Conflict("somebody else wrote")))
                case 1:
                    self.faults.append(_raise(Overloaded("full")))
                case 2:
                    self.lost_answers = 1
                case _:
                    self.settled_answers = 1
        return await super().commit(commit, after=after)


def _raise(exc: Exception):
    def fault(_: Commit) -> None:
        raise exc

    return fault


async def until_answered(run_log: RunLog, drafts: list[FactDraft]) -> list[tuple[str, int]]:
    while True:
        try:
            return await run_log.append(drafts, lease_epoch=1, actor=AGENT)
        except Retryable:
            await asyncio.sleep(0)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), places=st.integers(1, 3), writers=st.integers(1, 5), trouble=st.floats(0, 0.6))
def test_p1_what_was_acknowledged_is_in_the_log_once_in_order(
    seed: int, places: int, writers: int, trouble: float
) -> None:
    """Take `_stale = True` out of `_commit`, or the repeat check out of `admit`, and ids are in the log twice."""

    async def story() -> None:
        random = Random(seed)
        log = TroubledLog(random, 0.0)
        logs = [RunLogs(log, now=ticking(), new_id=numbered()) for _ in range(places)]
        await logs[0].of(RUN).transact(lambda _: [created(), leased()], lease_epoch=0, actor=SYSTEM)
        log._trouble = trouble
        acked: dict[str, int] = {}
        stated: dict[str, list[str]] = {}

        async def write(run_log: RunLog, writer: str) -> None:
            stated[writer] = []
            for number in range(random.randint(1, 6)):
                ids = [f"{writer}_{number}_{part}" for part in range(random.randint(1, 3))]
                stated[writer] += ids
                acked.update(await until_answered(run_log, [said(one, event_id=one) for one in ids]))

        async with asyncio.TaskGroup() as tasks:
            for place, some in enumerate(logs):
                for writer in range(writers):
                    tasks.create_task(write(some.of(RUN), f"w{place}_{writer}"))

        facts = [fact async for stored in log.read(RUN) for fact in stored.commit.facts]
        ids = [fact.event_id for fact in facts]
        assert [fact.sequence for fact in facts] == list(range(1, len(facts) + 1))
        assert len(ids) == len(set(ids))
        assert {
            one: sequence for one, sequence in zip(ids, range(1, len(ids) + 1), strict=True) if one in acked
        } == acked
        for in_order in stated.values():
            assert [one for one in ids if one in in_order] == in_order

    asyncio.run(story())


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), rivals=st.integers(2, 6), trouble=st.floats(0, 0.6))
def test_p1_of_rivals_for_one_decision_exactly_one_wins_and_all_learn_it(  # noqa: C901 - one story
    seed: int, rivals: int, trouble: float
) -> None:
    """Answer a refusal before the facts it rests on are written (`answer_without_writing`), and one learns of a
    winner that never was."""

    async def story() -> None:
        random = Random(seed)
        log = TroubledLog(random, 0.0)
        places = [RunLogs(log, now=ticking(), new_id=numbered()) for _ in range(2)]
        for some in places:
            await some.of(RUN).load()
        await places[0].of(RUN).transact(lambda _: [created(), leased()], lease_epoch=0, actor=SYSTEM)
        log._trouble = trouble

        def claim(name: str):
            def decide(run: RunLifecycle) -> list[FactDraft]:
                taken = [id_ for kind, id_ in run.open_items if kind == "task"]
                if taken and taken != [name]:
                    raise Refused(Code.ALREADY_RESOLVED, taken[0])
                return [] if taken else [draft(events.TaskCreated(task_id=name))]

            return decide

        async def rival(name: str, run_log: RunLog) -> str:
            while True:
                try:
                    await run_log.transact(claim(name), lease_epoch=1, actor=AGENT)
                except Refused as refused:
                    return refused.detail
                except Retryable:
                    await asyncio.sleep(0)
                else:
                    return name

        names = [f"task_{n}" for n in range(rivals)]
        outcomes = await asyncio.gather(*(rival(name, places[n % 2].of(RUN)) for n, name in enumerate(names)))
        assert len(set(outcomes)) == 1
        facts = [fact.type async for stored in log.read(RUN) for fact in stored.commit.facts]
        assert facts.count("task.created") == 1

    asyncio.run(story())


def test_a_written_position_points_behind_its_own_facts() -> None:
    async def story() -> None:
        log = MemoryEventLog()
        run_log = RunLogs(log, now=ticking(), new_id=numbered()).of(RUN)
        await run_log.transact(lambda _: [created(), leased()], lease_epoch=0, actor=SYSTEM)
        written = await asyncio.gather(
            *(run_log.transact(lambda _, n=n: [said(f"{n}")], lease_epoch=1, actor=AGENT) for n in range(5))
        )
        assert [one.lifecycle_sequence for one in written] == [3, 4, 5, 6, 7]
        for one in written:
            assert one.position.sequence == one.lifecycle_sequence == one.facts[-1].sequence
            rest = [f async for s in log.read(RUN, after=one.position) for f in s.commit.facts]
            assert [f.sequence for f in rest if f.sequence > one.position.sequence] == list(
                range(one.position.sequence + 1, 8)
            )

    asyncio.run(story())


@pytest.mark.parametrize("lost", [True, False])
async def test_a_stream_made_anew_is_begun_anew(lost: bool) -> None:
    log = MemoryEventLog()
    run_log = RunLogs(log, now=ticking(), new_id=numbered()).of(RUN)
    begin = [created(), leased()]
    await run_log.transact(lambda run: [] if run.exists else begin, lease_epoch=0, actor=SYSTEM)
    log.recreate()
    if lost:
        assert not (await run_log.load()).exists
    written = await run_log.transact(lambda run: [] if run.exists else begin, lease_epoch=0, actor=SYSTEM)
    assert [fact.sequence for fact in written.facts] == [1, 2]
    assert written.position.epoch == log.epoch
