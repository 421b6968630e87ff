"""P5: resume at any point gives exactly the rest, and says first what it is."""

import asyncio
from pathlib import Path

import pytest

from runlane.client import (
    BackoffPolicy,
    Connection,
    ContractViolation,
    Fact,
    FileCursorStore,
    Hello,
    MemoryCursorStore,
    RequestRefused,
    ResetRequired,
    Resumed,
    RunReader,
    RunState,
    RunTerminal,
    SnapshotFrame,
    SnapshotGiven,
    Unreachable,
)  # fmt: skip
from runlane.client.reader import OVER, Refused
from runlane.client.transports.ports import Frame
from runlane_contracts import events, reducer
from runlane_contracts.resume import Mark, Outcome, ResetReason
from support.memory_lane import MemoryLane, MemoryRun, refusal
from support.runs import a_short_run, a_waiting_run

AT_ONCE = BackoffPolicy(initial_s=0.0, max_s=0.0)


def lane_with(story) -> MemoryLane:
    lane = MemoryLane("acme")
    lane.runs[story.run.run_id] = MemoryRun(story.run, list(story.facts))
    return lane


def sequences(items) -> list[int]:
    return [item.sequence for item in items if isinstance(item, Fact)]


async def test_every_fact_comes_once_and_the_iteration_ends_with_the_run():
    lane = lane_with(a_short_run())
    items = [item async for item in RunReader(lane, "run_1", from_="start")]
    assert isinstance(items[0], Hello)
    assert sequences(items) == list(range(1, 13))


@pytest.mark.parametrize("frames", range(1, 15))
async def test_p5_a_connection_cut_after_any_frame_loses_and_repeats_nothing(frames: int):
    lane = lane_with(a_short_run())
    lane.cut_after.extend([frames] * 20)
    facts = (
        [i async for i in RunReader(lane, "run_1", from_="start", backoff=AT_ONCE) if isinstance(i, Fact)]
        if (frames > 1)
        else await _with_progress(lane)
    )
    assert sequences(facts) == list(range(1, 13))


async def _with_progress(lane: MemoryLane) -> list[Fact]:
    lane.cut_after.clear()
    lane.cut_after.extend([1, 2, 1, 3, 1, 2])
    return [i async for i in RunReader(lane, "run_1", from_="start", backoff=AT_ONCE) if isinstance(i, Fact)]


async def test_p5_cuts_of_every_length_with_a_snapshot_first_give_the_state_of_a_full_replay():
    story = a_short_run()
    full = reducer.initial_state("acme", "run_1")
    for fact in story.facts:
        reducer.reduce(full, fact)
    for frames in range(2, 9):
        lane = MemoryLane("acme")
        run = lane.runs["run_1"] = MemoryRun(a_short_run().run, list(story.facts[:4]))
        run.life.status, run.life.sequence = "running", 4
        lane.cut_after.extend([1, frames] * 30)
        state = RunState("run_1")
        async with RunReader(lane, "run_1", backoff=AT_ONCE) as reader:
            async for item in reader:
                state.apply(item)
                if isinstance(item, SnapshotFrame):
                    run.facts = list(story.facts)
                    run.life.status, run.life.sequence = "completed", 12
        assert state.checksum() == reducer.checksum(full)


async def test_a_lost_connection_is_not_the_end_of_a_run():
    lane = lane_with(a_waiting_run())
    lane.cut_after.append(8)
    seen: list[tuple[Connection, str]] = []
    reader = RunReader(lane, "run_2", from_="start", backoff=AT_ONCE, on_connection=lambda *turn: seen.append(turn))
    async with asyncio.timeout(5):
        async for item in reader:
            if isinstance(item, Hello) and len(lane.watches) == 2:
                break
    assert Connection.RECONNECTING in [connection for connection, _ in seen]
    assert OVER not in [reason for _, reason in seen]
    await reader.aclose()
    assert reader.connection is Connection.IDLE
    assert lane.watches[1].cursor == "c6"


