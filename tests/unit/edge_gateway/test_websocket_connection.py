"""Who may connect, what nonsense is answered, and how a connection ends."""

import asyncio
import base64
import random
import socket
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from runlane.edge_gateway.memory_view import MemoryView
from runlane.hosting.authorizer import Principal, Right
from runlane_contracts import events
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.runs import Story
from support.websocket import KEY, QUICK, RpcError, WsClient, door

RUN = RunAddress("acme", "run_1")
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def a_view(*more: events.Payload) -> tuple[MemoryView, Story]:
    view = MemoryView()
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted(), *more)
    for commit in story.commits(1):
        view.store(RUN, commit.facts)
    return view, story


def token_protocol(token: str) -> str:
    return "runlane.bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


async def refused(gateway, **options):
    with pytest.raises(InvalidStatus) as found:
        async with gateway.connect(**options):
            pass
    response = found.value.response
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, decode_json(bytes(response.body))["code"], response.headers


# --- who may connect ------------------------------------------------------------------------------------------


async def test_only_who_has_a_valid_token_connects() -> None:
    async with door() as gateway:
        for key in (None, "", "wrong"):
            status, code, headers = await refused(gateway, key=key)
            assert (status, code) == (401, "unauthenticated")
            assert headers["www-authenticate"] == "Bearer"
        assert [(path, code) for _, path, code in gateway.refusals] == [("/v1/ws", Code.UNAUTHENTICATED)] * 3
        async with gateway.client() as client:
            assert await client.call("ping") == {}


async def test_a_page_brings_its_token_as_a_subprotocol_that_is_not_repeated() -> None:
    async with door() as gateway:
        offered = ["runlane.v1", token_protocol(KEY)]
        async with gateway.client(key=None, subprotocols=offered) as client:
            assert client.socket.subprotocol == "runlane.v1"
        for wrong in (token_protocol("wrong"), "runlane.bearer.%%", "runlane.bearer."):
            status, code, _ = await refused(gateway, key=None, subprotocols=["runlane.v1", wrong.replace("%", "!")])
            assert (status, code) == (401, "unauthenticated")


async def test_a_token_in_the_address_is_refused_even_if_it_is_valid() -> None:
    async with door() as gateway, httpx.AsyncClient(trust_env=False) as http:
        headers = {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version": "13",
        }  # fmt: skip
        for query in (f"?token={KEY}", f"?a=1&access_token={KEY}"):
            reply = await http.get(f"{gateway.url}/v1/ws{query}", headers=headers)
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
        assert (await http.get(f"{gateway.url}/v1/nowhere", headers=headers)).status_code == 404
        headers["Sec-WebSocket-Key"] = "short"
        assert (await http.get(f"{gateway.url}/v1/ws", headers=headers)).status_code == 400
        assert (await http.post(f"{gateway.url}/v1/ws", headers=headers)).status_code in {400, 405}
        assert (await http.get(gateway.url)).text == "plain"


async def test_pages_of_other_hosts_are_refused_unless_they_are_named() -> None:
    """Take `check_origin` out of the endpoint to see it fail."""
    async with door(origins=frozenset({"https://ops.example"})) as gateway:
        host = gateway.url.removeprefix("http://")
        for origin in ("https://evil.example", "null", f"http://{host}1", "http://127.0.0.1", "", "http://["):
            status, code, _ = await refused(gateway, headers={"Origin": origin})
            assert (status, code) == (403, "forbidden"), origin
        for origin in (f"http://{host}", f"https://{host}", "https://ops.example", "HTTPS://OPS.example"):
            async with gateway.client(headers={"Origin": origin}) as client:
                assert await client.call("ping") == {}


async def test_a_tenant_has_so_many_connections_and_the_gateway_so_many() -> None:
    limits = replace(QUICK, max_connections_per_tenant=2, max_connections=3)
    async with door(limits=limits) as gateway:
        async with gateway.client(), gateway.client():
            status, code, headers = await refused(gateway)
            assert (status, code) == (429, "quota_exceeded")
            assert int(headers["retry-after"]) >= 1
            async with gateway.client(key="key-other"):
                status, code, headers = await refused(gateway, key="key-other")
                assert (status, code) == (503, "overloaded")
                assert int(headers["retry-after"]) >= 1
        await eventually(lambda: len(gateway.sessions) == 0)
        async with gateway.client():
            pass


