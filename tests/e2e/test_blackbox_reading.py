"""What a client reads, against the whole product: routes, rights, watches, cursors, history, snapshots, lists."""

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import nats
import pytest
import pytest_asyncio

from support.product import Frame, Product, Wire, fact

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
DONE = (
    fact("run.started"),
    fact("turn.started", turn_id="t1"),
    fact("tool.requested", tool_call_id="c1", name="look", arguments={"q": 1}, action_digest="d"),
    fact("tool.running", tool_call_id="c1"),
    fact("tool.completed", tool_call_id="c1", result={"n": 3}),
    fact("message.completed", message_id="m1", role="assistant", content="three"),
    fact("run.completed", output={"n": 3}),
)
LAST = 2 + len(DONE)
TOOLS = [5, 6, 7]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def done(demo: Wire) -> str:
    run_id = await demo.start_run()
    await demo.append(run_id, await demo.lease(run_id), *DONE)
    await demo.view(run_id)
    return run_id


def problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, f"{reply.status_code} {reply.text}"
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert (body["code"], body["status"]) == (code, status)
    return body


async def frames_of(wire: Wire, run_id: str, last_event_id: str | None = None, **params: Any) -> list[Frame]:
    async with wire.watch(run_id, last_event_id, **params) as frames:
        return [frame async for frame in frames]


def facts_in(frames: list[Frame]) -> list[int]:
    return [frame.data["sequence"] for frame in frames if frame.event == "fact"]


# --- routes and rights ----------------------------------------------------------------------------------------

ROUTES = {
    "/v1/runs": "GET, HEAD, POST",
    "/v1/runs/{}": "GET, HEAD",
    "/v1/runs/{}/watch": "GET",
    "/v1/runs/{}/events": "GET, HEAD, POST",
    "/v1/runs/{}/snapshot": "GET, HEAD",
    "/v1/runs/{}/commands": "POST",
    "/v1/runs/{}/lease": "DELETE, POST, PUT",
    "/v1/runs/{}/previews": "POST",
    "/v1/commands": "GET, HEAD",
    "/v1/commands/{}": "GET, HEAD",
    "/v1/approvals": "GET, HEAD",
    "/v1/pools/{}/claim": "POST",
    "/v1/content/{}": "GET, HEAD",
    "/healthz": "GET, HEAD",
    "/readyz": "GET, HEAD",
    "/metrics": "GET, HEAD",
    "/openapi.json": "GET, HEAD",
}


@pytest.mark.parametrize("path", ROUTES)
async def test_a_path_names_the_methods_it_knows(demo: Wire, done: str, path: str) -> None:
    allowed = ROUTES[path]
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - set(allowed.split(", ")):
        reply = await demo.http.request(method, path.format(done))
        problem(reply, 405, "method_not_allowed")
        assert reply.headers["allow"] == allowed, method


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/runs/", "/v1/nowhere", "/v1//runs", "//v1/runs", "/V1/runs", "/v1/runs/x/nowhere", "/docs"],
)
async def test_an_unknown_path_is_a_problem(demo: Wire, path: str) -> None:
    problem(await demo.http.request("GET", httpx.URL(str(demo.http.base_url).rstrip("/") + path)), 404, "not_found")


@pytest.mark.parametrize("run_id", ["%2e%2e", "%00", "%ff", "%3e", "*", "a%20b", "a%0ab", "%C3%A4", "a" * 3000])
@pytest.mark.parametrize("rest", ["", "/watch", "/events", "/snapshot"])
async def test_what_cannot_be_a_run_id_names_no_run(demo: Wire, run_id: str, rest: str) -> None:
    problem(await demo.http.get(f"/v1/runs/{run_id}{rest}"), 404, "run_not_found")


