"""What a watcher is told, over the view in memory."""

import asyncio

import msgspec

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.run_state import StateAt
from runlane.edge_gateway.type_filter import type_filter
from runlane.edge_gateway.watcher import WatchLimits
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.problems import Code
from runlane_contracts.reducer import checksum, initial_state, reduce
from runlane_contracts.subjects import RunAddress
from support.edge import KEYS, QUICK, edge
from support.eventually import eventually
from support.runs import Story

RUN = RunAddress("acme", "run_1")


def a_story(steps: int = 3) -> Story:
    story = Story().then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted())
    for index in range(steps):
        story.then(events.TaskCreated(task_id=f"t{index}", title="x" * 50), events.TaskCompleted(task_id=f"t{index}"))
    return story


def stored(story: Story, size: int = 2, view: MemoryView | None = None) -> MemoryView:
    view = view or MemoryView()
    for commit in story.commits(size):
        view.store(RUN, commit.facts)
    return view


def frames_of(*types: str) -> FactFrames:
    return FactFrames(KEYS, RUN, type_filter(",".join(types)))


async def test_hello_is_first_and_the_live_facts_follow_the_history() -> None:
    story = a_story()
    view = stored(story)
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("synced")
        assert watching.frames[0].event == "hello"
        assert watching.frames[0].data["outcome"] == "resumed"
        assert watching.frames[0].data["status"] == "running"
        assert watching.frames[0].data["high_water"]["sequence"] == len(story.facts)
        assert watching.headers["content-type"].startswith("text/event-stream")
        story.then(events.TurnStarted(turn_id="t9"))
        view.store(RUN, story.facts[-1:])
        await watching.facts(len(story.facts))
        assert watching.sequences == list(range(1, len(story.facts) + 1))
        story.then(events.RunCompleted())
        view.store(RUN, story.facts[-1:])
        await watching.over()
        assert watching.complete
        assert watching.frames[-1].event == "end"
        assert watching.frames[-1].data["reason"] == "run_terminal"
        assert KEYS.open(watching.frames[-1].data["cursor"], frames_of()._scope).sequence == len(story.facts)
        assert [(frame.event in {"fact", "snapshot"}) == (frame.id is not None) for frame in watching.frames]


async def test_without_a_cursor_the_state_comes_first_and_is_the_fold_of_the_log() -> None:
    story = a_story()
    view = stored(story)
    async with edge(view) as gateway:
        watching = gateway.watch(RUN)
        await watching.until("synced")
        hello, snapshot = watching.frames[:2]
        state = initial_state(*RUN)
        for fact in story.facts:
            reduce(state, fact)
        assert hello.data["outcome"] == "snapshot"
        assert hello.data["baseline"]["sequence"] == len(story.facts)
        assert snapshot.data["state"] == state
        assert snapshot.data["checksum"] == checksum(state)
        assert snapshot.data["cursor"] == snapshot.id == hello.data["baseline"]["cursor"]
        assert watching.sequences == []


async def test_a_finished_run_is_told_to_its_end_and_then_never_again() -> None:
    story = a_story().then(events.RunCompleted())
    async with edge(stored(story)) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.over()
        assert watching.frames[0].data["outcome"] == "run_terminal"
        assert watching.sequences == list(range(1, len(story.facts) + 1))
        assert watching.frames[-1].data["reason"] == "run_terminal"
        again = gateway.watch(RUN, last_event_id=str(watching.of("fact")[-1].id))
        await again.over()
        assert (again.status, again.frames) == (204, [])


async def test_a_filtered_reader_that_has_all_of_a_finished_run_is_told_to_stop() -> None:
    story = a_story().then(events.RunCompleted())
    async with edge(stored(story)) as gateway:
        first = gateway.watch(RUN, from_="start", types="task.*")
        await first.over()
        assert {frame.data["type"] for frame in first.of("fact")} == {"task.created", "task.completed"}
        assert first.frames[-1].data["reason"] == "run_terminal"
        end = KEYS.open(first.frames[-1].data["cursor"], frames_of("task.*")._scope)
        assert end.sequence == len(story.facts)
        for cursor in (first.of("fact")[-1].id, first.frames[-1].data["cursor"]):
            again = gateway.watch(RUN, last_event_id=cursor, types="task.*")
            await again.over()
            assert again.status == 204


async def test_who_asks_for_the_last_facts_of_a_finished_run_is_answered_also_if_none_passes_its_filter() -> None:
    async with edge(stored(a_story().then(events.RunCompleted()))) as gateway:
        watching = gateway.watch(RUN, last="2", types="tool.*")
        await watching.over()
        assert (watching.status, watching.frames[0].data["outcome"]) == (200, "run_terminal")
        assert [frame.event for frame in watching.frames] == ["hello", "synced", "end"]