# --- the protocol ---------------------------------------------------------------------------------------------


async def test_nothing_is_said_before_initialize_and_nothing_else_is_done() -> None:
    view, _ = a_view()
    async with door(view) as gateway, gateway.connect() as client:
        await client.quiet()
        assert client.notes == []
        assert await client.call("ping") == {}
        for method, params in [("run/watch", {"run_id": "run_1"}), ("command/submit", {}), ("auth/renew", {})]:
            with pytest.raises(RpcError) as found:
                await client.call(method, **params)
            assert (found.value.number, found.value.code) == (-32002, "invalid_state")
        answer = await client.initialize()
        assert answer["protocol_version"] == 1
        assert answer["heartbeat_s"] > 0
        assert {"max_message_bytes", "max_subscriptions", "credit"} <= set(answer["limits"])
        assert (await client.watch("run_1"))["outcome"] == "snapshot"
        with pytest.raises(RpcError) as found:
            await client.initialize()
        assert found.value.code == "invalid_state"


@pytest.mark.parametrize(("asked", "given"), [(1, 1), ("1", "1"), ("1.0", "1.0"), ("2025-06-18", 1), (7, 1), (None, 1)])
async def test_the_server_answers_with_the_version_it_speaks(asked: object, given: object) -> None:
    async with door() as gateway, gateway.connect() as client:
        assert (await client.call("initialize", protocol_version=asked))["protocol_version"] == given


async def test_who_never_says_initialize_is_sent_away() -> None:
    async with door(limits=replace(QUICK, initialize_s=0.1)) as gateway, gateway.connect() as client:
        assert (await client.closed())[0] == 4408