async def test_every_verb_asks_who_it_is(up: Product) -> None:
    async with httpx.AsyncClient(base_url=up.url, headers={"Authorization": "Bearer nobody"}) as http:
        for path, allowed in ROUTES.items():
            for method in set(allowed.split(", ")) - {"HEAD"} if path.startswith("/v1") else ():
                reply = await http.request(method, path.format("x"))
                problem(reply, 401, "unauthenticated")
                assert reply.headers["www-authenticate"].startswith("Bearer")
    token = up.tokens["demo"]
    schemes = {f"bearer {token}": 200, f"BEARER {token}": 200, "Bearer": 401, f"Basic {token}": 401, token: 401,
               f"Bearer {token}x": 401, f"Token {token}": 401}  # fmt: skip
    async with httpx.AsyncClient(base_url=up.url) as http:
        for header, status in schemes.items():
            assert (await http.get("/v1/runs", headers={"Authorization": header})).status_code == status, header[:8]
        assert (await http.get("/v1/runs")).status_code == 401


async def test_the_open_routes_answer_and_the_document_names_all_routes(up: Product) -> None:
    async with httpx.AsyncClient(base_url=up.url) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json()["ready"] is True
        assert (await http.get("/metrics")).headers["content-type"].startswith("text/plain")
        document = (await http.get("/openapi.json")).json()
    named = {path: set(methods) for path, methods in document["paths"].items()}
    for path, allowed in ROUTES.items():
        name = path.replace("{}", "{run_id}" if "/runs/" in path else "{}")
        found = next(methods for there, methods in named.items() if _shape(there) == _shape(name))
        assert found == {method.lower() for method in allowed.split(", ")} - {"head"}, path


def _shape(path: str) -> list[str]:
    return ["*" if part.startswith("{") else part for part in path.split("/")]


# --- watching -------------------------------------------------------------------------------------------------


async def test_hello_says_everything_and_agrees_with_what_follows(demo: Wire, done: str) -> None:
    frames = await frames_of(demo, done, **{"from": "start"})
    hello = frames[0].data
    assert hello.keys() == {
        "outcome", "run_id", "status", "baseline", "high_water", "reducer_version", "heartbeat_s", "filter",
    }  # fmt: skip
    assert (hello["baseline"]["sequence"], hello["high_water"]["sequence"], hello["status"]) == (0, LAST, "completed")
    assert facts_in(frames) == list(range(1, LAST + 1))
    assert [frame.event for frame in frames[-2:]] == ["synced", "end"]
    assert frames[-2].data == {"sequence": LAST}
    for cursor in (hello["high_water"]["cursor"], frames[-1].data["cursor"]):
        assert (await demo.http.get(f"/v1/runs/{done}/watch", params={"cursor": cursor})).status_code == 204
    assert facts_in(await frames_of(demo, done, cursor=hello["baseline"]["cursor"])) == list(range(1, LAST + 1))


@pytest.mark.parametrize(
    "query",
    ["from=bogus", "from=START", "previews=1", "types=*", "types=tolo", "types=Tool.*", "min_sequence=-1",
     "min_sequence=1e3", "types=" + ",".join(f"a.b{n}" for n in range(65))],
)  # fmt: skip
async def test_parameters_that_make_no_sense_are_refused_before_the_stream_opens(
    demo: Wire, done: str, query: str
) -> None:
    problem(await demo.http.get(f"/v1/runs/{done}/watch?{query}"), 400, "invalid_request")


async def test_every_cursor_is_good_for_watch_and_history(demo: Wire, done: str) -> None:
    started = (await demo.http.post("/v1/runs", json={"agent": "a", "dispatch": "external"})).json()
    page = (await demo.http.get(f"/v1/runs/{done}/events", params={"limit": 4})).json()
    snapshot = (await demo.http.get(f"/v1/runs/{done}/snapshot", params={"at_sequence": 4})).json()
    frame = [one for one in await frames_of(demo, done, **{"from": "start"}) if one.event == "fact"][3]
    for cursor in (page["cursor"], snapshot["cursor"], frame.id):
        assert facts_in(await frames_of(demo, done, cursor=cursor)) == list(range(5, LAST + 1))
        rest = (await demo.http.get(f"/v1/runs/{done}/events", params={"cursor": cursor})).json()
        assert [one["sequence"] for one in rest["events"]] == list(range(5, LAST + 1))
        problem(await demo.http.get(f"/v1/runs/{started['run_id']}/watch?cursor={cursor}"), 422, "cursor_foreign")
    async with demo.watch(started["run_id"], cursor=started["cursor"]) as frames:
        hello = await anext(frames)
    assert (hello.data["outcome"], hello.data["baseline"]["sequence"]) == ("resumed", 1)


