"""P3 and P14 for what agents do to the world: workers are killed and stopped in the middle of it.

Real workers against the whole product; what happened is read from a file that the effects write, not from the log.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from runlane.client import RunActions
from support.crew import Crew, crew
from support.eventually import eventually
from support.product import Product, product

pytestmark = [
    pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module"),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("effects") / "state") as running:
        yield running


@pytest.mark.parametrize("over", ["http", "nats"])
async def test_p3_workers_killed_between_intent_and_outcome_do_nothing_unsafe_twice(
    running: Product, tmp_path: Path, over: str
):
    """Fails without the case `"running" if request.side_effect == "unsafe"` and without `lose_lease`'s unknowns
    (unsafe calls run twice), without `Journal._id_of` (operations get new ids), and without the case "completed".
    """
    chance = random.Random(over)
    async with crew(running, "killed", tmp_path / "book", over=over) as workers:
        book, calls = workers.book, 3
        worker = await workers.hire()
        runs = {
            await workers.start(f"{side_effect}_{n}", side_effect=side_effect, calls=calls, slow_s=0.4): side_effect
            for n in range(8) for side_effect in ("none", "idempotent", "unsafe")
        }  # fmt: skip
        person = asyncio.create_task(says_what_happened(workers, runs))
        try:
            for _ in range(2):
                before = len(book.lines("begins"))
                await eventually(lambda before=before: len(book.lines("begins")) > before + 3, within_s=30)
                await asyncio.sleep(chance.uniform(0.0, 0.4))
                await workers.kill(worker)
                worker = await workers.hire()
            for run_id in runs:
                state = await workers.ended(run_id)
                assert state["run"]["status"] == "completed", state["run"]
                assert len(set(state["run"]["output"])) == calls
        finally:
            person.cancel()
        cut_short = await check(workers, runs)
    assert set(cut_short) == {"none", "idempotent", "unsafe"}, "a kill that hits no call shows nothing"


async def says_what_happened(workers: Crew, runs: dict[str, str]) -> None:
    """A person who reads in the book what became of the calls whose outcome is unknown."""
    while True:
        for run_id in [run_id for run_id, side_effect in runs.items() if side_effect == "unsafe"]:
            for item in (await workers.run(run_id))["items"].values():
                if item["kind"] == "tool" and item["status"] == "outcome_unknown":
                    did = any(line["op"] == item["operation_id"] for line in workers.book.lines("did"))
                    verdict = ("executed", item["operation_id"]) if did else ("not_executed", None)
                    await RunActions(workers.transport, run_id).reconcile_tool(
                        item["id"], verdict[0], "the book says so", result=verdict[1]
                    )
        await asyncio.sleep(0.2)


async def check(workers: Crew, runs: dict[str, str]) -> Counter[str]:
    """Whether what happened is what may happen; how many calls of each kind were cut short."""
    did = Counter(line["op"] for line in workers.book.lines("did"))
    known: set[str] = set()
    cut_short: Counter[str] = Counter()
    for run_id, side_effect in runs.items():
        facts = await workers.facts(run_id)
        asked = {f["payload"]["tool_call_id"]: f["payload"] for f in facts if f["type"] == "tool.requested"}
        operations = {one["operation_id"] for one in asked.values()}
        begun = Counter(
            asked[f["payload"]["tool_call_id"]]["operation_id"] for f in facts if f["type"] == "tool.running"
        )
        unknown = [f for f in facts if f["type"] == "tool.outcome_unknown"]
        assert len(operations) == 3, "the same operations under the same ids in every attempt"
        known |= operations
        for operation in operations:
            assert did[operation] >= 1, (run_id, operation)
            assert did[operation] <= begun[operation], "each execution has its intent in the log"
            if side_effect == "unsafe":
                assert did[operation] == 1, (run_id, operation)
        if side_effect == "unsafe":
            cut_short["unsafe"] += len(unknown)
        else:
            assert unknown == []
            cut_short[side_effect] += sum(times > 1 for times in begun.values())
    assert set(did) <= known, "nothing happened that the log does not know of"
    return +cut_short


async def test_p3_a_worker_that_is_stopped_in_an_effect_and_continued_after_it_was_replaced_does_not_go_on(
    running: Product, tmp_path: Path
):
    """Fails without `working.cancel()` in `Worker._guard`: then the stopped worker's effect happens, too."""
    async with crew(running, "stopped", tmp_path / "book") as workers:
        first = await workers.hire()
        run_id = await workers.start("run", side_effect="unsafe", slow_s=3.0, calls=2)
        await eventually(lambda: workers.book.lines("begins"), within_s=15)
        first.send_signal(signal.SIGSTOP)

        async def is_lost() -> bool:
            return (await workers.run(run_id))["run"]["status"] == "lost"

        await eventually(is_lost, within_s=15)
        await workers.hire()
        person = asyncio.create_task(says_what_happened(workers, {run_id: "unsafe"}))

        async def is_taken() -> bool:
            return (await workers.run(run_id))["run"].get("attempt") == 2

        await eventually(is_taken, within_s=15)
        first.send_signal(signal.SIGCONT)
        state = await workers.ended(run_id)
        person.cancel()
        assert state["run"]["status"] == "completed"
        assert [line["pid"] for line in workers.book.lines("did")].count(first.pid) == 0
        assert set(Counter(line["op"] for line in workers.book.lines("did")).values()) == {1}


async def test_a_call_of_ten_leases_length_runs_once(running: Product, tmp_path: Path):
    """Fails without `LeaseKeeper.keep`: then the lease runs out and another worker begins the call again."""
    async with crew(running, "long", tmp_path / "book", ttl_s=1.5, concurrency=1) as workers:
        await workers.hire()
        await workers.hire()
        run_id = await workers.start("run", slow_s=15.0)
        state = await workers.ended(run_id)
        assert (state["run"]["status"], state["run"].get("attempt", 1)) == ("completed", 1)
        assert len(workers.book.lines("begins")) == len(workers.book.lines("did")) == 1


async def test_a_run_whose_worker_dies_of_it_each_time_fails_after_its_attempts(running: Product, tmp_path: Path):
    """Fails without the `GiveUp` of `recovery.recover`: then it kills one worker after the other, for ever."""
    async with crew(running, "deadly", tmp_path / "book") as workers:
        run_id = await workers.start("run", dies=True, max_attempts=2)
        for _ in range(2):
            worker = await workers.hire()
            assert await asyncio.wait_for(worker.wait(), 20) == 9
        await workers.hire()
        state = await workers.ended(run_id)
        assert state["run"]["error"]["code"] == "attempts_exhausted"
        assert len(workers.book.lines("begins")) == 2
        assert all(item["status"] == "cancelled" for item in state["items"].values() if item["kind"] == "tool")