@pytest.mark.parametrize(
    ("text", "number", "id_"),
    [
        ("{not json", -32700, None),
        ("", -32700, None),
        ("[", -32700, None),
        ("[]", -32600, None),
        ("7", -32600, None),
        ('{"jsonrpc":"1.0","id":5,"method":"ping"}', -32600, 5),
        ('{"jsonrpc":"2.0","id":"five"}', -32600, "five"),
        ('{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
        ('{"jsonrpc":"2.0","id":6,"method":"run/fly"}', -32601, 6),
        ('{"jsonrpc":"2.0","id":7,"method":"run/watch","params":{}}', -32602, 7),
        ('{"jsonrpc":"2.0","id":8,"method":"run/watch","params":["run_1"]}', -32602, 8),
        ('{"jsonrpc":"2.0","id":9,"method":"run/watch","params":{"run_id":"run_1","credit":0}}', -32602, 9),
        (
            '{"jsonrpc":"2.0","id":10,"method":"run/watch","params":{"run_id":"run_1","types":["Nonsense!"]}}',
            -32602,
            10,
        ),
        ('{"jsonrpc":"2.0","id":11,"method":"run/watch","params":{"run_id":"run_1","from":"later"}}', -32602, 11),
        ('{"jsonrpc":"2.0","id":12,"method":"ping","params":' + "[" * 200 + "]" * 200 + "}", -32600, None),
        ('{"jsonrpc":"2.0","id":13,"method":"ping","params":7}', -32600, 13),
        ("[" + ",".join(["1"] * 100) + "]", -32600, None),
    ],
)
async def test_nonsense_is_answered_by_number_under_its_id(text: str, number: int, id_: object) -> None:
    view, _ = a_view()
    async with door(view) as gateway, gateway.client() as client:
        await client.send(text)
        message = await client.more()
        assert message["error"]["code"] == number
        assert message["error"]["data"]["code"] in {"invalid_request", "not_found"}
        assert message["error"]["message"]
        assert message["id"] == id_
        assert await client.call("ping") == {}


async def test_a_batch_is_answered_as_one_and_its_watches_begin_after_it() -> None:
    view, story = a_view()
    async with door(view) as gateway, gateway.client() as client:
        await client.send([
            {"jsonrpc": "2.0", "id": "a", "method": "ping"},
            {"jsonrpc": "2.0", "method": "ping"},
            {"jsonrpc": "2.0", "id": None, "method": "ping"},
            7,
            {"jsonrpc": "2.0", "id": "w", "method": "run/watch", "params": {"run_id": "run_1", "from": "start"}},
            {"jsonrpc": "2.0", "id": "v", "method": "run/watch", "params": {"run_id": "run_1"}},
        ])  # fmt: skip
        first = await client.more()
        assert [one.get("id") for one in first] == ["a", None, None, "w", "v"]
        assert first[2]["error"]["code"] == -32600
        assert first[3]["result"]["outcome"] == "resumed"
        await client.facts(len(story.facts))
        await client.until("run/snapshot")
        await client.quiet()
        await client.send([{"jsonrpc": "2.0", "method": "ping"}])
        await client.send([])
        assert (await client.more())["error"]["code"] == -32600  # and nothing for the one before


async def test_a_watch_may_begin_with_the_last_facts_where_an_item_begins() -> None:
    view, story = a_view(
        events.MessageStarted(message_id="m1", role="assistant"),
        events.TaskCreated(task_id="t1"),
        events.MessageCompleted(message_id="m1", role="assistant", content="whole"),
    )
    async with door(view) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", last=1)
        assert hello["baseline"]["sequence"] == len(story.facts) - 3
        assert [one.params["fact"]["sequence"] for one in await client.facts(3)] == [3, 4, 5]


async def test_what_wants_no_answer_gets_none() -> None:
    view, story = a_view(*(events.TaskCreated(task_id=f"t{index}") for index in range(6)))
    async with door(view) as gateway, gateway.client() as client:
        hello = await client.watch("run_1", from_="start", credit=2)
        facts = await client.facts(2)
        await client.tell("run/ack", subscription=hello["subscription"], cursor=facts[1].params["cursor"])
        await client.facts(4)
        await client.tell("run/ack", subscription="sub_9", cursor="nonsense")
        await client.tell("run/watch", run_id="run_1")
        await client.tell("no/such")
        await client.quiet()
        assert client.answers == {}
        assert len(client.of("run/fact")) == 4
        assert gateway.edge.meters.watchers == 1
        assert len(story.facts) == 8


async def test_binary_frames_are_refused_by_name() -> None:
    async with door() as gateway, gateway.client() as client:
        await client.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        assert (await client.more())["error"]["code"] == -32600
        code, reason = await client.closed()
        assert code == 1003
        assert "binary" in reason


@pytest.mark.parametrize("size", [3_000, 2_000_000])
async def test_a_message_that_is_too_large_closes_the_connection(size: int) -> None:
    limits = replace(QUICK, max_message_bytes=2_000)
    async with door(limits=limits) as gateway, gateway.client() as client:
        await client.send('{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + "x" * size + '"}}')
        assert (await client.closed())[0] == 1009


async def test_compression_is_not_negotiated() -> None:
    async with door() as gateway, gateway.client(headers={"Sec-WebSocket-Extensions": "permessage-deflate"}) as client:
        response = client.socket.response
        assert response is not None
        assert "sec-websocket-extensions" not in response.headers


async def test_more_requests_than_may_be_outstanding_are_refused_and_acknowledgements_are_not() -> None:
    view, _ = a_view()
    limits = replace(QUICK, max_requests=2)
    async with door(view, limits=limits) as gateway, gateway.client() as client:
        go_on = asyncio.Event()
        gateway.commands.wait = go_on.wait
        for index in range(3):
            await client.send(a_command(f"c{index}"))
        with pytest.raises(RpcError) as found:
            await client.answer("c2")
        assert (found.value.number, found.value.code) == (-32001, "overloaded")
        assert found.value.data["retry_after_ms"] > 0
        assert await client.call("ping") == {}
        go_on.set()
        assert (await client.answer("c0"))["status"] == (await client.answer("c1"))["status"] == "accepted"


async def test_a_batch_that_waits_for_nothing_is_never_refused_and_one_that_does_is_in_part() -> None:
    async with door(limits=replace(QUICK, max_requests=2)) as gateway, gateway.client() as client:
        go_on = asyncio.Event()
        gateway.commands.wait = go_on.wait
        for index in range(2):
            await client.send(a_command(f"c{index}"))
        ping = {"jsonrpc": "2.0", "method": "ping"}
        await client.send([ping | {"id": "p1"}, ping | {"id": "p2"}])
        assert [one["result"] for one in await client.more()] == [{}, {}]
        await client.send([ping | {"id": "p3"}, a_command("c3")])
        first, second = await client.more()
        assert (first["result"], second["error"]["code"]) == ({}, -32001)
        await client.send([7, a_command("c4")])
        assert [one["error"]["code"] for one in await client.more()] == [-32600, -32001]
        go_on.set()


async def test_a_fault_of_ours_ends_one_connection_by_name() -> None:
    async with door() as gateway, gateway.client() as client, gateway.client() as other:
        session = max(gateway.sessions._sessions, key=lambda one: one._socket.heard_at)

        def broken(_text: bytes) -> None:
            raise RuntimeError("no")

        session._write = broken  # type: ignore[method-assign]
        await other.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        ended, fine = (other, client) if await _is_closed(other) else (client, other)
        assert (await ended.closed())[0] == 1011
        assert await fine.call("ping") == {}


async def _is_closed(client: WsClient) -> bool:
    try:
        await client.more()
    except ConnectionClosed:
        return True
    return False


async def test_each_of_many_random_calls_gets_one_answer_under_its_id() -> None:
    """A client that says anything at all: every id is answered once, and the connection goes on."""
    view, _ = a_view()
    chance = random.Random(11)
    values = [None, True, 0, -1, 2**70, 1.5, "", "run_1", "sub_1", "c1.x.y", "start", [], ["task.*"], {}, {"a": [1]}]
    names = ["run_id", "cursor", "from", "previews", "types", "credit", "subscription", "token", "type", "payload",
             "wait_s", "protocol_version", "nonsense"]  # fmt: skip
    methods = ["initialize", "ping", "run/watch", "run/ack", "run/unwatch", "command/submit", "auth/renew", "", "rpc.x"]
    async with door(view) as gateway, gateway.client() as client:
        asked = set()
        for number in range(400):
            call = {"jsonrpc": "2.0", "method": chance.choice(methods)}
            if chance.random() < 0.9:
                call["params"] = {chance.choice(names): chance.choice(values) for _ in range(chance.randint(0, 4))}
            if chance.random() < 0.8:
                call["id"] = f"n{number}"
                asked.add(f"n{number}")
            await client.send([call, call | {"id": f"m{number}"}] if chance.random() < 0.1 else call)
        answered: list[object] = []
        async with asyncio.timeout(20):
            while not asked <= set(answered):
                message = await client.more()
                for one in message if isinstance(message, list) else [message]:
                    if "id" in one:
                        answered.append(one["id"])
                        assert ("result" in one) != ("error" in one)
        counted = Counter(one for one in answered if str(one).startswith("n"))
        assert set(counted.values()) == {1}
        assert await client.call("ping") == {}


async def test_an_approval_overtakes_a_flood_of_previews_that_a_slow_client_has_not_taken() -> None:
    """Take the gate out of the pump to see it fail: then all previews are written before the approval is there."""
    view, _ = a_view(events.MessageStarted(message_id="m1", role="assistant"))
    other = Story("acme", "run_2").then(events.RunCreated(agent="a"), events.RunStarted())
    view.store(RunAddress("acme", "run_2"), other.facts)
    asked = events.ApprovalRequested(
        approval_id="a1", description="pay", risk="high", version=1, action_digest="d", data={}, editable=False
    )
    async with door(view, limits=replace(QUICK, heartbeat_s=60)) as gateway, gateway.client(max_queue=1) as client:
        flood = await client.watch("run_1", previews=True)
        calm = await client.watch("run_2", from_="now")
        await client.quiet()
        client.socket.transport.pause_reading()
        session = next(iter(gateway.sessions._sessions))
        for number in range(1, 401):
            preview = {
                "preview_id": f"p{number % 40}", "subject": {"kind": "message", "id": "m1"},
                "preview_seq": number // 40 + 1, "operation": "append", "data": "x" * 8_000,
            }  # fmt: skip
            view.preview(RUN, encode({"previews": [preview]}))
            await asyncio.sleep(0)
            if number == 300:
                await eventually(lambda: session._socket.is_paused)
                view.store(RunAddress("acme", "run_2"), other.then(asked).facts[-1:])
        await asyncio.sleep(0.05)
        client.socket.transport.resume_reading()
        await client.until("run/fact")
        before = len(client.of("run/preview", flood["subscription"]))
        await client.quiet()
        assert client.of("run/fact", calm["subscription"])[0].params["fact"]["type"] == "approval.requested"
        assert len(client.of("run/preview", flood["subscription"])) > before  # there were more to come after it
        assert client.of("run/preview_gap", flood["subscription"])


# --- commands -------------------------------------------------------------------------------------------------


def a_command(id_: str, **params: object) -> dict[str, object]:
    asked = {"run_id": "run_1", "type": "run.cancel", **params}
    return {"jsonrpc": "2.0", "id": id_, "method": "command/submit", "params": asked}


async def test_a_command_is_the_request_that_http_would_make() -> None:
    async with door() as gateway, gateway.client() as client:
        entry = await client.call(
            "command/submit", run_id="run_1", type="approval.resolve", payload={"approval_id": "a1"}, wait_s=3,
            idempotency_key="k1", meta={"via": "ws"}, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        )  # fmt: skip
        assert entry == {"command_id": "cmd_1", "status": "accepted"}
        path, headers, body = gateway.commands.requests[0]
        assert path == "/v1/runs/run_1/commands"
        assert headers["authorization"] == f"Bearer {KEY}"
        assert headers["prefer"] == "wait=3"
        assert headers["traceparent"].startswith("00-1")
        assert body == {
            "type": "approval.resolve", "payload": {"approval_id": "a1"}, "idempotency_key": "k1", "meta": {"via": "ws"}
        }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "code", "number"),
    [
        (404, "run_not_found", -32000), (409, "already_resolved", -32000), (400, "invalid_request", -32602),
        (429, "quota_exceeded", -32001), (503, "overloaded", -32001), (500, "internal", -32603),
    ],
)  # fmt: skip
async def test_a_refused_command_keeps_its_code(status: int, code: str, number: int) -> None:
    async with door() as gateway, gateway.client() as client:
        gateway.commands.status = status
        gateway.commands.answer = {"code": code, "status": status, "title": "t", "recorded": {"decision": "approved"}}
        gateway.commands.headers = {"Retry-After": "3"} if status in {429, 503} else {}
        with pytest.raises(RpcError) as found:
            await client.call("command/submit", run_id="run_1", type="run.cancel")
        assert (found.value.number, found.value.code) == (number, code)
        assert found.value.data["recorded"] == {"decision": "approved"}
        assert found.value.data.get("retry_after_ms") == (3000 if status in {429, 503} else None)


