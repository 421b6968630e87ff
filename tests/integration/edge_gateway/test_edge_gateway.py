"""The gateway on a real broker, over real HTTP, with exactly the rights its user has."""

import asyncio
from pathlib import Path

from runlane_contracts import events
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.previews import Preview, PreviewBatch, PreviewSubject
from runlane_contracts.reducer import checksum, initial_state, reduce
from support.edge_server import edge_server
from support.eventually import eventually
from support.runs import Story, a_short_run


def state_of(story: Story, through: int | None = None) -> dict:
    state = initial_state(story.run.tenant_id, story.run.run_id)
    for fact in story.facts[:through]:
        reduce(state, fact)
    return state


async def test_a_run_is_watched_from_its_start_through_its_end(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts[:4])
        async with edge.watch("run_1", from_="start") as watch:
            assert watch.status == 200
            assert watch.response.headers["content-type"].startswith("text/event-stream")
            assert "no-store" in watch.response.headers["cache-control"]
            assert watch.response.headers["x-accel-buffering"] == "no"
            await watch.until("synced")
            for fact in story.facts[4:]:
                await edge.commit([fact])
            await watch.over()
        assert watch.frames[0].event == "hello"
        assert watch.frames[-1].event == "end"
        assert [frame.data for frame in watch.of("fact")] == [decode_json(encode(fact)) for fact in story.facts]
        async with edge.watch("run_1", last_event_id=watch.of("fact")[-1].id) as again:
            assert again.status == 204


