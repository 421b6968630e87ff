"""What a WebSocket client is told of runs, over the view in memory and a real connection."""

import asyncio

import pytest

from runlane.edge_gateway.memory_view import MemoryView
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.reducer import checksum, initial_state, reduce
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.runs import Story
from support.websocket import RpcError, WsClient, door

RUN = RunAddress("acme", "run_1")


def a_story(steps: int = 3, run_id: str = "run_1", tenant_id: str = "acme") -> Story:
    story = Story(tenant_id, run_id).then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted())
    for index in range(steps):
        story.then(events.TaskCreated(task_id=f"t{index}", title="x" * 50), events.TaskCompleted(task_id=f"t{index}"))
    return story


def stored(*stories: Story, size: int = 2) -> MemoryView:
    view = MemoryView()
    for story in stories:
        for commit in story.commits(size):
            view.store(RunAddress(commit.tenant_id, commit.run_id), commit.facts)
    return view


def add(view: MemoryView, story: Story, *payloads: events.Payload) -> None:
    story.then(*payloads)
    view.store(RunAddress(story.run.tenant_id, story.run.run_id), story.facts[-len(payloads) :])


async def test_hello_answers_and_the_live_facts_follow_the_history() -> None:
    story = a_story()
    async with door(stored(story)) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", from_="start")
        assert hello["outcome"] == "resumed"
        assert hello["status"] == "running"
        assert hello["high_water"]["sequence"] == len(story.facts)
        assert hello["credit"] >= 1
        await client.until("run/synced")
        assert client.sequences() == list(range(1, len(story.facts) + 1))
        add(gateway.view, story, events.TurnStarted(turn_id="t9"))
        await client.facts(len(story.facts))
        add(gateway.view, story, events.RunCompleted())
        notes = await client.until("run/end")
        assert client.sequences() == list(range(1, len(story.facts) + 1))
        assert notes[-1].params["reason"] == "run_terminal"
        assert notes[-1].params["cursor"] == client.of("run/fact")[-1].params["cursor"]
        assert {note.params["subscription"] for note in notes} == {hello["subscription"]}


async def test_a_fact_is_byte_for_byte_what_sse_has() -> None:
    story = a_story(1)
    story.raw("task.created", b'{\n  "task_id": "odd",\r\n  "title": "sp\\u00e4t"\n}')
    async with door(stored(story)) as gateway, gateway.client() as client:
        await client.watch("run_1", from_="start")
        watching = gateway.edge.watch(RUN, from_="start")
        shown = (await watching.facts(len(story.facts)))[-1]
        note = (await client.facts(len(story.facts)))[-1]
        assert note.params["fact"] == shown.data
        assert note.params["cursor"] == shown.id
        raw = encode(story.facts[-1]).replace(b"\n", b" ").replace(b"\r", b" ").decode()
        assert f'"fact":{raw}' in note.text
        watching.leave()


async def test_without_a_cursor_the_state_comes_first_and_is_the_fold_of_the_log() -> None:
    story = a_story()
    async with door(stored(story)) as gateway, gateway.client() as client:
        hello = await client.watch("run_1")
        notes = await client.until("run/synced")
        state = initial_state(*RUN)
        for fact in story.facts:
            reduce(state, fact)
        assert hello["outcome"] == "snapshot"
        assert [note.method for note in notes] == ["run/snapshot", "run/synced"]
        assert notes[0].params["state"] == state
        assert notes[0].params["checksum"] == checksum(state)
        assert notes[0].params["cursor"] == hello["baseline"]["cursor"]