async def test_a_run_id_that_is_none_never_becomes_a_path() -> None:
    async with door() as gateway, gateway.client() as client:
        for run_id in ("../x", "a/b", "", "run 1\r\nX: y"):
            with pytest.raises(RpcError) as found:
                await client.call("command/submit", run_id=run_id, type="run.cancel")
            assert found.value.code == "run_not_found"
        assert gateway.commands.requests == []


async def test_a_command_gateway_that_breaks_is_an_error_and_not_the_end() -> None:
    async def broken() -> None:
        raise RuntimeError("no")

    async with door() as gateway, gateway.client() as client:
        gateway.commands.wait = broken
        with pytest.raises(RpcError) as found:
            await client.call("command/submit", run_id="run_1", type="run.cancel")
        assert (found.value.number, found.value.code) == (-32603, "internal")
        assert "no" not in found.value.message.split()
        gateway.commands.wait, gateway.commands.answer, gateway.commands.status = None, "nonsense", 502
        with pytest.raises(RpcError) as found:
            await client.call("command/submit", run_id="run_1", type="run.cancel")
        assert found.value.code == "upstream_unavailable"


# --- credentials ----------------------------------------------------------------------------------------------


async def test_rights_count_for_each_method() -> None:
    view, _ = a_view()
    async with door(view) as gateway, gateway.client(key="key-operator") as client:
        with pytest.raises(RpcError) as found:
            await client.watch("run_1")
        assert found.value.code == "forbidden"
        assert ("GET", "/v1/runs/run_1/watch", Code.FORBIDDEN) in gateway.refusals
        assert (await client.call("command/submit", run_id="run_1", type="run.cancel"))["status"] == "accepted"