async def test_a_reader_that_got_no_id_is_told_to_wait_long_before_it_asks_again() -> None:
    async with edge(stored(a_story().then(events.RunCompleted()))) as gateway:
        watching = gateway.watch(RUN, from_="start", types="artifact.*")
        await watching.over()
        assert watching.sequences == []
        assert watching.parser.retries[-1] >= 60_000


async def test_the_terminal_fact_ends_a_stream_that_filters_it_out() -> None:
    story = a_story(1)
    view = stored(story)
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, from_="start", types="task.created")
        await watching.until("synced")
        story.then(events.RunCompleted())
        view.store(RUN, story.facts[-1:])
        await watching.over()
        assert len(watching.sequences) == 1
        assert watching.frames[-1].data["reason"] == "run_terminal"


async def test_a_cursor_of_another_filter_is_foreign() -> None:
    async with edge(stored(a_story())) as gateway:
        watching = gateway.watch(RUN, from_="start", types="task.*")
        await watching.until("synced")
        for params in ({}, {"types": "task.created"}):
            other = gateway.watch(RUN, last_event_id=watching.of("fact")[0].id, **params)
            await other.over()
            assert other.problem is not None
            assert other.problem.code is Code.CURSOR_FOREIGN


async def test_last_event_id_wins_over_the_cursor_and_over_from() -> None:
    async with edge(stored(a_story())) as gateway:
        cursors = [frames_of().cursor(Position("e1", 0, sequence)) for sequence in range(8)]
        watching = gateway.watch(RUN, last_event_id=cursors[5], cursor=cursors[2], from_="snapshot")
        await watching.until("synced")
        assert watching.frames[0].data["outcome"] == "resumed"
        assert watching.sequences[0] == 6


async def test_a_cursor_that_names_no_stream_is_continued_by_its_sequence() -> None:
    story = a_story(40)
    async with edge(stored(story)) as gateway:
        watching = gateway.watch(RUN, cursor=frames_of().cursor(Position("", 0, 3)))
        await watching.until("synced")
        assert watching.frames[0].data["outcome"] == "resumed"
        assert watching.sequences == list(range(4, len(story.facts) + 1))


async def test_a_rebuilt_view_that_still_holds_the_run_continues_exactly() -> None:
    story = a_story(30)
    view = stored(story)
    async with edge(view, hub_limits=HubLimits(linger_s=0.0)) as gateway:
        watching = gateway.watch(RUN, from_="start", leave_after=20)
        await watching.over()
        view.rebuild("e2")
        again = gateway.watch(RUN, last_event_id=watching.of("fact")[-1].id)
        await again.until("synced")
        assert again.frames[0].data["outcome"] == "resumed"
        assert watching.sequences + again.sequences == list(range(1, len(story.facts) + 1))


async def test_a_cursor_ahead_of_a_view_that_catches_up_is_continued() -> None:
    story = a_story(2)
    view = stored(story)
    story.then(events.TurnStarted(turn_id="t1"), events.TurnCompleted(turn_id="t1"))
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, cursor=frames_of().cursor(Position("", 0, len(story.facts) - 1)))
        await asyncio.sleep(0.05)
        assert watching.frames == []
        view.store(RUN, story.facts[-2:])
        await watching.until("synced")
        assert watching.frames[0].data["outcome"] == "resumed"
        assert watching.sequences == [len(story.facts)]


async def test_a_cursor_that_stays_ahead_of_the_view_is_reset_by_name() -> None:
    async with edge(stored(a_story())) as gateway:
        watching = gateway.watch(RUN, cursor=frames_of().cursor(Position("e1", 0, 999)))
        await watching.until("synced")
        assert watching.frames[0].data["outcome"] == "reset_required"
        assert watching.frames[0].data["reason"] == "ahead_of_stream"
        assert watching.frames[1].event == "snapshot"
        assert gateway.meters.resets == 1


async def test_a_lost_live_message_is_read_again_when_the_next_one_shows_the_gap() -> None:
    story = a_story(1)
    view = stored(story)
    async with edge(view, hub_limits=HubLimits(sweep_s=60)) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("synced")
        view.deliver_live = lambda commit: commit.last_sequence % 3 == 0
        for index in range(6):
            story.then(events.TurnStarted(turn_id=f"t{index}"))
            view.store(RUN, story.facts[-1:])
        last = max(fact.sequence for fact in story.facts if fact.sequence % 3 == 0)
        await eventually(lambda: watching.sequences[-1] >= last)
        assert watching.sequences == list(range(1, watching.sequences[-1] + 1))
        assert gateway.meters.repairs >= 1