async def test_the_cursor_is_saved_only_after_the_body_has_finished_with_the_item():
    lane, store = lane_with(a_short_run()), MemoryCursorStore()
    reader = RunReader(lane, "run_1", from_="start", store=store)
    saved_in_body = [(i.sequence, store.cursors.get("run_1")) async for i in reader if isinstance(i, Fact)]
    assert saved_in_body == [(1, None)] + [(n, f"c{n - 1}") for n in range(2, 13)]
    assert store.cursors["run_1"] == "c12"


async def test_a_crash_in_the_body_repeats_that_item_and_no_other(tmp_path: Path):
    lane, applied = lane_with(a_short_run()), []
    for crash_at in (1, 5, 12, None):
        store = FileCursorStore(tmp_path)
        reader = RunReader(lane, "run_1", from_="start", store=store)
        async for item in reader:
            if isinstance(item, Fact):
                applied.append(item.sequence)
                if item.sequence == crash_at:
                    break  # as a crash does, without asking for the next
        await reader.aclose()
    assert applied == [1, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11, 12, 12]


async def test_an_item_marked_as_applied_is_not_repeated_after_leaving_the_loop():
    lane, store = lane_with(a_short_run()), MemoryCursorStore()
    async with RunReader(lane, "run_1", from_="start", store=store) as reader:
        async for item in reader:
            if isinstance(item, Fact) and item.sequence == 3:
                await reader.mark_applied()
                break
    assert store.cursors["run_1"] == "c3"


async def test_a_finished_run_read_to_its_end_answers_that_nothing_follows():
    lane = lane_with(a_short_run())
    reader = RunReader(lane, "run_1", cursor="c12")
    assert await reader.connect() == RunTerminal()
    assert [item async for item in reader] == []
    assert reader.connection is Connection.IDLE


async def test_outcomes_have_names():
    lane = lane_with(a_waiting_run())
    assert await RunReader(lane, "run_2").connect() == SnapshotGiven()
    assert await RunReader(lane, "run_2", cursor="c3").connect() == Resumed(3)
    assert isinstance(await RunReader(lane, "run_9").connect(), Refused)
    assert await RunReader(lane_with(a_short_run()), "run_1", cursor="c3").connect() == RunTerminal()


async def test_a_refused_reader_raises_and_does_not_try_again():
    lane = lane_with(a_waiting_run())
    with pytest.raises(RequestRefused) as caught:
        await anext(RunReader(lane, "run_9"))
    assert caught.value.code == "run_not_found"
    assert lane.calls == [("watch", "run_9")]


async def test_an_overloaded_server_is_asked_again():
    lane = lane_with(a_short_run())
    lane.refuse_next.extend(["watch", "watch"])
    items = [item async for item in RunReader(lane, "run_1", from_="start", backoff=AT_ONCE)]
    assert sequences(items) == list(range(1, 13))


async def test_the_retry_budget_ends():
    lane = lane_with(a_waiting_run())
    lane.unreachable = True
    with pytest.raises(Unreachable):
        await anext(RunReader(lane, "run_2", backoff=BackoffPolicy(initial_s=0.01, max_s=0.02, budget_s=0.1)))
    assert len(lane.calls) > 3


class Scripted(MemoryLane):
    """Gives the same frames on each connection."""

    def __init__(self, *connections: list[Frame]) -> None:
        super().__init__()
        self.connections = list(connections)
        self.runs["r"] = MemoryRun(a_waiting_run().run)

    async def _frames(self, request, run, after):
        for frame in self.connections.pop(0) if len(self.connections) > 1 else self.connections[0]:
            yield frame


def hello(outcome: Outcome, base: int, reason: ResetReason | None = None) -> Frame:
    return Frame(
        Hello(
            outcome=outcome, run_id="r", status="running", baseline=Mark(sequence=base, cursor=f"c{base}"),
            high_water=Mark(sequence=9, cursor="c9"), reducer_version=1, heartbeat_s=12, filter={}, reason=reason,
        ),
        None,
    )  # fmt: skip