async def test_each_watch_is_authorized_anew() -> None:
    view, _ = a_view()
    async with door(view, tick_s=60) as gateway, gateway.client() as client:
        await client.watch("run_1")
        keys = gateway.keyring.principals
        keys[KEY] = replace(keys[KEY], rights=frozenset({Right.OPERATE}))
        with pytest.raises(RpcError) as found:
            await client.watch("run_1")
        assert found.value.code == "forbidden"
        del keys[KEY]
        with pytest.raises(RpcError) as found:
            await client.watch("run_1")
        assert found.value.code == "unauthenticated"


async def test_a_revoked_key_ends_its_watches_and_then_the_connection() -> None:
    view, story = a_view()
    async with door(view) as gateway, gateway.client() as client:
        await client.watch("run_1", from_="start")
        await client.facts(len(story.facts))
        del gateway.keyring.principals[KEY]
        code, reason = await client.closed()
        assert (code, reason) == (4401, "the token was revoked")
        end = client.of("run/end")[0]
        assert end.params["reason"] == "unauthorized"
        assert end.params["cursor"] == client.of("run/fact")[-1].params["cursor"]


async def test_a_token_that_expires_warns_first_and_then_ends_everything() -> None:
    view, _ = a_view()
    now = [NOW]
    async with door(view, limits=replace(QUICK, expiry_warning_s=60)) as gateway:
        gateway.keyring.now = lambda: now[0]
        gateway.keyring.principals["short"] = Principal("acme", "s", expires_at=NOW + timedelta(seconds=100))
        async with gateway.client(key="short") as client:
            await client.watch("run_1")
            await client.quiet()
            assert client.of("auth/expiring") == []
            now[0] = NOW + timedelta(seconds=50)
            notice = (await client.until("auth/expiring"))[-1].params
            assert notice == {"expires_at": "2026-03-01T00:01:40.000000Z", "expires_in_s": 50.0}
            now[0] = NOW + timedelta(seconds=101)
            assert await client.closed() == (4401, "the token expired")
            assert len(client.of("auth/expiring")) == 1
            assert client.of("run/end")[0].params["reason"] == "unauthorized"


