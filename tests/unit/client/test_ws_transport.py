"""A reader over WebSocket, against the gateway's own door over the view in memory."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from runlane.client import Fact, MemoryCursorStore, RequestRefused, RunReader, Unreachable
from runlane.client.backoff import BackoffPolicy
from runlane.client.transports.ports import Item, WatchRequest
from runlane.client.transports.ws import WebSocketTransport
from runlane.edge_gateway.memory_view import MemoryView
from runlane.hosting.authorizer import Principal
from runlane_contracts import events
from runlane_contracts.resume import End, EndReason, Hello, SnapshotFrame, Synced
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.runs import Story
from support.websocket import KEY, door

RUN = RunAddress("acme", "run_1")
QUICK = BackoffPolicy(initial_s=0.001, max_s=0.01, budget_s=20)


def a_run(steps: int = 10, *, over: bool = True) -> tuple[MemoryView, Story]:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    story.then(*(events.TaskCreated(task_id=f"t{index}", title="x" * 100) for index in range(steps)))
    if over:
        story.then(events.RunCompleted())
    view = MemoryView()
    for commit in story.commits(3):
        view.store(RUN, commit.facts)
    return view, story


async def read(reader: RunReader) -> list[Item]:
    return [item async for item in reader]


async def test_a_run_is_read_to_its_end() -> None:
    view, story = a_run()
    async with door(view) as gateway:
        transport = WebSocketTransport(gateway.url, KEY)
        items = await read(RunReader(transport, "run_1", from_="start"))
        assert isinstance(items[0], Hello)
        assert [item for item in items if isinstance(item, Fact)] == story.facts
        assert [type(item) for item in items if not isinstance(item, Fact)] == [Hello, Synced, End]
        items = await read(RunReader(transport, "run_1"))
        assert [type(item) for item in items] == [Hello, SnapshotFrame, Synced, End]


async def test_who_has_everything_is_told_that_nothing_follows() -> None:
    view, story = a_run()
    async with door(view) as gateway:
        transport = WebSocketTransport(gateway.url, KEY)
        reader = RunReader(transport, "run_1", from_="start")
        await read(reader)
        assert await read(RunReader(transport, "run_1", cursor=reader.cursor)) == []
        async with transport.watch(WatchRequest(run_id="run_1", cursor=reader.cursor)) as frames:
            assert frames is None
        assert len(story.facts) == 13


async def test_a_reader_that_lingers_is_waited_for_and_not_buffered() -> None:
    """Take `credit` out of `_params` to see it fail: the gateway then sends what the socket takes."""
    view, story = a_run(40)
    async with door(view) as gateway:
        transport = WebSocketTransport(gateway.url, KEY, credit=6)
        async with transport.watch(WatchRequest(run_id="run_1", from_="start")) as frames:
            assert frames is not None
            got = [await anext(frames) for _ in range(3)]  # hello and two facts
            await asyncio.sleep(0.2)
            session = next(iter(gateway.sessions._sessions))
            subscription = session._methods.open_ones[0]
            assert subscription.out.position.sequence == 6
            assert subscription.applied == 0
            while not isinstance(got[-1].item, End):
                got.append(await anext(frames))
                assert subscription.out.position.sequence <= subscription.applied + 6
            assert [frame.item for frame in got if isinstance(frame.item, Fact)] == story.facts


@pytest.mark.parametrize("every", [1, 4])
async def test_p5_a_connection_that_breaks_again_and_again_loses_and_repeats_nothing(every: int) -> None:
    view, story = a_run(30, over=False)
    seen: list[int] = []
    async with door(view) as gateway:
        reader = RunReader(
            WebSocketTransport(gateway.url, KEY), "run_1", from_="start", store=MemoryCursorStore(), backoff=QUICK
        )
        async for item in reader:
            if isinstance(item, Fact):
                seen.append(item.sequence)
                if len(seen) % every == 0:
                    for session in tuple(gateway.sessions._sessions):
                        session._socket.abort()
                if len(seen) == 20:
                    view.store(RUN, story.then(events.RunCompleted()).facts[-1:])
        assert seen == list(range(1, len(story.facts) + 1))


async def test_what_is_refused_is_refused_by_name_and_for_good() -> None:
    view, _ = a_run()
    async with door(view) as gateway:
        for transport, run_id, cursor, code in [
            (WebSocketTransport(gateway.url, KEY), "run_absent", None, "run_not_found"),
            (WebSocketTransport(gateway.url, "wrong"), "run_1", None, "unauthenticated"),
            (WebSocketTransport(gateway.url, "key-operator"), "run_1", None, "forbidden"),
            (WebSocketTransport(gateway.url, KEY), "run_1", "c1.x.y", "cursor_invalid"),
        ]:
            with pytest.raises(RequestRefused) as refused:
                await read(RunReader(transport, run_id, cursor=cursor))
            assert refused.value.code == code


async def test_nobody_there_is_unreachable_and_surely_nothing_was_sent() -> None:
    transport = WebSocketTransport("http://127.0.0.1:9", KEY)
    with pytest.raises(Unreachable) as lost:
        async with transport.watch(WatchRequest(run_id="run_1")):
            pass
    assert not lost.value.sent


async def test_a_server_that_goes_away_is_come_back_to() -> None:
    view, story = a_run(3, over=False)
    async with door(view) as gateway:
        reader = RunReader(WebSocketTransport(gateway.url, KEY), "run_1", from_="start", backoff=QUICK)
        ends: list[End] = []
        async for item in reader:
            if isinstance(item, Synced) and not ends:
                for session in tuple(gateway.sessions._sessions):
                    session.stop(EndReason.SHUTDOWN)
            if isinstance(item, End):
                ends.append(item)
                if len(ends) == 1:
                    view.store(RUN, story.then(events.RunCompleted()).facts[-1:])
        assert [end.reason for end in ends] == [EndReason.SHUTDOWN, EndReason.RUN_TERMINAL]
        assert reader.sequence == len(story.facts)


async def test_a_token_that_expires_is_renewed_on_the_open_connection() -> None:
    view, story = a_run(3, over=False)
    now = [datetime(2026, 3, 1, tzinfo=UTC)]
    tokens = iter(["short", "longer", "never"])
    async with door(view) as gateway:
        gateway.keyring.now = lambda: now[0]
        keys = gateway.keyring.principals
        keys["short"] = Principal("acme", "s", expires_at=now[0] + timedelta(seconds=30))
        keys["longer"] = Principal("acme", "s", expires_at=now[0] + timedelta(hours=1))

        async def fresh() -> str:
            return next(tokens)

        seen: list[int] = []

        async def follow() -> None:
            reader = RunReader(WebSocketTransport(gateway.url, fresh), "run_1", from_="start")
            seen.extend([item.sequence async for item in reader if isinstance(item, Fact)])

        async with asyncio.timeout(15), asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            await eventually(lambda: [one.principal.expires_at for one in gateway.sessions._sessions] == [
                keys["longer"].expires_at
            ])  # fmt: skip
            now[0] += timedelta(seconds=60)
            await asyncio.sleep(0.2)
            view.store(RUN, story.then(events.RunCompleted()).facts[-1:])
        assert seen == list(range(1, len(story.facts) + 1))
        assert next(tokens) == "never"  # it was never connected again