async def test_a_filter_passes_types_and_families_and_binds_its_cursors(demo: Wire, done: str) -> None:
    for types, wanted in (("tool.*", TOOLS), ("tool.completed", TOOLS[-1:]), ("tool.*,run.created", [1, *TOOLS]),
                          ("no.such", []), ("", list(range(1, LAST + 1)))):  # fmt: skip
        frames = await frames_of(demo, done, types=types, **{"from": "start"})
        assert facts_in(frames) == wanted
        assert frames[-1].data["reason"] == "run_terminal"
    frames = await frames_of(demo, done, types="tool.*", **{"from": "start"})
    ids = [frame.id for frame in frames if frame.event == "fact"]
    assert facts_in(await frames_of(demo, done, ids[0], types="tool.*")) == TOOLS[1:]
    assert facts_in(await frames_of(demo, done, ids[0], types="tool.*,tool.*")) == TOOLS[1:]
    for path in ("watch", "events"):
        for types in ("", "message.*", "tool.completed"):
            query = {"cursor": ids[0], "types": types}
            problem(await demo.http.get(f"/v1/runs/{done}/{path}", params=query), 422, "cursor_foreign")
    for cursor in (ids[-1], frames[-1].data["cursor"]):
        query = {"cursor": cursor, "types": "tool.*"}
        assert (await demo.http.get(f"/v1/runs/{done}/watch", params=query)).status_code == 204


async def test_last_event_id_wins_whatever_else_is_asked(demo: Wire, done: str) -> None:
    ids = [frame.id for frame in await frames_of(demo, done, **{"from": "start"}) if frame.event == "fact"]
    for other in ({"cursor": "bad"}, {"from": "snapshot"}, {"from": "start"}, {"from": "now"}):
        assert facts_in(await frames_of(demo, done, ids[2], **other)) == list(range(4, LAST + 1))
    headers = {"Last-Event-ID": "0"}
    problem(await demo.http.get(f"/v1/runs/{done}/watch?cursor={ids[2]}", headers=headers), 422, "cursor_invalid")


async def test_a_hundred_who_join_at_once_each_get_every_fact_once_in_order(demo: Wire, up: Product) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id)
    limits = httpx.Limits(max_connections=120)
    async with httpx.AsyncClient(
        base_url=up.url, headers={"Authorization": f"Bearer {up.tokens['demo']}"}, timeout=30, limits=limits
    ) as http, asyncio.TaskGroup() as tasks:  # fmt: skip

        async def join(n: int) -> list[Frame]:
            await asyncio.sleep(n / 200)
            wire = Wire(up.url, up.tokens["demo"])
            await wire.http.aclose()
            wire.http = http
            return await frames_of(wire, run_id, **{"from": ("start", "snapshot", "now")[n % 3]})

        joined = [tasks.create_task(join(n)) for n in range(100)]
        for n in range(60):
            await demo.append(run_id, epoch, *(fact("turn.started", turn_id=f"t{n}-{k}") for k in range(3)))
        await demo.append(run_id, epoch, fact("run.completed"))
    for task in joined:
        frames = task.result()
        first = frames[0].data["baseline"]["sequence"] + 1
        assert facts_in(frames) == list(range(first, demo.written[run_id] + 1))
        assert [frame.event for frame in frames].count("synced") == 1


