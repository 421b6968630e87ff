"""P5 · Resume at any point gives exactly the rest: the connection breaks after every single frame of a run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runlane_contracts import events
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.envelope import Fact
from support.edge import Frame
from support.edge_server import EdgeServer, edge_server
from support.runs import Story

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def a_run() -> Story:
    """What a small agent does, some forty facts of it."""
    story = Story().then(events.RunCreated(agent="a", input={"text": "h\u00e9llo\n"}), events.RunStarted())
    for index in range(6):
        call = f"c{index}"
        story.then(
            events.TurnStarted(turn_id=f"t{index}"),
            events.ToolRequested(tool_call_id=call, name="look", arguments={"n": index}, action_digest="d"),
            events.ToolRunning(tool_call_id=call),
            events.ToolCompleted(tool_call_id=call, result={"text": "x" * index * 200}),
            events.MessageCompleted(message_id=f"m{index}", role="assistant", content="two\nlines\r\n\u2028 and more"),
            events.TurnCompleted(turn_id=f"t{index}"),
        )
    # A producer may send its payload with line breaks between the tokens; they must not break a frame.
    story.raw("task.created", b'{\n  "task_id": "odd",\r\n  "title": "spread out"\n}')
    return story.then(events.RunCompleted())


def wire(facts: list[Fact]) -> list[Any]:
    return [decode_json(encode(fact)) for fact in facts]


async def visit(
    edge: EdgeServer, frames: int | None, last_event_id: str | None, start: str, min_sequence: int = 0
) -> tuple[int, list[Frame]]:
    """The first so many frames of a watch, then the connection is gone; all of them with None."""
    params = {} if last_event_id else {"from_": start}
    async with edge.watch("run_1", last_event_id=last_event_id, min_sequence=min_sequence, **params) as watch:
        if watch.status != 200:
            return watch.status, []
        if frames is None:
            await watch.over()
            return 200, watch.frames
        while len(watch.frames) < frames and not watch.of("end"):
            await watch.more()
        return 200, watch.frames[:frames]


def last_id(frames: list[Frame]) -> str | None:
    return next((frame.id for frame in reversed(frames) if frame.id), None)


def facts_of(frames: list[Frame]) -> list[Any]:
    return [frame.data for frame in frames if frame.event == "fact"]


async def test_one_cut_at_each_frame_of_a_finished_run(tmp_path: Path) -> None:
    story = a_run()
    async with edge_server(tmp_path) as edge:
        for commit in story.commits(4):
            await edge.commit(commit.facts)
        _, whole = await visit(edge, None, None, "start")
        assert facts_of(whole) == wire(story.facts)
        for cut in range(1, len(whole) + 1):
            _, seen = await visit(edge, cut, None, "start")
            status, rest = await visit(edge, None, last_id(seen), "start")
            if status == 204:
                assert facts_of(seen) == wire(story.facts)
                continue
            assert rest[0].event == "hello"
            assert rest[0].data["outcome"] == "run_terminal"
            assert not any(frame.event == "snapshot" for frame in rest)
            assert facts_of(seen) + facts_of(rest) == wire(story.facts)


async def test_a_cut_after_every_frame_while_the_run_goes_on(tmp_path: Path) -> None:
    story = a_run()
    async with edge_server(tmp_path) as edge:
        commits = story.commits(3)
        await edge.commit(commits[0].facts)

        async def write() -> None:
            for commit in commits[1:]:
                await edge.commit(commit.facts)
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            got, cursor = [], None
            while True:
                frames = 2  # hello, and one more: at worst nothing new arrives in a visit
                status, seen = await visit(edge, frames, cursor, "start")
                if status == 204:
                    break
                assert seen[0].data["outcome"] in {"resumed", "run_terminal"}
                got += facts_of(seen)
                cursor = last_id(seen) or cursor
        assert got == wire(story.facts)


async def test_snapshot_and_what_follows_it_are_the_whole_state_at_every_cut(tmp_path: Path) -> None:
    story = a_run()
    async with edge_server(tmp_path) as edge:
        for fact in story.facts:
            await edge.commit([fact])
            _, seen = await visit(edge, 2, None, "snapshot", fact.sequence)
            assert [frame.event for frame in seen] == ["hello", "snapshot"]
            assert seen[1].data["through_sequence"] == fact.sequence
            status, rest = await visit(edge, 2, seen[1].id, "start")
            if fact is story.facts[-1]:
                assert status == 204
            else:
                assert facts_of(rest) == []
