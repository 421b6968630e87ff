"""The first lane over WebSocket, against the whole product: watch, acknowledge, leave, come back, decide.

What `test_blackbox_reading` says of SSE, said of the other door.
"""

import asyncio
import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from runlane.client import HttpTransport, RunReader, RunState, WebSocketTransport
from support.browser import chromium
from support.eventually import eventually
from support.product import Product, Wire, fact, product
from support.websocket import Note, RpcError, WsClient, ws_client, ws_connect

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = (
    fact("run.started"),
    fact("turn.started", turn_id="t1"),
    fact("tool.requested", tool_call_id="c1", name="look", arguments={"q": "\u00fc"}, action_digest="d"),
    fact("tool.running", tool_call_id="c1"),
    fact("tool.completed", tool_call_id="c1", result={"n": 3}),
    fact("message.completed", message_id="m1", role="assistant", content="two\nlines\r\n"),
    fact("run.completed", output={"n": 3}),
)
LAST = 2 + len(DONE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def done(demo: Wire) -> str:
    run_id = await demo.start_run()
    await demo.append(run_id, await demo.lease(run_id), *DONE)
    await demo.view(run_id)
    return run_id


def open_ws(up: Product, tenant: str = "demo", **options: Any) -> Any:
    return ws_client(up.url, up.tokens[tenant], **options)


def facts_of(notes: list[Note]) -> list[Any]:
    return [note.params["fact"] for note in notes if note.method == "run/fact"]


async def whole(client: WsClient, run_id: str, **params: Any) -> tuple[dict[str, Any], list[Note]]:
    """A watch of a run that is over: its hello, and everything up to its end."""
    client.notes.clear()
    hello = await client.watch(run_id, **params)
    return hello, list(await client.until("run/end"))


# --- what is told -------------------------------------------------------------------------------------------------


async def test_what_is_told_is_the_record_as_history_and_sse_have_it(up: Product, demo: Wire, done: str) -> None:
    async with open_ws(up) as client:
        hello, notes = await whole(client, done, from_="start")
    assert hello["outcome"] == "run_terminal"
    assert hello["high_water"]["sequence"] == LAST
    assert facts_of(notes) == await demo.facts(done)
    assert notes[-1].params["reason"] == "run_terminal"
    assert [note.method for note in notes if note.method != "run/fact"] == ["run/synced", "run/end"]
    async with demo.watch(done, **{"from": "start"}) as frames:
        shown = [frame async for frame in frames if frame.event == "fact"]
    cursors = [note.params["cursor"] for note in notes if note.method == "run/fact"]
    assert [frame.data for frame in shown] == facts_of(notes)
    assert [frame.id for frame in shown] == cursors  # one cursor, whatever the door


async def test_without_a_cursor_there_is_the_snapshot_of_http(up: Product, demo: Wire, done: str) -> None:
    snapshot = await demo.snapshot(done)
    async with open_ws(up) as client:
        hello, notes = await whole(client, done)
    assert hello["outcome"] == "snapshot"
    assert notes[0].method == "run/snapshot"
    assert {name: notes[0].params[name] for name in snapshot if name != "cursor"} == {
        name: value for name, value in snapshot.items() if name != "cursor"
    }
    assert facts_of(notes) == []


async def test_a_cut_after_every_message_and_the_union_is_the_log(up: Product, demo: Wire, done: str) -> None:
    """P5: the connection breaks after every single message of the run, and each return gives exactly the rest."""
    record = await demo.facts(done)
    for cut in range(LAST + 2):
        async with open_ws(up) as client:
            await client.watch(done, from_="start", credit=LAST)
            while len(client.notes) < cut and not client.of("run/end"):
                await client.more()
            seen = client.notes[:cut]
            client.socket.transport.abort()
        cursors = [note.params["cursor"] for note in seen if note.method == "run/fact"]
        async with open_ws(up) as client:
            hello, rest = await whole(client, done, **({"cursor": cursors[-1]} if cursors else {"from_": "start"}))
        assert hello["outcome"] == "run_terminal"
        assert not [note for note in rest if note.method == "run/snapshot"]
        assert facts_of(seen) + facts_of(rest) == record


async def test_live_facts_follow_the_history_over_many_short_visits(up: Product, demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch, total = await demo.lease(run_id), 60

    async def produce() -> None:
        await demo.append(run_id, epoch, fact("run.started"))
        for index in range(total):
            done = fact("task.completed", task_id=f"t{index}")
            await demo.append(run_id, epoch, fact("task.created", task_id=f"t{index}"), done)
        await demo.append(run_id, epoch, fact("run.completed"))

    seen: list[int] = []
    cursor = None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        for visit in range(200):
            async with open_ws(up) as client:
                start = {"cursor": cursor} if cursor else {"from_": "start"}
                hello = await client.watch(run_id, credit=3 + visit % 5, **start)
                assert hello["outcome"] in {"resumed", "run_terminal"}
                assert hello["baseline"]["sequence"] == (seen[-1] if seen else 0)
                await client.until("run/fact", "run/end")
                await client.quiet(0.01)
                for note in client.of("run/fact"):
                    seen.append(note.params["fact"]["sequence"])
                    cursor = note.params["cursor"]
                if client.of("run/end"):
                    break
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) == 2 * total + 4


async def test_credit_holds_back_what_is_not_acknowledged_and_nothing_else(up: Product, demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id)
    await demo.append(run_id, epoch, *(fact("task.created", task_id=f"t{index}") for index in range(20)))
    await demo.view(run_id)
    async with open_ws(up) as client:
        slow = (await client.watch(run_id, from_="start", credit=4))["subscription"]
        quick = (await client.watch(run_id, from_="start"))["subscription"]
        await client.facts(4 + 22)
        assert client.sequences(slow) == [1, 2, 3, 4]
        assert client.sequences(quick) == list(range(1, 23))
        while len(client.sequences(slow)) < 22:
            last = client.of("run/fact", slow)[-1]
            before = len(client.sequences(slow))
            await client.ack(slow, last.params["cursor"])
            await eventually(lambda before=before: _more(client, slow, before))
            assert len(client.sequences(slow)) <= before + 4
        assert client.sequences(slow) == list(range(1, 23))


async def _more(client: WsClient, name: str, than: int) -> bool:
    await client.quiet(0.05)
    return len(client.sequences(name)) > than


async def test_previews_show_while_running_and_the_fact_replaces_them(up: Product, demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id)
    await demo.append(run_id, epoch, fact("run.started"), fact("message.started", message_id="m1", role="assistant"))
    async with open_ws(up) as client:
        await client.watch(run_id, previews=True, from_="start")
        await client.until("run/synced")
        words = ["An ", "apple ", "and ", "a ", "pear."]
        for index, word in enumerate(words, start=1):
            one = {
                "preview_id": "p1", "subject": {"kind": "message", "id": "m1"}, "preview_seq": index,
                "operation": "append", "data": word,
            }  # fmt: skip
            body = {"lease_epoch": epoch, "previews": [one]}
            reply = await demo.http.post(f"/v1/runs/{run_id}/previews", json=body)
            assert reply.status_code == 202, reply.text
        await eventually(lambda: _text(client, "".join(words)))
        said = fact("message.completed", message_id="m1", role="assistant", content="Fruit.", preview_id="p1")
        await demo.append(run_id, epoch, said, fact("run.completed"))
        notes = await client.until("run/end")
    assert facts_of(notes)[-2]["payload"]["content"] == "Fruit."
    assert not [note for note in notes[notes.index(client.of("run/fact")[-2]) :] if note.method == "run/preview"]


async def _text(client: WsClient, wanted: str) -> bool:
    await client.quiet(0.05)
    return "".join(note.params["preview"]["data"] for note in client.of("run/preview")) == wanted


# --- cursors and tenants ------------------------------------------------------------------------------------------


async def test_a_changed_cursor_and_a_foreign_one_are_refused_by_name(up: Product, demo: Wire, done: str) -> None:
    other_run = await demo.start_run()
    async with open_ws(up) as client:
        _, notes = await whole(client, done, from_="start")
        cursor = notes[0].params["cursor"]
        version, body, mac = cursor.split(".")
        bad = [
            cursor[:-4], "42", f"{version}.{body}.", f"{version}.{base64.urlsafe_b64encode(b'{}').decode()}.{mac}",
            f"{version}.{body[:-2]}{'A' if body[-2] != 'A' else 'B'}{body[-1]}.{mac}",
        ]  # fmt: skip
        for spoilt in bad:
            with pytest.raises(RpcError) as refused:
                await client.watch(done, cursor=spoilt)
            assert (refused.value.number, refused.value.code) == (-32602, "cursor_invalid")
        for run_id, types in ((other_run, None), (done, "tool.*")):
            with pytest.raises(RpcError) as refused:
                await client.watch(run_id, cursor=cursor, types=types)
            assert (refused.value.number, refused.value.code) == (-32602, "cursor_foreign")


async def test_p9_one_tenant_learns_nothing_of_anothers_by_any_verb(up: Product, demo: Wire, done: str) -> None:
    """P9: what exists and is another's, what does not exist and what is guessed answer alike, for every verb."""
    async with open_ws(up) as client:
        _, notes = await whole(client, done, from_="start")
        cursor = notes[0].params["cursor"]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("run/watch", {}),
        ("run/watch", {"from": "start", "previews": True, "types": "run.*"}),
        ("run/watch", {"cursor": cursor}),
        ("command/submit", {"type": "run.cancel", "idempotency_key": "guess"}),
        ("command/submit", {"type": "no.such", "payload": {}}),
        ("command/submit", {"type": "approval.resolve", "payload": {"approval_id": "a1", "decision": "approved"}}),
    ]
    async with open_ws(up, "other") as client:
        for method, params in asked:
            answers = []
            for run_id in (done, f"run_{uuid.uuid4().hex}", done[:-1], "run_1"):
                with pytest.raises(RpcError) as refused:
                    await client.call(method, run_id=run_id, **params)
                answers.append((refused.value.number, refused.value.message, refused.value.data))
            assert answers[0][2]["code"] == "run_not_found", (method, params)
            assert all(answer == answers[0] for answer in answers), (method, params)
        with pytest.raises(RpcError) as refused:
            await client.ack("sub_1", cursor)
        assert refused.value.code == "not_found"
        with pytest.raises(RpcError) as refused:
            await client.call("auth/renew", token=up.tokens["demo"])
        assert refused.value.code == "forbidden"

    async def audited() -> bool:
        _, shown, _ = await up.cli("audit", "show", "--tenant", "other", "--json")
        records = [json.loads(line) for line in shown.splitlines()]
        found = {(one["action"], one["outcome"]) for one in records if one["target"]["id"] == done}
        return found >= {
            ("GET /v1/runs/*/watch", "run_not_found"), ("POST /v1/runs/*/commands", "run_not_found")
        }  # fmt: skip

    await eventually(audited, within_s=30, every_s=0.5)