async def test_a_finished_run_is_told_to_its_end_and_once_more_only_that_it_is_over() -> None:
    story = a_story().then(events.RunCompleted())
    async with door(stored(story)) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", from_="start")
        assert hello["outcome"] == "run_terminal"
        await client.until("run/end")
        assert client.sequences() == list(range(1, len(story.facts) + 1))
        cursor = client.of("run/fact")[-1].params["cursor"]
        client.notes.clear()
        again = await client.watch("run_1", cursor=cursor)
        assert again["outcome"] == "run_terminal"
        assert again["baseline"] == again["high_water"]
        await client.until("run/end")
        assert [note.method for note in client.notes] == ["run/synced", "run/end"]
        client.notes.clear()
        filtered = await client.watch("run_1", from_="start", types=["run.completed"])
        await client.until("run/end")
        assert [note.params["fact"]["type"] for note in client.of("run/fact")] == ["run.completed"]
        assert filtered["filter"] == {"types": ["run.completed"], "previews": False}


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("types", [None, "task.*"])
async def test_never_more_than_the_credit_is_in_flight(size: int, types: str | None) -> None:
    """Take the `max_facts` out of `Subscription.take`, or the hub's cut inside of a commit, to see it fail."""
    story = a_story(10)
    wanted = [f.sequence for f in story.facts if types is None or f.type.startswith("task.")]
    async with door(stored(story, size=size)) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", from_="start", credit=3, types=types)
        assert hello["credit"] == 3
        name, acked = hello["subscription"], 0
        while acked < len(wanted):
            await client.facts(min(acked + 3, len(wanted)))
            await client.quiet(0.05)
            assert len(client.sequences()) <= acked + 3
            step = 1 if acked % 2 else min(2, len(client.sequences()) - acked)
            acked += step
            room = await client.ack(name, client.of("run/fact")[acked - 1].params["cursor"])
            assert 1 <= room["credit"] <= 3
        assert client.sequences() == wanted
        await client.until("run/synced")
        add(gateway.view, story, *(events.TaskCreated(task_id=f"n{index}") for index in range(9)))
        await client.facts(len(wanted) + 3)
        await client.quiet(0.1)
        assert len(client.sequences()) == len(wanted) + 3


async def test_a_client_without_credit_still_sees_previews_once_it_has_all_facts() -> None:
    story = a_story(0).then(events.MessageStarted(message_id="m1", role="assistant"))
    body = encode({"previews": [{
        "preview_id": "p1", "subject": {"kind": "message", "id": "m1"}, "preview_seq": 1, "operation": "append",
        "data": "An ",
    }]})  # fmt: skip
    async with door(stored(story)) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", from_="start", credit=len(story.facts), previews=True)
        await client.until("run/synced")
        gateway.view.preview(RUN, body)
        notes = await client.until("run/preview")
        assert notes[-1].params["preview"]["data"] == "An "
        assert "cursor" not in notes[-1].params
        add(gateway.view, story, events.TaskCreated(task_id="t"))
        gateway.view.preview(RUN, body.replace(b'"preview_seq":1', b'"preview_seq":2'))
        await client.quiet()
        assert len(client.of("run/preview")) == 1  # never before the fact it would overtake
        await client.ack(hello["subscription"], client.of("run/fact")[-1].params["cursor"])
        await client.facts(len(story.facts))
        await eventually(lambda: _take(client, "run/preview", 2))


async def _take(client: WsClient, method: str, count: int) -> bool:
    await client.quiet(0.02)
    return len(client.of(method)) == count


async def test_what_is_acknowledged_must_have_been_sent_and_be_no_older() -> None:
    story, second = a_story(3), a_story(3, "run_2")
    async with door(stored(story, second)) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", from_="start", credit=4)
        name = hello["subscription"]
        facts = await client.facts(4)
        cursors = [note.params["cursor"] for note in facts]
        assert (await client.ack(name, cursors[1]))["credit"] == 2
        assert (await client.ack(name, cursors[1]))["credit"] >= 0  # the same again changes nothing
        other = await client.watch("run_2", from_="start", credit=4)
        foreign = [note for note in (await client.until("run/fact")) if note.method == "run/fact"]
        await client.quiet()
        foreign = client.of("run/fact", other["subscription"])
        for cursor, code in [
            (cursors[0], "sequence_conflict"), (foreign[0].params["cursor"], "cursor_foreign"),
            (cursors[1][:-3], "cursor_invalid"), ("42", "cursor_invalid"), ("", "cursor_invalid"),
            (hello["high_water"]["cursor"], "cursor_invalid"),
        ]:  # fmt: skip
            with pytest.raises(RpcError) as refused:
                await client.ack(name, cursor)
            assert refused.value.code == code, cursor
        with pytest.raises(RpcError) as refused:
            await client.ack(name, cursors[0])
        assert refused.value.data["current_sequence"] == 2
        with pytest.raises(RpcError) as refused:
            await client.ack("sub_99", cursors[2])
        assert refused.value.code == "not_found"