async def test_a_lost_last_message_is_found_by_the_sweep() -> None:
    story = a_story(1)
    view = stored(story)
    view.deliver_live = lambda _commit: False
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("synced")
        story.then(events.TurnStarted(turn_id="t1"))
        view.store(RUN, story.facts[-1:])
        await watching.facts(len(story.facts))
        assert gateway.meters.swept == 1


async def test_a_repeated_live_message_is_told_once() -> None:
    story = a_story(1)
    view = stored(story)
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("synced")
        story.then(events.TurnStarted(turn_id="t1"))
        again = view.store(RUN, story.facts[-1:])
        view.tell(RUN, again)
        story.then(events.TurnStarted(turn_id="t2"))
        view.store(RUN, story.facts[-1:])
        await watching.facts(len(story.facts))
        assert watching.sequences == list(range(1, len(story.facts) + 1))


class KeptState:
    """A read store that has folded a story."""

    def __init__(self, story: Story) -> None:
        self._story = story

    async def load(self, run: RunAddress) -> StateAt:
        state = initial_state(*run)
        for fact in self._story.facts:
            reduce(state, fact)
        return StateAt(state, Position("e1", len(self._story.facts), len(self._story.facts)))

    async def load_run(self, run: RunAddress) -> StateAt:
        return await self.load(run)


async def test_a_hole_is_never_skipped_and_named_when_the_reader_comes_back() -> None:
    story = a_story(20)
    view = stored(story, size=1)
    limits = WatchLimits(page_bytes=1500, burst_bytes=1, patience_s=9.0, goodbye_s=0.2)
    async with edge(view, hub_limits=HubLimits(ring_bytes=1), watch_limits=limits, folded=KeptState(story)) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.facts(1)
        watching.hold()
        view.cut(RUN, first_sequence=20)
        watching.flow()
        await watching.over()
        assert watching.sequences == list(range(1, 20))
        assert not watching.complete
        assert not watching.of("end")
        assert gateway.meters.holes == 1
        again = gateway.watch(RUN, last_event_id=watching.of("fact")[-1].id)
        await again.until("synced")
        assert again.frames[0].data["outcome"] == "reset_required"
        assert again.frames[0].data["reason"] == "hole"
        assert again.frames[1].data["through_sequence"] == len(story.facts)


async def test_a_cursor_into_what_was_archived_is_reset_though_it_is_still_in_memory() -> None:
    """Every gateway answers alike, whichever run it was just asked for. Take `forget` out of the hub to see it fail."""
    story = a_story().then(events.RunCompleted())
    view = stored(story, size=1)
    last = len(story.facts)
    async with edge(view, hub_limits=HubLimits(linger_s=60.0), folded=KeptState(story)) as gateway:
        before = gateway.watch(RUN, from_="start")
        await before.until("end")
        story.then(
            events.LogCompacted(
                from_sequence=1, to_sequence=last, snapshot_ref="s", sha256="0" * 64, policy="p", reason="retention",
                status="completed",
            )
        )  # fmt: skip
        story.facts[-1] = msgspec.structs.replace(story.facts[-1], lease_epoch=0)
        view.store(RUN, story.facts[-1:])
        for sequence in range(1, last + 1):
            view.cut(RUN, first_sequence=sequence)
        again = gateway.watch(RUN, last_event_id=before.of("fact")[2].id)
        await again.until("end")
        assert (again.frames[0].data["outcome"], again.frames[0].data["reason"]) == ("reset_required", "compacted")
        assert again.frames[1].data["through_sequence"] == last + 1


async def test_a_hole_without_a_snapshot_is_an_error_before_the_stream_opens() -> None:
    story = a_story(20).then(events.RunCompleted())
    view = stored(story, size=1)
    view.cut(RUN, first_sequence=5)
    async with edge(view, hub_limits=HubLimits(ring_bytes=1)) as gateway:
        watching = gateway.watch(RUN, cursor=frames_of().cursor(Position("e1", 4, 4)))
        await watching.over()
        assert watching.problem is not None
        assert watching.problem.code is Code.CURSOR_EXPIRED
        after = gateway.watch(RUN, cursor=frames_of().cursor(Position("e1", 10, 10)))
        await after.over()
        assert after.frames[0].data["outcome"] == "run_terminal"
        assert after.sequences == list(range(11, len(story.facts) + 1))


async def test_an_idle_stream_beats_and_a_disconnect_frees_the_watcher() -> None:
    limits = WatchLimits(heartbeat_s=0.1, goodbye_s=0.5)
    async with edge(stored(a_story()), watch_limits=limits, tick_s=0.02) as gateway:
        watching = gateway.watch(RUN)
        await eventually(lambda: watching.parser.comments >= 3)
        assert gateway.meters.watchers == 1
        watching.leave()
        await watching.over()
        assert gateway.meters.watchers == 0