async def test_a_cursor_of_another_tenants_run_of_the_same_name_is_foreign(up: Product, demo: Wire) -> None:
    run_id = f"run_{uuid.uuid4().hex}"
    await demo.start_run(run_id=run_id)
    async with up.client("other") as theirs:
        await theirs.start_run(run_id=run_id)
    async with open_ws(up) as mine, open_ws(up, "other") as client:
        await mine.watch(run_id, from_="start")
        cursor = (await mine.facts(1))[0].params["cursor"]
        with pytest.raises(RpcError) as refused:
            await client.watch(run_id, cursor=cursor)
        assert refused.value.code == "cursor_foreign"
        await client.watch(run_id, from_="start")
        assert (await client.facts(1))[0].params["fact"]["tenant_id"] == "other"


async def test_nobody_connects_without_a_token_and_a_page_only_from_here(up: Product) -> None:
    for options, status in [
        ({"key": None}, 401), ({"key": "wrong"}, 401),
        ({"key": up.tokens["demo"], "headers": {"Origin": "https://evil.example"}}, 403),
    ]:  # fmt: skip
        with pytest.raises(InvalidStatus) as refused:
            async with ws_connect(up.url, **options):
                pass
        assert refused.value.response.status_code == status
    async with ws_client(up.url, up.tokens["demo"], headers={"Origin": up.url}) as client:
        assert await client.call("ping") == {}
    token = base64.urlsafe_b64encode(up.tokens["demo"].encode()).decode().rstrip("=")
    async with ws_client(up.url, None, subprotocols=["runlane.v1", f"runlane.bearer.{token}"]) as client:
        assert client.socket.subprotocol == "runlane.v1"


