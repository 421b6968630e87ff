"""Whoever archives or erases a run is killed between its steps, on a real product: nothing is lost, the next one ends.

Every step is killed in `unit/retention/test_compactor.py`; here those around the fact and the purge, with a broker.
Purge before the fact is written, or write it before the archive is whole, and a killed one leaves a run without facts.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.children import ENVIRONMENT
from support.product import Product, Wire, fact, product

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("killed") / "state") as started:
        yield started


async def a_finished_run(wire: Wire) -> tuple[str, list[dict[str, Any]]]:
    run_id = await wire.start_run(input={"text": "hello"})
    epoch = await wire.lease(run_id)
    await wire.append(run_id, epoch, fact("run.started"))
    await wire.append(run_id, epoch, fact("message.completed", message_id="m1", role="assistant", content="hello"))
    await wire.append(run_id, epoch, fact("run.completed", output="bye"))
    return run_id, await wire.facts(run_id)


async def killed_at(running: Product, run_id: str, step: int, when: str, *more: str) -> bool:
    """Whether it died at that step."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.mortal_retention", str(running.state_dir), "demo", run_id, str(step), when,
        *more, env=ENVIRONMENT,
    )  # fmt: skip
    code = await asyncio.wait_for(process.wait(), 60)
    assert code in {0, -signal.SIGKILL}
    return code != 0


STEPS = {"manifest": 4, "fact": 5, "log": 6, "view": 7}
"""Of an archiving: two parts and the state come first."""


@pytest.mark.parametrize(
    ("verb", "step", "when"),
    [
        ("compact", "manifest", "after"), ("compact", "fact", "after"), ("compact", "log", "after"),
        ("compact", "view", "before"), ("erase", "fact", "after"), ("erase", "view", "before"),
    ],
)  # fmt: skip
async def test_killed_at_a_step_nothing_is_lost_and_the_next_one_finishes(
    running: Product, verb: str, step: str, when: str
) -> None:
    more = ("erase",) if verb == "erase" else ()
    async with running.client() as wire:
        run_id, before = await a_finished_run(wire)
        assert await killed_at(running, run_id, STEPS[step], when, *more)
        now = await wire.facts(run_id)
        assert [(one["sequence"], one["type"]) for one in now][: len(before)] == [
            (one["sequence"], one["type"]) for one in before
        ]
        assert (await wire.view(run_id))["status"] == "completed"
        arguments = ("--reason", "r") if verb == "erase" else ()
        await running.cli(verb, run_id, *arguments)
        after = await wire.facts(run_id)
        assert [one["sequence"] for one in after] == list(range(1, len(before) + 2))
        assert after[-1]["type"] == "log.compacted"
        if verb == "compact":
            assert after[: len(before)] == before
        else:
            assert all(one["payload"] == {} for one in after[: len(before)])