async def test_a_renewed_token_keeps_the_connection() -> None:
    view, story = a_view()
    now = [NOW]
    async with door(view) as gateway:
        gateway.keyring.now = lambda: now[0]
        keys = gateway.keyring.principals
        keys["short"] = Principal("acme", "s", expires_at=NOW + timedelta(seconds=30))
        keys["longer"] = Principal("acme", "s", expires_at=NOW + timedelta(seconds=1000))
        async with gateway.client(key="short") as client:
            await client.watch("run_1", from_="start")
            await client.until("auth/expiring")
            assert await client.call("auth/renew", token="longer") == {"expires_at": "2026-03-01T00:16:40.000000Z"}
            now[0] = NOW + timedelta(seconds=60)
            await client.quiet()
            view.store(RUN, story.then(events.TaskCreated(task_id="t")).facts[-1:])
            await client.facts(len(story.facts))
            await client.call("command/submit", run_id="run_1", type="run.cancel")
            assert gateway.commands.requests[0][1]["authorization"] == "Bearer longer"
            assert len(client.of("auth/expiring")) == 1


async def test_a_token_of_another_tenant_or_of_nobody_renews_nothing() -> None:
    view, _ = a_view()
    async with door(view) as gateway, gateway.client() as client:
        for token, code in (("key-other", "forbidden"), ("wrong", "unauthenticated")):
            with pytest.raises(RpcError) as found:
                await client.call("auth/renew", token=token)
            assert found.value.code == code
        assert [(path, str(code)) for _, path, code in gateway.refusals] == [
            ("/v1/ws", "forbidden"), ("/v1/ws", "unauthenticated")
        ]  # fmt: skip
        assert (await client.watch("run_1"))["outcome"] == "snapshot"