# --- commands -----------------------------------------------------------------------------------------------------


async def test_two_watch_and_one_decides_and_the_second_decision_learns_the_first(up: Product, demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id)
    asked = fact(
        "approval.requested", approval_id="a1", description="pay", risk="high", data={"amount": 5}, editable=False,
        version=1, action_digest="d",
    )  # fmt: skip
    await demo.append(run_id, epoch, fact("run.started"), asked)
    key, decision = f"k-{run_id}", {"approval_id": "a1", "decision": "approved"}
    async with open_ws(up) as one, open_ws(up) as two:
        for client in (one, two):
            await client.watch(run_id, from_="start", min_sequence=demo.written[run_id])
        entry = await one.call(
            "command/submit", run_id=run_id, type="approval.resolve", payload=decision, idempotency_key=key, wait_s=10
        )
        assert entry["status"] == "applied"
        again = await two.call(
            "command/submit", run_id=run_id, type="approval.resolve", payload=decision, idempotency_key=key, wait_s=10
        )
        assert again["command_id"] == entry["command_id"]
        by_http = await demo.http.get("/v1/commands", params={"idempotency_key": key})
        assert by_http.json() == again
        with pytest.raises(RpcError) as refused:
            await two.call(
                "command/submit", run_id=run_id, type="approval.resolve", wait_s=10,
                payload={"approval_id": "a1", "decision": "rejected"},
            )  # fmt: skip
        assert refused.value.code == "already_resolved"
        assert refused.value.data["recorded"]["decision"] == "approved"
        with pytest.raises(RpcError) as refused:
            await two.call("command/submit", run_id=run_id, type="run.pause", idempotency_key=key)
        assert refused.value.code == "idempotency_conflict"
        for client in (one, two):
            await eventually(lambda client=client: _has(client, "approval.resolved"))