async def test_resume_after_every_frame_gives_exactly_the_rest(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        for commit in story.commits(5):
            await edge.commit(commit.facts)
        async with edge.watch("run_1", from_="start") as watch:
            facts = [frame for frame in await watch.over() if frame.event == "fact"]
        for index, frame in enumerate(facts[:-1]):
            async with edge.watch("run_1", last_event_id=frame.id) as rest:
                await rest.over()
            assert rest.frames[0].data["outcome"] == "run_terminal"
            assert rest.sequences == [one.data["sequence"] for one in facts[index + 1 :]]


async def test_a_read_right_after_a_write_waits_for_the_view(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        await edge.log_only(story.facts[:3])
        asking = [
            asyncio.create_task(edge.get("/v1/runs/run_1")),
            asyncio.create_task(edge.get("/v1/runs/run_1/events")),
            asyncio.create_task(edge.get("/v1/runs/run_1/snapshot")),
            asyncio.create_task(edge.get("/v1/runs/run_1", min_sequence=5)),
        ]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in asking)
        await edge.view_only(story.facts[:3])
        view, page, snapshot = [await task for task in asking[:3]]
        assert view.json()["status"] == "running"
        assert [event["sequence"] for event in page.json()["events"]] == [1, 2, 3]
        assert snapshot.json()["state"] == state_of(story, 3)
        await edge.commit(story.facts[3:5])
        assert (await asking[3]).json()["through_sequence"] == 5


async def test_a_read_shows_what_was_written_before_it_and_does_not_wait_long_for_it(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path, fresh_wait_s=2.0) as edge:
        await edge.commit(story.facts[:2])
        await edge.log_only(story.facts[2:3])
        asking = [asyncio.create_task(edge.get("/v1/runs/run_1")) for _ in range(20)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in asking)
        await edge.view_only(story.facts[2:3])
        assert {(await task).json()["through_sequence"] for task in asking} == {3}
        await edge.log_only(story.facts[3:4])
        assert (await edge.get("/v1/runs/run_1")).json()["through_sequence"] == 3


async def test_what_does_not_exist_and_what_is_anothers_answer_alike(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts)
        for path in ("", "/watch", "/events", "/snapshot"):
            theirs = await edge.get(f"/v1/runs/run_1{path}", key="key-other")
            nobodys = await edge.get(f"/v1/runs/run_x{path}", key="key-other")
            odd = await edge.get(f"/v1/runs/a.b{path}", key="key-other")
            assert theirs.status_code == 404
            assert theirs.json()["code"] == "run_not_found"
            assert theirs.content == nobodys.content == odd.content
            assert sorted(theirs.headers) == sorted(nobodys.headers)
        assert (await edge.get("/v1/runs/run_1", key="wrong")).status_code == 401
        assert (await edge.http.get("/v1/runs/run_1/watch")).status_code == 401


async def test_pages_of_history_equal_the_log_and_a_filter_keeps_its_cursor(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        for commit in story.commits(5):
            await edge.commit(commit.facts)
        for types in ("", "tool.*", "message.completed,run.created"):
            got, cursor, more = [], "", True
            while more:
                reply = await edge.get("/v1/runs/run_1/events", limit=2, cursor=cursor, types=types)
                assert reply.status_code == 200, reply.text
                page = reply.json()
                assert len(page["events"]) <= 2
                got += [event["type"] for event in page["events"]]
                cursor, more = page["cursor"], page["has_more"]
            wanted = {"": story.facts, "tool.*": [f for f in story.facts if f.type.startswith("tool.")]}
            expected = wanted.get(types) or [f for f in story.facts if f.type in types.split(",")]
            assert got == [fact.type for fact in expected]
        foreign = await edge.get("/v1/runs/run_1/events", cursor=cursor)
        assert (foreign.status_code, foreign.json()["code"]) == (422, "cursor_foreign")
        for limit in ("0", "x", "-1", "1.5"):
            assert (await edge.get("/v1/runs/run_1/events", limit=limit)).status_code == 400


async def test_a_page_cursor_and_a_watch_cursor_are_the_same_thing(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts)
        page = (await edge.get("/v1/runs/run_1/events", limit=5)).json()
        async with edge.watch("run_1", cursor=page["cursor"]) as watch:
            await watch.over()
        assert watch.sequences == list(range(6, len(story.facts) + 1))


async def test_a_snapshot_of_any_moment_is_the_fold_up_to_there(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path, visible_wait_s=0.3) as edge:
        for commit in story.commits(5):
            await edge.commit(commit.facts)
        for sequence in range(1, len(story.facts) + 1):
            reply = (await edge.get("/v1/runs/run_1/snapshot", at_sequence=sequence)).json()
            assert reply["state"] == state_of(story, sequence)
            assert reply["checksum"] == checksum(reply["state"])
            assert reply["through_sequence"] == sequence
            if sequence < len(story.facts):
                async with edge.watch("run_1", cursor=reply["cursor"]) as watch:
                    await watch.over()
                assert watch.sequences == list(range(sequence + 1, len(story.facts) + 1))
        late = await edge.get("/v1/runs/run_1/snapshot", at_sequence=999)
        assert (late.status_code, late.json()["code"]) == (504, "not_yet_visible")


async def test_previews_come_live_and_leave_no_trace(tmp_path: Path) -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts)
        async with edge.watch("run_1", previews="true", from_="start") as watch:
            await watch.until("synced")
            for seq, word in enumerate(["An ", "apple"], start=1):
                one = Preview(
                    preview_id="p1", subject=PreviewSubject(kind="message", id="m1"), preview_seq=seq, data=word
                )
                await edge.preview(
                    "acme", "run_1", encode(PreviewBatch(tenant_id="acme", run_id="run_1", previews=(one,)))
                )
            story.then(events.MessageCompleted(message_id="m1", role="assistant", content="x", preview_id="p1"))
            story.then(events.RunCompleted())
            await watch.previews(2)
            await edge.commit(story.facts[2:])
            await watch.over()
        assert "".join(frame.data["data"] for frame in watch.of("preview")) == "An apple"
        events_read = (await edge.get("/v1/runs/run_1/events")).json()["events"]
        assert [event["type"] for event in events_read] == [fact.type for fact in story.facts]


async def test_live_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts)
        async with edge.watch("run_1", from_="start") as watch:
            await watch.until("synced")
            await edge.server.restart()
            await eventually(lambda: edge.filter.is_connected and edge.supervisor.is_connected)
            story.then(events.RunCompleted())
            await edge.commit(story.facts[2:])
            await watch.over()
        assert watch.sequences == [1, 2, 3]


async def test_a_stopping_gateway_ends_watches_with_a_cursor(tmp_path: Path) -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts)
        async with edge.watch("run_1", from_="start") as watch:
            await watch.until("synced")
            await edge.drain()
            await watch.over()
        assert watch.frames[-1].data["reason"] == "shutdown"
        assert watch.frames[-1].data["retry_after_ms"] > 0
        refused = await edge.get("/v1/runs/run_1/watch")
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert "retry-after" in refused.headers