async def test_who_is_refused_is_answered_once_the_audit_has_it() -> None:
    """Take `stored` out of `Methods._note`, or out of the endpoint, to see it fail."""
    kept: list[str] = []

    class Noted:
        async def stored(self) -> None:
            await asyncio.sleep(0.02)
            kept.append("stored")

    async with door() as gateway:
        gateway.noted = Noted()
        async with gateway.client() as client:
            for number, (method, params) in enumerate(
                [("run/watch", {"run_id": "absent"}), ("auth/renew", {"token": "key-other"})], start=1
            ):
                with pytest.raises(RpcError):
                    await client.call(method, **params)
                assert len(kept) == number
        await refused(gateway, key="wrong")
        assert len(kept) == 3


async def test_a_token_with_lesser_rights_ends_what_it_does_not_allow() -> None:
    view, _ = a_view()
    async with door(view) as gateway, gateway.client() as client:
        gateway.edge.lost = lambda one: None if one.may(Right.VIEW) else Code.FORBIDDEN
        await client.watch("run_1")
        assert await client.call("auth/renew", token="key-operator") == {}
        end = (await client.until("run/end"))[-1]
        assert end.params["reason"] == "unauthorized"
        with pytest.raises(RpcError) as found:
            await client.watch("run_1")
        assert found.value.code == "forbidden"
        assert (await client.call("command/submit", run_id="run_1", type="run.cancel"))["status"] == "accepted"


# --- the end --------------------------------------------------------------------------------------------------


async def test_shutting_down_says_end_with_a_cursor_and_closes() -> None:
    view, story = a_view()
    async with door(view) as gateway, gateway.client() as client, gateway.client() as idle:
        await client.watch("run_1", from_="start")
        await client.facts(len(story.facts))
        await gateway.sessions.shut_down()
        assert await client.closed() == (1012, "shutdown")
        end = client.of("run/end")[0].params
        assert end["reason"] == "shutdown"
        assert end["cursor"] == client.of("run/fact")[-1].params["cursor"]
        assert 500 <= end["retry_after_ms"] <= 2000
        assert (await idle.closed())[0] == 1012
        status, code, _ = await refused(gateway)
        assert (status, code) == (503, "overloaded")


async def test_a_lifetime_ends_a_connection_with_its_cursor() -> None:
    view, _ = a_view()
    async with door(view, limits=replace(QUICK, lifetime_s=1.0)) as gateway, gateway.client() as client:
        await client.watch("run_1")
        assert (await client.closed())[0] == 1001
        assert client.of("run/end")[0].params["reason"] == "lifetime"


async def test_a_client_that_reads_nothing_is_ended_with_its_cursor_and_holds_little() -> None:
    """Take `is_paused` out of the pump to see it fail: what the gateway holds is then all that there is."""
    view, story = a_view(*(events.TaskCreated(task_id=f"t{index}", title="x" * 4_000) for index in range(2_000)))
    limits = replace(QUICK, stall_s=0.5, heartbeat_s=60, credit=100_000)
    async with door(view, limits=limits) as gateway, gateway.client(max_queue=1) as client:
        raw: socket.socket = client.socket.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        await client.watch("run_1", from_="start")
        client.socket.transport.pause_reading()
        session = next(iter(gateway.sessions._sessions))
        most = 0
        async with asyncio.timeout(15):
            while not session._over.done():
                most = max(most, session._socket.backlog_bytes)
                await asyncio.sleep(0.01)
        assert most < 256 * 1024
        client.socket.transport.resume_reading()
        code, _ = await client.closed()
        assert code in {1006, 1008}
        assert gateway.edge.meters.slow_readers == 1
        if code == 1008:
            end = client.of("run/end")[0].params
            assert end["reason"] == "slow_reader"
            assert end["cursor"] == client.of("run/fact")[-1].params["cursor"]
            assert len(client.of("run/fact")) < len(story.facts)


