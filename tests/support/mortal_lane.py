"""`MemoryLane` whose owners die at a given commit, and whose people answer everything they are asked.

lane = MortalLane(Death(commit=3, written=True))
assert await lane.play(agent) == "completed"
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runlane.client import RunActions, Worker
from runlane.client.transports.ports import NewRun, Written
from runlane.client.worker import Agent
from runlane_contracts import lifecycle, reducer
from runlane_contracts.lifecycle import FactDraft
from support.memory_lane import MemoryLane, refusal

RUN = "run_1"
_OWN = frozenset({"first_sequence", "last_sequence", "started_at", "updated_at", "ended_at", "preview_id"})


@dataclass(frozen=True, slots=True)
class Death:
    """The owner dies at its n-th commit: right after it was written, or right before."""

    commit: int
    written: bool


class MortalLane(MemoryLane):
    """See the module."""

    def __init__(self, *deaths: Death) -> None:
        super().__init__()
        self.deaths = list(deaths)
        self.commits = 0

    async def append(
        self, run_id: str, drafts: Sequence[FactDraft], *, lease_epoch: int, expected_sequence: int | None = None
    ) -> list[Written]:
        death = self.deaths[0] if self.deaths else None
        if death is None or self.commits + 1 != death.commit:
            written = await super().append(run_id, drafts, lease_epoch=lease_epoch, expected_sequence=expected_sequence)
            self.commits += 1
            return written
        self.deaths.pop(0)
        if death.written:
            await super().append(run_id, drafts, lease_epoch=lease_epoch, expected_sequence=expected_sequence)
        self.commits += 1
        await self.kill(run_id)
        raise refusal("lease_fenced")

    async def kill(self, run_id: str = RUN) -> None:
        """The owner is gone without a word; somebody else may take the run."""
        run = self.run(run_id)
        if not run.life.is_terminal:
            await self.write(run, lifecycle.lose_lease(run.life, "expired"))
            self.work["default"].put_nowait(run_id)

    async def play(self, agent: Agent, *, within_s: float = 10.0, **worker: Any) -> str:
        """Run one agent to the end of its run, with people around; the run's status."""
        await self.start_run(NewRun(agent="a", run_id=RUN, idempotency_key="k"))
        one = Worker(self, agent=agent, claim_wait_s=0.05, **worker)
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(one.run())
            people = tasks.create_task(self._people())
            run = self.runs[RUN]
            async with run.changed:
                await run.changed.wait_for(lambda: run.life.is_terminal)
            people.cancel()
            one.stop()
        return run.life.status

    async def _people(self) -> None:
        actions, run = RunActions(self, RUN), self.runs[RUN]
        while True:
            for id_, approval in list(run.life.approvals.items()):
                if approval.resolution is None:
                    await actions.resolve_approval(id_, "approved")
            for id_, asked in list(run.life.inputs.items()):
                if asked.answer is None:
                    await actions.provide_input(id_, f"to {asked.request.prompt}")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05), run.changed:
                    await run.changed.wait()


def folded(lane: MemoryLane) -> dict[str, Any]:
    """What the run comes to, without when and by which attempt."""
    state = reducer.initial_state(lane.tenant_id, RUN)
    for fact in lane.runs[RUN].facts:
        reducer.reduce(state, fact)
    items = {
        key: {name: value for name, value in item.items() if name not in _OWN} for key, item in state["items"].items()
    }
    run = state["run"]
    return {"status": run["status"], "output": run.get("output"), "error": run.get("error"), "items": items}
