"""P5 · Resume at any point gives exactly the rest, and says first what it is."""

import asyncio
import random
from collections.abc import Callable, Iterator

from hypothesis import Phase, given, settings, strategies as st

from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.watcher import WatchLimits
from runlane.kernel.errors import Retryable
from runlane_contracts import events
from runlane_contracts.envelope import Fact
from runlane_contracts.subjects import RunAddress
from support.edge import Watching, edge
from support.runs import Story

RUN = RunAddress("acme", "run_1")


def a_run(length: int) -> Story:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    for index in range(length):
        story.then(events.TaskCreated(task_id=f"t{index}", title="x" * (index % 7 * 20)))
    return story.then(events.RunCompleted())


def split(facts: list[Fact], sizes: list[int]) -> Iterator[list[Fact]]:
    at = 0
    for size in sizes:
        if at < len(facts):
            yield facts[at : at + size]
            at += size
    if at < len(facts):
        yield facts[at:]


def sometimes(share: float) -> Callable[[str], None]:
    """A share of all reads fails, as when the broker does not answer."""
    chance = random.Random(7)

    def trouble(_read: str) -> None:
        if chance.random() < share:
            raise Retryable("no answer", retry_after_s=0.001)

    return trouble


def cursor_of(watching: Watching) -> str | None:
    ids = [frame.id for frame in watching.frames if frame.id is not None]
    return ids[-1] if ids else None


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    length=st.integers(0, 25),
    sizes=st.lists(st.integers(1, 6), max_size=20),
    written_before=st.integers(0, 8),
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    ring_bytes=st.sampled_from([1, 700, 3000, 1_000_000]),
    page_bytes=st.sampled_from([1, 900, 100_000]),
    lost=st.sets(st.integers(1, 12)),
    rebuilt=st.booleans(),
    types=st.sampled_from([None, "task.*", "run.*,task.created"]),
    trouble=st.sampled_from([0, 0.1, 0.2]),
)
def test_the_union_of_all_visits_is_the_log(  # noqa: PLR0917
    length, sizes, written_before, cuts, ring_bytes, page_bytes, lost, rebuilt, types, trouble
) -> None:
    story = a_run(length)
    batches = list(split(story.facts, sizes))
    view = MemoryView(deliver_live=lambda commit: commit.stream_seq not in lost)
    if trouble:
        view.trouble = sometimes(trouble)
    asyncio.run(_visit(view, batches, written_before, cuts, ring_bytes, page_bytes, rebuilt, types, story))


async def _visit(  # noqa: PLR0917
    view, batches, written_before, cuts, ring_bytes, page_bytes, rebuilt, types, story
) -> None:
    hub_limits = HubLimits(ring_bytes=ring_bytes, page_bytes=page_bytes, sweep_s=0.01, linger_s=0.005, burst_bytes=500)
    limits = WatchLimits(page_bytes=page_bytes, burst_bytes=500, goodbye_s=1.0, stale_retry_s=0.001)
    waiting = list(batches)
    for batch in waiting[: max(written_before, 1)]:
        view.store(RUN, batch)
    waiting = waiting[max(written_before, 1) :]
    wanted = [
        fact.sequence for fact in story.facts
        if types is None or fact.type.startswith("task.") or (types.startswith("run") and fact.type.startswith("run."))
    ]  # fmt: skip
    filter_ = {} if types is None else {"types": types}
    got: list[int] = []
    cursor: str | None = None
    async with edge(view, hub_limits=hub_limits, watch_limits=limits) as gateway:
        writing = gateway.tasks.create_task(_write(view, waiting))
        for visit in range(400):
            start = {} if cursor else {"from_": "start"}
            leave_after = cuts[visit % len(cuts)] if visit < 200 else None
            watching = gateway.watch(RUN, last_event_id=cursor, leave_after=leave_after, **start, **filter_)
            await watching.over()
            if rebuilt and visit == 3:
                view.rebuild("e2")
            if watching.refused:
                continue
            if watching.status == 204:
                break
            assert watching.frames[0].event == "hello"
            assert watching.frames[0].data["outcome"] in {"resumed", "run_terminal"}
            assert watching.frames[0].data["baseline"]["sequence"] == (got[-1] if got else 0)
            got += watching.sequences
            cursor = cursor_of(watching) or cursor
            if watching.of("end"):
                break
        await writing
    assert got == wanted


async def _write(view: MemoryView, batches: list[list[Fact]]) -> None:
    for batch in batches:
        await asyncio.sleep(0.0005)
        view.store(RUN, batch)