async def test_a_client_that_is_gone_without_a_word_is_noticed() -> None:
    limits = replace(QUICK, heartbeat_s=0.1, dead_after=20)
    async with door(limits=limits) as gateway, gateway.client(close_timeout=0.1) as client:
        await client.quiet(0.6)
        assert len(gateway.sessions) == 1  # pings are answered by themselves
        client.socket.transport.pause_reading()  # as if the cable was cut
        await eventually(lambda: len(gateway.sessions) == 0)


async def test_a_flood_of_pings_from_who_does_not_read_piles_up_nothing() -> None:
    view, _ = a_view(*(events.TaskCreated(task_id=f"t{index}", title="x" * 4_000) for index in range(500)))
    async with (
        door(view, limits=replace(QUICK, heartbeat_s=60)) as gateway,
        gateway.client(close_timeout=0.1) as client,
    ):
        await client.watch("run_1", from_="start")
        client.socket.transport.pause_reading()
        session = next(iter(gateway.sessions._sessions))
        await eventually(lambda: session._socket.is_paused)
        before = session._socket.backlog_bytes
        for _ in range(5_000):
            await client.socket.ping()
        await asyncio.sleep(0.3)
        assert session._socket.backlog_bytes <= before + 4_096


async def test_a_command_that_was_handed_on_is_finished_though_its_client_is_gone() -> None:
    async with door() as gateway:
        go_on, done = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            await go_on.wait()
            done.set()

        gateway.commands.wait = slow
        async with gateway.client() as client:
            await client.send(a_command("c"))
            await eventually(lambda: gateway.commands.requests)
            client.socket.transport.abort()
        await eventually(lambda: len(gateway.sessions) == 0)
        go_on.set()
        async with asyncio.timeout(5):
            await done.wait()


async def test_who_says_goodbye_and_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take `_linger` out of the protocol to see it fail: the connection stays, with what is buffered for it."""
    monkeypatch.setattr("runlane.hosting.websocket_protocol.LINGER_S", 0.1)
    view, _ = a_view(*(events.TaskCreated(task_id=f"t{index}", title="x" * 4_000) for index in range(2_000)))
    limits = replace(QUICK, heartbeat_s=60)
    async with door(view, limits=limits) as gateway, gateway.client(close_timeout=0.1) as client:
        await client.watch("run_1", from_="start")
        client.socket.transport.pause_reading()
        session = next(iter(gateway.sessions._sessions))
        await eventually(lambda: session._socket.is_paused)
        client.socket.protocol.send_close(1000)
        client.socket.transport.write(b"".join(client.socket.protocol.data_to_send()))
        await eventually(lambda: session._socket.disconnected)


async def test_one_connection_that_cannot_be_looked_at_does_not_end_the_looking() -> None:
    async with door() as gateway, gateway.client() as client, gateway.client(key="key-other") as other:
        session = next(one for one in gateway.sessions._sessions if one.principal.tenant_id == "acme")

        def broken(*_: object) -> None:
            raise RuntimeError("no")

        session.tick = broken  # type: ignore[method-assign]
        await client.call("ping")
        del gateway.keyring.principals["key-other"]
        assert (await other.closed())[0] == 4401


async def test_a_client_that_leaves_in_the_middle_of_everything_leaves_nothing_behind() -> None:
    view, _ = a_view()
    async with door(view) as gateway:
        go_on = asyncio.Event()
        gateway.commands.wait = go_on.wait
        async with gateway.client() as client:
            await client.watch("run_1")
            await client.send(a_command("c"))
            await eventually(lambda: gateway.commands.requests)
            client.socket.transport.abort()
        await eventually(lambda: len(gateway.sessions) == 0)
        await eventually(lambda: gateway.edge.meters.watchers == 0)