async def test_a_reader_that_is_caught_up_gets_what_comes(demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id)
    async with demo.watch(run_id, **{"from": "start"}) as frames:
        cursor = [frame.id async for frame in _until(frames, "synced") if frame.event == "fact"][-1]
    task = asyncio.create_task(frames_of(demo, run_id, cursor))
    await asyncio.sleep(0.3)
    await demo.append(run_id, epoch, fact("run.started"))
    await demo.append(run_id, epoch, fact("run.completed"))
    frames = await task
    assert [frame.event for frame in frames] == ["hello", "synced", "fact", "fact", "end"]


async def _until(frames: AsyncIterator[Frame], event: str) -> AsyncIterator[Frame]:
    async for frame in frames:
        yield frame
        if frame.event == event:
            return


# --- snapshots, history, lists --------------------------------------------------------------------------------


async def test_the_snapshot_at_every_sequence_has_its_checksum(demo: Wire, done: str) -> None:
    for sequence in range(1, LAST + 1):
        got = (await demo.http.get(f"/v1/runs/{done}/snapshot", params={"at_sequence": sequence})).json()
        text = json.dumps(got["state"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert got["checksum"] == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        assert got["through_sequence"] == got["state"]["through_sequence"] == sequence


@pytest.mark.parametrize(
    "path",
    ["events?limit=0", "events?limit=x", "events?types=bogus", "snapshot?at_sequence=0",
     "snapshot?at_sequence=-1", "snapshot?at_sequence=99999999999999999999"],
)  # fmt: skip
async def test_reads_that_make_no_sense_are_refused(demo: Wire, done: str, path: str) -> None:
    problem(await demo.http.get(f"/v1/runs/{done}/{path}"), 400, "invalid_request")


async def test_a_read_waits_for_its_sequence_and_says_when_it_does_not_come(demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id)
    waiting = asyncio.create_task(demo.http.get(f"/v1/runs/{run_id}", params={"min_sequence": 3}))
    await asyncio.sleep(0.3)
    await demo.append(run_id, epoch, fact("run.started"))
    assert (await waiting).json()["through_sequence"] == 3
    paths = [f"/v1/runs/{run_id}{rest}" for rest in ("", "/events", "/snapshot")]
    late = await asyncio.gather(*(demo.http.get(path, params={"min_sequence": 4}) for path in paths))
    for reply in late:
        problem(reply, 504, "not_yet_visible")


async def test_pages_of_runs_and_approvals_hold_still(demo: Wire) -> None:
    agent = f"paged-{uuid.uuid4().hex[:8]}"
    ids = [await demo.start_run(agent=agent) for _ in range(12)]
    for run_id in ids[:4]:
        asks = [fact("approval.requested", approval_id=f"a{n}", description="x", risk="low", version=1,
                     action_digest=f"d{n}") for n in range(2)]  # fmt: skip
        await demo.append(run_id, await demo.lease(run_id), *asks)
    for run_id in ids:
        await demo.view(run_id)
    seen = [row["run_id"] async for row in _pages(demo, "runs", {"agent": agent, "limit": 5}, disturb=agent)]
    assert seen == ids[::-1]
    asked = [(row["run_id"], row["approval_id"]) async for row in _pages(demo, "approvals", {"limit": 3})]
    mine = sorted(row for row in asked if row[0] in ids)
    assert mine == sorted((run_id, f"a{n}") for run_id in ids[:4] for n in range(2))
    for query in ("limit=0", "limit=x", "page_token=x", "status=bogus"):
        for path in ("runs", "approvals"):
            problem(await demo.http.get(f"/v1/{path}?{query}"), 400, "invalid_request")


async def _pages(wire: Wire, what: str, query: dict[str, Any], *, disturb: str = "") -> AsyncIterator[Any]:
    token: dict[str, str] = {}
    while True:
        page = (await wire.http.get(f"/v1/{what}", params=query | token)).json()
        for row in page[what]:
            yield row
        if "page_token" not in page:
            return
        token = {"page_token": page["page_token"]}
        if disturb:
            await wire.start_run(agent=disturb)


# --- secrets and the broker -----------------------------------------------------------------------------------


async def test_a_secret_is_masked_everywhere_and_live_commits_equal_the_history(demo: Wire, up: Product) -> None:
    connection = await nats.connect(up.nats_url)
    live, signals = await connection.subscribe("rl.live.demo.>"), await connection.subscribe("rl.signal.demo.>")
    await connection.flush()
    run_id = await demo.start_run(input={"key": SECRET})
    epoch = await demo.lease(run_id)
    twice = f'{{"message_id":"m1","role":"user","content":"{SECRET}","content":"harmless"}}'
    body = f'{{"lease_epoch":{epoch},"events":[{{"type":"message.completed","payload":{twice}}}]}}'
    assert (await demo.http.post(f"/v1/runs/{run_id}/events", content=body)).status_code == 200
    escaped = f'{{"type":"turn.started","payload":{{"turn_id":"t","unknown":"gh\\u0070_{SECRET[4:]}"}}}}'
    body = f'{{"lease_epoch":{epoch},"events":[{escaped}]}}'
    assert (await demo.http.post(f"/v1/runs/{run_id}/events", content=body)).status_code == 200
    await demo.append(
        run_id, epoch,
        fact("task.created", task_id="k", title=f"use {SECRET}"),
        fact("message.completed", message_id="m2", role="user", content={SECRET: [SECRET]}),
        fact("run.failed", error={"code": "boom", "message": SECRET}),
    )  # fmt: skip
    facts = await demo.facts(run_id)
    heard = [await live.next_msg(5)]
    while json.loads(heard[-1].data)["facts"][-1]["type"] != "run.failed":
        heard.append(await live.next_msg(5))
    told = [await signals.next_msg(5) for _ in facts]
    await connection.close()
    assert [one for message in heard for one in json.loads(message.data)["facts"]] == facts
    assert [message.subject for message in told] == [f"rl.signal.demo.{one['type']}" for one in facts]
    assert [message.headers["ce-id"] for message in told] == [one["event_id"] for one in facts]
    everything = [json.dumps(facts), *(message.data.decode() for message in [*heard, *told])]
    everything += [(await demo.http.get(f"/v1/runs{path}")).text for path in ("", f"/{run_id}", f"/{run_id}/snapshot")]
    everything += [json.dumps(frame.data) for frame in await frames_of(demo, run_id, **{"from": "snapshot"})]
    for text in everything:
        assert SECRET not in text
        assert SECRET[4:] not in text


@pytest.mark.parametrize(
    "subject",
    ["$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.DIRECT.GET.RL_LOG_0", "$JS.API.STREAM.PURGE.RL_LOG_0",
     "$JS.API.CONSUMER.CREATE.RL_SIGNAL", "$KV.RL_LEASES.demo.x", "$SYS.REQ.SERVER.PING", "rl.svc.projector.rebuild",
     "rl.live.demo.x", "rl.signal.demo.run.completed", "rl.outcome.demo.x", "rl.preview.view.demo.x"],
)  # fmt: skip
async def test_an_observer_says_nothing(up: Product, subject: str) -> None:
    assert "permissions violation" in await _refusal(up, publish=subject)


@pytest.mark.parametrize(
    "subject",
    [">", "rl.>", "rl.*.>", "rl.log.>", "rl.view.>", "rl.cmd.>", "rl.audit.>", "rl.dead.>", "rl.preview.raw.>",
     "rl.outcome.>", "$KV.>", "$JS.>", "$SYS.>", "_INBOX.>", "_INBOX_operator.>"],
)  # fmt: skip
async def test_an_observer_hears_signals_and_live_commits_only(up: Product, subject: str) -> None:
    assert "permissions violation" in await _refusal(up, subscribe=subject)


async def _refusal(up: Product, *, publish: str = "", subscribe: str = "") -> str:
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def on_error(error: Exception) -> None:
        if not refused.done():
            refused.set_result(str(error).lower())

    connection = await nats.connect(up.nats_url, error_cb=on_error)
    try:
        if publish:
            await connection.publish(publish, b"{}")
        else:
            await connection.subscribe(subscribe)
        await connection.flush()
        return await asyncio.wait_for(refused, 3)
    finally:
        await connection.close()
