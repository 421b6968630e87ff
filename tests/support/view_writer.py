"""Writes the view as the filter does, for those who measure the gateway alone."""

import asyncio
from collections.abc import Sequence

from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE, LOG_POSITION
from support.edge_process import EdgeProcess
from support.runs import Story


def a_story(run_id: str, steps: int) -> Story:
    """A run of so many facts."""
    story = Story("acme", run_id).then(events.RunCreated(agent="bench"), events.RunStarted())
    for index in range(steps - 2):
        story.then(events.TaskCreated(task_id=f"t{index}", title="x" * 60))
    return story


async def put(edge: EdgeProcess, facts: Sequence[Fact]) -> None:
    """One message of the view."""
    first, last = facts[0], facts[-1]
    commit = Commit(
        commit_id=f"c{first.sequence}", tenant_id=first.tenant_id, run_id=first.run_id,
        first_sequence=first.sequence, facts=tuple(facts),
    )  # fmt: skip
    await edge.filter.request(
        edge.layout.subjects.view(first.tenant_id, first.run_id), encode(commit),
        headers={FIRST_SEQUENCE: str(first.sequence), LAST_SEQUENCE: str(last.sequence), LOG_POSITION: "e:1"},
    )  # fmt: skip


async def put_all(edge: EdgeProcess, story: Story, size: int) -> None:
    """All facts, `size` a message."""
    commits = [story.facts[at : at + size] for at in range(0, len(story.facts), size)]
    await put(edge, commits[0])
    for at in range(1, len(commits), 64):  # in order: one connection, one subject
        await asyncio.gather(*(put(edge, facts) for facts in commits[at : at + 64]))


def ms(seconds: Sequence[float], share: float) -> float:
    """The value below which a share of them lies, in ms."""
    return round(sorted(seconds)[min(int(len(seconds) * share), len(seconds) - 1)] * 1e3, 2)