async def test_two_watches_share_a_connection_and_neither_holds_up_the_other() -> None:
    story, second = a_story(20), a_story(20, "run_2")
    async with door(stored(story, second)) as gateway, gateway.client() as client:
        one = await client.watch("run_1", from_="start", credit=2)
        two = await client.watch("run_2", from_="start")
        await client.facts(2 + len(second.facts))
        assert client.sequences(one["subscription"]) == [1, 2]
        assert client.sequences(two["subscription"]) == list(range(1, len(second.facts) + 1))
        cursor = client.of("run/fact", two["subscription"])[-1].params["cursor"]
        assert (await client.call("run/unwatch", subscription=two["subscription"])) == {"cursor": cursor}
        add(gateway.view, second, events.TaskCreated(task_id="more"))
        await client.quiet()
        assert len(client.sequences(two["subscription"])) == len(second.facts) - 1
        with pytest.raises(RpcError) as refused:
            await client.call("run/unwatch", subscription=two["subscription"])
        assert refused.value.code == "not_found"
        await client.ack(two["subscription"], cursor)  # said late, and understood
        again = await client.watch("run_2", cursor=cursor)
        await client.facts(3 + len(second.facts) - 1)
        assert client.sequences(again["subscription"]) == [len(second.facts)]


async def test_what_another_tenant_owns_answers_as_what_does_not_exist() -> None:
    theirs = a_story(1, "run_theirs", "other")
    async with door(stored(theirs)) as gateway, gateway.client() as client:
        answers = []
        for run_id in ("run_theirs", "run_absent", "has.dot", "x" * 200, ""):
            with pytest.raises(RpcError) as refused:
                await client.watch(run_id)
            answers.append((refused.value.number, refused.value.message, refused.value.data))
        assert answers[0][2]["code"] == "run_not_found"
        assert all(answer == answers[0] for answer in answers)
        assert {("GET", f"/v1/runs/{run}/watch") for run in ("run_theirs", "run_absent")} <= {
            (method, path) for method, path, _ in gateway.refusals
        }


async def test_only_so_many_watches_share_a_connection() -> None:
    async with door(stored(a_story())) as gateway, gateway.client() as client:
        limit = (await client.call("ping")) == {} and gateway.sessions.limits.max_subscriptions
        for _ in range(limit):
            await client.watch("run_1")
        with pytest.raises(RpcError) as refused:
            await client.watch("run_1")
        assert (refused.value.number, refused.value.code) == (-32001, "quota_exceeded")
        assert refused.value.data["retry_after_ms"] > 0
        await client.call("run/unwatch", subscription="sub_1")
        assert (await client.watch("run_1"))["subscription"] == f"sub_{limit + 1}"


async def test_leaving_lets_go_of_everything() -> None:
    async with door(stored(a_story())) as gateway:
        async with gateway.client() as client:
            for _ in range(3):
                await client.watch("run_1", previews=True)
            assert gateway.edge.meters.watchers == 3
        await eventually(lambda: gateway.edge.meters.watchers == 0)
        await eventually(lambda: len(gateway.sessions) == 0)
        await eventually(lambda: gateway.edge.meters.hubs == 0)
        await asyncio.sleep(0)