async def test_a_client_that_does_not_read_is_closed() -> None:
    limits = WatchLimits(stall_s=0.1, goodbye_s=0.1)
    async with edge(stored(a_story()), watch_limits=limits) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("hello")
        watching.hold()
        story = a_story().then(events.TurnStarted(turn_id="t1"))
        gateway.view.store(RUN, story.facts[-1:])
        await watching.over()
        assert gateway.meters.slow_readers == 1
        assert not watching.complete


async def test_a_gateway_that_stops_says_so_with_a_cursor_and_when_to_come_back() -> None:
    story = a_story()
    async with edge(stored(story)) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("synced")
        await gateway.crowd.shut_down()
        await watching.over()
        end = watching.frames[-1]
        assert end.data["reason"] == "shutdown"
        assert end.data["retry_after_ms"] > 0
        assert KEYS.open(end.data["cursor"], frames_of()._scope).sequence == len(story.facts)
        late = gateway.watch(RUN)
        await late.over()
        assert late.problem is not None
        assert late.problem.code is Code.OVERLOADED


async def test_a_watch_has_a_lifetime() -> None:
    limits = WatchLimits(lifetime_s=0.1, goodbye_s=0.5)
    async with edge(stored(a_story()), watch_limits=limits, tick_s=0.02) as gateway:
        watching = gateway.watch(RUN)
        await watching.over()
        assert watching.frames[-1].data["reason"] == "lifetime"


async def test_a_run_that_is_left_by_all_is_not_listened_to_any_more() -> None:
    view = stored(a_story())
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, previews="true")
        await watching.until("synced")
        assert view.subscribers(RUN) == 2
        watching.leave()
        await watching.over()
        await eventually(lambda: view.subscribers(RUN) == 0 and gateway.meters.hubs == 0)


async def test_quiet_parameters_that_make_no_sense_are_refused() -> None:
    async with edge(stored(a_story())) as gateway:
        for params in ({"from_": "end"}, {"previews": "yes"}, {"types": "a b"}, {"types": "run."}):
            watching = gateway.watch(RUN, **params)
            await watching.over()
            assert watching.problem is not None
            assert watching.problem.code is Code.INVALID_REQUEST


async def test_the_page_of_a_client_that_stops_reading_is_read_again_later() -> None:
    story = a_story(200)
    limits = WatchLimits(page_bytes=20_000, burst_bytes=2000, patience_s=0.01, goodbye_s=QUICK.goodbye_s)
    async with edge(stored(story), watch_limits=limits, hub_limits=HubLimits(ring_bytes=1)) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await watching.until("synced")
        assert watching.sequences == list(range(1, len(story.facts) + 1))


async def test_credentials_that_end_end_the_watch() -> None:
    async with edge(stored(a_story())) as gateway:
        watching = gateway.watch(RUN)
        await watching.until("synced")
        gateway.allowed = False
        await watching.over()
        assert watching.frames[-1].data["reason"] == "unauthorized"


async def test_a_run_that_the_view_has_not_derived_yet_is_waited_for() -> None:
    view = MemoryView()
    view.fall_behind()
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, from_="start")
        await asyncio.sleep(0.05)
        assert watching.problem is None
        stored(a_story(), view=view)
        view.catch_up()
        await watching.until("synced")
        assert watching.sequences


async def test_no_such_run_is_said_only_when_the_view_has_derived_everything() -> None:
    view = MemoryView()
    async with edge(view) as gateway:
        absent = gateway.watch(RUN)
        await absent.over()
        assert absent.problem is not None
        assert absent.problem.code is Code.RUN_NOT_FOUND
        view.fall_behind()
        unknown = gateway.watch(RUN)
        await unknown.over()
        assert unknown.problem is not None
        assert unknown.problem.code is Code.NOT_YET_VISIBLE


async def test_a_watch_waits_for_the_sequence_it_is_asked_to_see() -> None:
    story = a_story(1)
    view = stored(story)
    async with edge(view) as gateway:
        watching = gateway.watch(RUN, min_sequence=str(len(story.facts) + 1))
        await asyncio.sleep(0.05)
        assert watching.frames == []
        story.then(events.TurnStarted(turn_id="t1"))
        view.store(RUN, story.facts[-1:])
        await watching.until("synced")
        assert watching.frames[0].data["baseline"]["sequence"] == len(story.facts)
        never = gateway.watch(RUN, min_sequence="999")
        await never.over()
        assert never.problem is not None
        assert never.problem.code is Code.NOT_YET_VISIBLE