async def test_p2_a_hole_is_never_passed_on():
    facts = a_short_run().facts
    script = Scripted([hello(Outcome.RESUMED, 0), Frame(facts[0], "c1"), Frame(facts[2], "c3")])
    reader = RunReader(script, "r", from_="start", backoff=AT_ONCE)
    seen: list[object] = []
    with pytest.raises(ContractViolation, match="expected sequence 2, got 3"):
        await _collect(reader, seen)
    assert sequences(seen) == [1]
    assert [watch.cursor for watch in script.watches] == [None, "c1", "c1"]


async def _collect(reader: RunReader, seen: list[object]) -> None:
    while True:
        seen.append(await anext(reader))


async def test_a_server_that_resumes_too_late_is_caught():
    facts = a_short_run().facts
    script = Scripted([hello(Outcome.RESUMED, 0), Frame(facts[0], "c1")], [hello(Outcome.RESUMED, 5)])
    with pytest.raises(ContractViolation, match="applied 1, resumed after 5"):
        _ = [item async for item in RunReader(script, "r", from_="start", backoff=AT_ONCE)]


async def test_a_stream_without_hello_is_refused():
    script = Scripted([Frame(a_short_run().facts[0], "c1")])
    with pytest.raises(ContractViolation, match="before hello"):
        _ = [item async for item in RunReader(script, "r", backoff=AT_ONCE)]


async def test_repeated_facts_are_dropped():
    facts = a_short_run().facts
    frames = [hello(Outcome.RESUMED, 0), *(Frame(f, f"c{f.sequence}") for f in (*facts[:3], *facts[:4]))]
    script = Scripted(frames)
    seen: list[int] = []
    async for item in RunReader(script, "r", from_="start", backoff=AT_ONCE):
        if isinstance(item, Fact):
            seen.append(item.sequence)
            if item.sequence == 4:
                break
    assert seen == [1, 2, 3, 4]


async def test_a_reset_is_named_and_its_snapshot_is_where_it_goes_on():
    facts = a_short_run().facts
    snapshot = SnapshotFrame(
        state=reducer.initial_state("acme", "r") | {"through_sequence": 5}, through_sequence=5, reducer_version=1,
        checksum="sha256:x",
    )  # fmt: skip
    script = Scripted([
        hello(Outcome.RESET_REQUIRED, 5, ResetReason.COMPACTED), Frame(snapshot, "c5"), Frame(facts[5], "c6"),
    ])  # fmt: skip
    reader = RunReader(script, "r", cursor="c2", backoff=AT_ONCE)
    assert await reader.connect() == ResetRequired(ResetReason.COMPACTED)
    items = [await anext(reader) for _ in range(3)]
    await reader.aclose()
    assert sequences(items) == [6]


async def test_a_filtered_reader_accepts_the_holes_it_asked_for():
    lane = lane_with(a_short_run())
    kept = ("run.created", "tool.completed", "run.completed")
    items = [item async for item in RunReader(lane, "run_1", from_="start", types=kept)]
    assert [item.type for item in items if isinstance(item, Fact)] == list(kept)


async def test_leaving_changes_nothing_and_the_run_goes_on():
    lane = lane_with(a_waiting_run())
    for _ in range(3):
        async with RunReader(lane, "run_2") as reader:
            assert isinstance(await anext(reader), Hello)
    assert lane.runs["run_2"].life.status == "waiting"
    assert {verb for verb, _ in lane.calls} == {"watch"}


async def test_live_facts_follow_history_on_one_connection():
    lane = lane_with(a_waiting_run())
    async with asyncio.timeout(5), RunReader(lane, "run_2", from_="start") as reader:
        seen: list[int] = []
        async for item in reader:
            if isinstance(item, Fact):
                seen.append(item.sequence)
            elif reader.is_live and len(seen) == 6:
                await lane.state("run_2", events.RunResumed(), events.RunCompleted())
    assert seen == list(range(1, 9))
    assert len(lane.watches) == 1


def test_a_refusal_is_not_a_lost_connection():
    assert not refusal("forbidden", status=403).retryable