async def _has(client: WsClient, type_: str) -> bool:
    await client.quiet(0.05)
    return any(one["type"] == type_ for one in facts_of(client.notes))


# --- a page -------------------------------------------------------------------------------------------------------

IN_A_PAGE = """
async ([url, token, runId]) => await new Promise((resolve) => {
  const encoded = btoa(token).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const socket = new WebSocket(url, ["runlane.v1", "runlane.bearer." + encoded]);
  const heard = [];
  const say = (id, method, params) => socket.send(JSON.stringify({jsonrpc: "2.0", id, method, params}));
  socket.onopen = () => say(1, "initialize", {protocol_version: 1, capabilities: {}});
  socket.onmessage = ({data}) => {
    const message = JSON.parse(data);
    if (message.id === 1) say(2, "run/watch", {run_id: runId, from: "start"});
    if (message.method === "run/fact") heard.push(message.params.fact.type);
    if (message.method === "run/end") resolve([socket.protocol, heard]);
  };
  socket.onclose = () => resolve(["closed", heard]);
})
"""


@pytest.mark.browser
async def test_a_page_of_this_host_follows_a_run_and_a_page_of_another_does_not(up: Product, done: str) -> None:
    async def elsewhere(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    asked = [up.url.replace("http", "ws") + "/v1/ws", up.tokens["demo"], done]
    server = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
    async with server, chromium() as browser:
        page = await browser.new_page()
        await page.goto(up.url)
        protocol, heard = await page.evaluate(IN_A_PAGE, asked)
        assert protocol == "runlane.v1"
        assert heard[2:] == [one["type"] for one in DONE]
        await page.goto(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert await page.evaluate(IN_A_PAGE, asked) == ["closed", []]


# --- the SDK and the terminal -------------------------------------------------------------------------------------


async def test_the_sdk_and_the_terminal_show_over_websocket_what_they_show_over_sse(up: Product, done: str) -> None:
    token = up.tokens["demo"]
    async with HttpTransport(up.url, token) as http:
        states, items = [], []
        for transport in (http, WebSocketTransport(up.url, token)):
            state, seen = RunState(done), []
            async for item in RunReader(transport, done, from_="start"):
                state.apply(item)
                seen.append(item)
            states.append(state.checksum())
            items.append(seen)
        assert items[0] == items[1]
        assert states[0] == states[1] == (await http.get_json(f"/v1/runs/{done}/snapshot"))["checksum"]
    shown = [await up.cli("watch", done, "--from", "start", "--json", "--over", over) for over in ("sse", "websocket")]
    assert shown[0] == shown[1]
    assert len(shown[0][1].splitlines()) == LAST + 3
    code, _, said = await up.cli("watch", "run_nowhere", "--over", "websocket", check=False)
    assert (code, "run_not_found" in said) == (1, True)


# --- the end ------------------------------------------------------------------------------------------------------


async def test_a_server_that_stops_says_so_and_the_same_cursor_continues_after_it(tmp_path: Path) -> None:
    async with product(tmp_path / "state") as running, running.client() as demo:
        run_id = await demo.start_run()
        epoch = await demo.lease(run_id)
        await demo.append(run_id, epoch, fact("run.started"), fact("task.created", task_id="t1"))
        async with open_ws(running) as client, open_ws(running) as idle:
            await client.watch(run_id, from_="start")
            await client.facts(4)
            assert await running.stop() == 0
            assert await client.closed() == (1012, "shutdown")
            assert (await idle.closed())[0] == 1012
            end = client.of("run/end")[0].params
            assert end["reason"] == "shutdown"
            assert end["retry_after_ms"] > 0
        await running.start()
        async with open_ws(running) as client, running.client() as again:
            await again.append(run_id, epoch, fact("task.completed", task_id="t1"))
            hello = await client.watch(run_id, cursor=end["cursor"])
            assert hello["outcome"] == "resumed"
            assert (await client.facts(1))[0].params["fact"]["type"] == "task.completed"
            running.process.kill()  # type: ignore[union-attr]
            assert (await client.closed())[0] == 1006
            assert client.of("run/end") == []  # a lost connection is no end