async def test_the_console_and_the_description_are_served(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as edge:
        page = await edge.http.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe-inline" not in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-cache"
        for path in ("/console/app.js", "/app.js"):
            script = await edge.http.get(path)
            assert script.headers["content-type"].startswith("text/javascript")
        same = await edge.http.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert same.status_code == 304
        for path in ("/console/../app.py", "/console/%2e%2e/app.py", "/console//etc/passwd", "/nowhere", "/v1/nowhere"):
            missing = await edge.http.get(path)
            assert missing.status_code == 404
            assert missing.json()["code"] == "not_found"
        paths = (await edge.http.get("/openapi.json")).json()["paths"]
        assert {"/v1/runs", "/v1/runs/{run_id}/watch", "/v1/pools/{pool}/claim"} <= set(paths)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await edge.http.get(path)).status_code == 200
        wrong = await edge.http.post("/v1/runs/run_1/watch")
        assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
        hidden = await edge.get("/v1/content/abc")
        assert (hidden.status_code, hidden.json()["code"]) == (404, "not_found")


async def test_the_timeline_comes_in_pages_as_it_stands_now_or_stood_then(tmp_path: Path) -> None:
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        for commit in story.commits(5):
            await edge.commit(commit.facts)
        whole = (await edge.get("/v1/runs/run_1/timeline")).json()
        told = sorted(sequence for row in whole["rows"] for sequence in row["sequences"])
        assert told == [fact.sequence for fact in story.facts]
        assert whole["through_sequence"] == len(story.facts)
        assert whole["has_more"] is False
        paged, cursor, more = [], None, True
        while more:
            page = (await edge.get("/v1/runs/run_1/timeline", limit=2, **({"cursor": cursor} if cursor else {}))).json()
            paged, cursor, more = paged + page["rows"], page["cursor"], page["has_more"]
        assert paged == whole["rows"]
        then = (await edge.get("/v1/runs/run_1/timeline", at_sequence=3)).json()
        assert then["through_sequence"] == 3
        assert [row["phase"] for row in then["rows"]] == ["created", "leased", "started"]
        assert (await edge.get("/v1/runs/run_9/timeline")).json()["code"] == "run_not_found"
        assert (await edge.get("/v1/runs/run_1/timeline", cursor="c1.x.y")).json()["code"] == "cursor_invalid"


async def test_the_last_facts_begin_where_an_item_begins_in_pages_and_in_a_watch(tmp_path: Path) -> None:
    story = a_short_run()  # its tool call is 7, 8, 9
    async with edge_server(tmp_path) as edge:
        for commit in story.commits(2):
            await edge.commit(commit.facts)
        page = (await edge.get("/v1/runs/run_1/events", last=4)).json()
        assert [fact["sequence"] for fact in page["events"]] == [7, 8, 9, 10, 11, 12]
        assert page["has_more"] is False
        paged = (await edge.get("/v1/runs/run_1/events", last=4, limit=2)).json()
        rest = (await edge.get("/v1/runs/run_1/events", cursor=paged["cursor"])).json()
        assert paged["events"] + rest["events"] == page["events"]
        async with edge.watch("run_1", last=4) as watch:
            await watch.over()
        assert watch.frames[0].data["outcome"] == "run_terminal"
        assert watch.frames[0].data["baseline"]["sequence"] == 6
        assert watch.sequences == [7, 8, 9, 10, 11, 12]
        async with edge.watch("run_1", last=4, last_event_id=watch.of("fact")[3].id) as again:
            await again.over()
        assert again.sequences == [11, 12]
        assert len((await edge.get("/v1/runs/run_1/events", last=999)).json()["events"]) == 12
        for refused in ({"last": 0}, {"last": "x"}, {"last": 3, "types": "run.*"}, {"last": 3, "cursor": "c1.a.b"}):
            assert (await edge.get("/v1/runs/run_1/events", **refused)).json()["code"] == "invalid_request", refused
        assert (await edge.get("/v1/runs/run_1/watch", last=3, **{"from": "start"})).status_code == 400
