"""What a client may send and what it hears, against the whole product: bodies, keys, leases, previews, races."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.product import Product, Wire, fact

pytestmark = pytest.mark.asyncio(loop_scope="module")

START = {"agent": "a", "dispatch": "external"}
TURN = fact("turn.started", turn_id="t")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other(up: Product) -> AsyncIterator[Wire]:
    async with up.client("other") as wire:
        yield wire


async def a_running_run(wire: Wire) -> tuple[str, int]:
    run_id = await wire.start_run()
    epoch = await wire.lease(run_id)
    await wire.append(run_id, epoch, fact("run.started"))
    return run_id, epoch


async def send(wire: Wire, path: str, body: bytes | Any, method: str = "POST", **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await wire.http.request(
        method, path, content=content, headers={"content-type": "application/json", **headers}
    )


def problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, f"{reply.status_code} {reply.text}"
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert (body["code"], body["status"]) == (code, status)
    if status in {429, 503}:
        assert int(reply.headers["retry-after"]) >= 1
    return body


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


NOT_A_BODY = [b"", b"null", b"[]", b'"x"', b"7", b"{", b'{"a":1} x', b"\xef\xbb\xbf{}", b"\xff", nested(100_000)]


# --- starts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", NOT_A_BODY)
@pytest.mark.parametrize("verb", ["start", "commands", "lease", "events", "previews", "claim"])
async def test_what_is_no_body_is_refused_on_every_verb(demo: Wire, verb: str, body: bytes) -> None:
    paths = {"start": "/v1/runs", "claim": "/v1/pools/p/claim"}
    path = paths.get(verb) or f"/v1/runs/{await demo.start_run()}/{verb}"
    if verb in {"lease", "claim"} and len(body) > 16_384:
        problem(await send(demo, path, body), 413, "payload_too_large")
    else:
        problem(await send(demo, path, body), 400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b'{"agent":"a","input":NaN}',
        b'{"agent":"a","input":1e400}',
        b'{"agent":"a","input":' + b"9" * 6000 + b"}",
        b'{"agent":"a","input":"\xff"}',
        b'{"agent":"a","input":"\\ud800"}',
        b'{"agent":"a","input":' + nested(200) + b"}",
        {"agent": ""},
        {"agent": None},
        START | {"run_id": "a" * 65},
        START | {"run_id": ""},
        START | {"run_id": "a\n"},
        START | {"run_id": "*"},
        START | {"session_id": "a b"},
        START | {"pool": "a.b"},
        START | {"dispatch": "maybe"},
        START | {"limits": {"cancel_grace_s": -1}},
        START | {"deadline_at": "yesterday"},
        START | {"deadline_at": "2030-02-30T00:00:00Z"},
        START | {"idempotency_key": ""},
        START | {"misspelt": 1},
    ],
)
async def test_a_start_that_makes_no_sense_is_refused_at_once(demo: Wire, body: Any) -> None:
    problem(await send(demo, "/v1/runs", body), 400, "invalid_request")


@pytest.mark.parametrize("key", ["", "x" * 201])
async def test_a_key_has_1_to_200_characters(demo: Wire, key: str) -> None:
    problem(await send(demo, "/v1/runs", START, **{"Idempotency-Key": key}), 400, "invalid_request")


@pytest.mark.parametrize("run_id", ["a", "-", "_", "0" * 64, "A-Za-z0-9_-"])
async def test_a_client_brings_its_own_run_id(demo: Wire, run_id: str) -> None:
    own = {"run_id": run_id, "session_id": run_id, "idempotency_key": f"own {run_id}"}
    reply = await send(demo, "/v1/runs", START | own)
    assert (reply.status_code, reply.json()["run_id"]) == (201, run_id)
    created = (await demo.facts(run_id))[0]
    assert (created["run_id"], created["session_id"]) == (run_id, run_id)
    assert created["payload"] == {"agent": "a", "input": None, "pool": "default", "dispatch": "external"}


@pytest.mark.parametrize(
    ("prefer", "status"),
    [("wait=0", 202), ("wait=5", 201), ("WAIT = 5", 201), ('respond-async, wait="5"', 201), ("wait=x", 201)],
)
async def test_a_start_waits_as_long_as_preferred(demo: Wire, prefer: str, status: int) -> None:
    reply = await send(demo, "/v1/runs", START, Prefer=prefer)
    assert reply.status_code == status
    assert ("sequence" in reply.json(), "cursor" in reply.json()) == (status == 201, status == 201)


async def test_twenty_equal_starts_are_one_run(demo: Wire) -> None:
    key = uuid.uuid4().hex
    replies = await asyncio.gather(*(send(demo, "/v1/runs", START, **{"Idempotency-Key": key}) for _ in range(20)))
    assert {reply.status_code for reply in replies} == {201}
    assert len({(r.json()["run_id"], r.json()["command_id"], r.json()["cursor"]) for r in replies}) == 1
    assert [one["type"] for one in await demo.facts(replies[0].json()["run_id"])] == ["run.created"]
    for changed in ({"agent": "b"}, {"run_id": "mine"}, {"session_id": "s"}, {"input": 1}):
        problem(await send(demo, "/v1/runs", START | changed, **{"Idempotency-Key": key}), 409, "idempotency_conflict")


async def test_of_twenty_who_want_one_run_id_one_gets_it(demo: Wire) -> None:
    body = START | {"run_id": f"r{uuid.uuid4().hex}"}
    replies = await asyncio.gather(*(send(demo, "/v1/runs", body) for _ in range(20)))
    assert sorted(reply.status_code for reply in replies) == [201, *[409] * 19]
    assert {reply.json().get("code") for reply in replies} == {None, "already_exists"}


async def test_one_run_id_of_two_tenants_is_two_runs(demo: Wire, other: Wire) -> None:
    body, key = START | {"run_id": f"r{uuid.uuid4().hex}"}, uuid.uuid4().hex
    mine, theirs = await asyncio.gather(
        send(demo, "/v1/runs", body | {"input": "demo's"}, **{"Idempotency-Key": key}),
        send(other, "/v1/runs", body | {"input": "other's"}, **{"Idempotency-Key": key}),
    )
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert mine.json()["command_id"] != theirs.json()["command_id"]
    run_id = body["run_id"]
    epoch = await other.lease(run_id)
    await other.append(run_id, epoch, fact("run.started"), fact("run.completed"))
    assert (await demo.view(run_id))["status"] == "created"
    assert (await other.view(run_id))["input"] == "other's"
    problem(await other.http.get(f"/v1/commands/{mine.json()['command_id']}"), 404, "command_not_found")
    by_key = await other.http.get("/v1/commands", params={"idempotency_key": key})
    assert by_key.json()["command_id"] == theirs.json()["command_id"]
    for path in ("watch", "events"):
        reply = await other.http.get(f"/v1/runs/{run_id}/{path}", params={"cursor": mine.json()["cursor"]})
        problem(reply, 422, "cursor_foreign")


# --- appends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "index"),
    [
        (b"null", 1),
        (b'"x"', 1),
        (b"{}", 1),
        (b'{"type":7}', 1),
        (b'{"type":"no.such"}', 1),
        (b'{"type":"approval.resolved","payload":{}}', 1),
        (b'{"type":"log.compacted","payload":{}}', 1),
        (b'{"type":"run.resumed","payload":null}', 1),
        (b'{"type":"run.resumed","payload":[]}', 1),
        (b'{"type":"run.resumed","schema_version":2}', 1),
        (b'{"type":"run.resumed","event_id":"a b"}', 1),
        (b'{"type":"run.resumed","event_id":""}', 1),
        (b'{"type":"run.resumed","event_id":"' + b"a" * 65 + b'"}', 1),
        (b'{"type":"run.resumed","event_id":"first"}', 1),
        (b'{"type":"run.resumed","occurred_at":"2020-13-01T00:00:00Z"}', 1),
        (b'{"type":"run.resumed","classification":"secretish"}', 1),
        (b'{"type":"run.resumed","actor":{"kind":"system","id":"me"}}', 1),
        (b'{"type":"run.resumed","traceparent":"x\\r\\nNats-Msg-Id: forged"}', 1),
        (b'{"type":"run.resumed","payload":{"unknown":1e999}}', 1),
        (b'{"type":"run.resumed","payload":{"unknown":' + b"9" * 6000 + b"}}", 1),
        (b'{"type":"run.resumed","payload":{"unknown":' + nested(129) + b"}}", 1),
        (b'{"type":"run.resumed","payload":{"unknown":"\xff"}}', None),
        (b'{"type":"run.resumed","payload":{},"unknown":"\xff"}', None),
    ],
)
async def test_an_event_that_could_not_be_read_again_is_refused_and_writes_nothing(
    demo: Wire, event: bytes, index: int | None
) -> None:
    run_id, epoch = await a_running_run(demo)
    first = b'{"type":"turn.started","event_id":"first","payload":{"turn_id":"t"}}'
    body = b'{"lease_epoch":%d,"events":[%b,%b]}' % (epoch, first, event)
    assert problem(await send(demo, f"/v1/runs/{run_id}/events", body), 400, "invalid_request").get("index") == index
    assert [one["type"] for one in await demo.facts(run_id)] == ["run.created", "run.leased", "run.started"]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"events": []}, 400, "invalid_request"),
        ({"events": [TURN] * 1001}, 400, "invalid_request"),
        ({"events": None}, 400, "invalid_request"),
        ({"lease_epoch": "1"}, 400, "invalid_request"),
        ({"lease_epoch": -1}, 400, "invalid_request"),
        ({"lease_epoch": True}, 400, "invalid_request"),
        ({"lease_epoch": 0}, 409, "lease_fenced"),
        ({"lease_epoch": 99}, 409, "lease_fenced"),
        ({"lease_epoch": 10**30}, 409, "lease_fenced"),
        ({"expected_sequence": -1}, 400, "invalid_request"),
        ({"expected_sequence": "3"}, 400, "invalid_request"),
        ({"expected_sequence": 0}, 409, "sequence_conflict"),
        ({"expected_sequence": 10**30}, 409, "sequence_conflict"),
        ({"events": [fact("run.completed"), TURN]}, 400, "invalid_request"),
        ({"events": [fact("artifact.created", artifact_id="a", content="x" * 66_000)]}, 413, "payload_too_large"),
        ({"events": [fact("plan.updated", version=1, steps=["x" * 2_200_000])]}, 413, "payload_too_large"),
    ],
)
async def test_an_append_that_cannot_be_is_named(demo: Wire, change: dict[str, Any], status: int, code: str) -> None:
    run_id, epoch = await a_running_run(demo)
    body = {"lease_epoch": epoch, "events": [TURN]} | change
    told = problem(await send(demo, f"/v1/runs/{run_id}/events", body), status, code)
    assert told.get("current_sequence") == (3 if code == "sequence_conflict" else None)
    assert len(await demo.facts(run_id)) == 3


async def test_a_thousand_events_are_one_append_and_say_what_they_were(demo: Wire) -> None:
    run_id, epoch = await a_running_run(demo)
    placed = await demo.append(run_id, epoch, *(fact("turn.started", turn_id=f"t{n}") for n in range(1000)))
    assert [one["sequence"] for one in placed] == list(range(4, 1004))
    facts = await demo.facts(run_id)
    assert [one["event_id"] for one in facts[3:]] == [one["event_id"] for one in placed]
    assert facts[-1]["subject"] == {"kind": "turn", "id": "t999", "revision": 1}


async def test_identity_comes_from_the_token_and_the_path_never_from_the_body(demo: Wire) -> None:
    run_id, epoch = await a_running_run(demo)
    forged = {"tenant_id": "other", "run_id": "theirs", "sequence": 99, "lease_epoch": 9, "session_id": "x"}
    await demo.append(run_id, epoch, TURN | forged | {"recorded_at": "2000-01-01T00:00:00Z"})
    last = (await demo.facts(run_id))[-1]
    assert (last["tenant_id"], last["run_id"], last["sequence"], last["lease_epoch"]) == ("demo", run_id, 4, epoch)
    assert "session_id" not in last
    assert last["recorded_at"] > "2020"


async def test_repeats_are_answered_as_the_first_time_and_half_repeats_are_conflicts(demo: Wire) -> None:
    run_id, epoch = await a_running_run(demo)
    batch = [TURN | {"event_id": f"{uuid.uuid4().hex}"} for _ in range(3)]
    path, body = f"/v1/runs/{run_id}/events", {"lease_epoch": epoch, "events": batch, "expected_sequence": 3}
    replies = await asyncio.gather(*(send(demo, path, body) for _ in range(20)))
    assert {(reply.status_code, reply.text) for reply in replies} == {(200, replies[0].text)}
    for mixed in ([batch[0], TURN | {"event_id": "new"}], [batch[2], TURN]):
        problem(await send(demo, path, body | {"events": mixed}), 409, "idempotency_conflict")
    await demo.append(run_id, epoch, fact("run.completed"))
    assert (await send(demo, path, body)).text == replies[0].text
    assert [one["event_id"] for one in (await demo.facts(run_id))[3:6]] == [one["event_id"] for one in batch]


async def test_of_twenty_who_expect_one_sequence_one_writes(demo: Wire) -> None:
    run_id, epoch = await a_running_run(demo)
    path, body = f"/v1/runs/{run_id}/events", {"lease_epoch": epoch, "events": [TURN], "expected_sequence": 3}
    replies = await asyncio.gather(*(send(demo, path, body) for _ in range(20)))
    assert sorted(reply.status_code for reply in replies) == [200, *[409] * 19]
    assert {reply.json().get("current_sequence") for reply in replies} == {None, 4}


# --- commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"type": None}, 400, "invalid_request"),
        ({"type": "run.explode"}, 400, "invalid_request"),
        ({"type": "run.pause", "payload": None}, 400, "invalid_request"),
        ({"type": "run.pause", "payload": {"x": 1}}, 400, "invalid_request"),
        ({"type": "message.send"}, 400, "invalid_request"),
        ({"type": "message.send", "payload": {"content": 1}, "meta": []}, 400, "invalid_request"),
        ({"type": "message.send", "payload": {"content": 1}, "idempotency_key": 5}, 400, "invalid_request"),
        (b'{"type":"message.send","payload":{"content":1e999}}', 400, "invalid_request"),
        (b'{"type":"message.send","payload":{"content":"\xff"}}', 400, "invalid_request"),
        (b'{"type":"message.send","payload":{"content":' + nested(200) + b"}}", 400, "invalid_request"),
        ({"type": "message.send", "payload": {"content": "x" * 1_100_000}}, 413, "payload_too_large"),
        ({"type": "approval.resolve", "payload": {"approval_id": "a", "decision": "expired"}}, 400, "invalid_request"),
        ({"type": "approval.revoke", "payload": {"approval_id": "a"}}, 400, "invalid_request"),
        ({"type": "approval.revoke", "payload": {"approval_id": "a", "reason": ""}}, 404, "approval_not_found"),
        ({"type": "tool.retry", "payload": {"tool_call_id": "c"}}, 404, "not_found"),
        ({"type": "input.provide", "payload": {"input_id": "i", "value": 1}}, 404, "not_found"),
        ({"type": "run.resume"}, 409, "invalid_state"),
    ],
)
async def test_a_command_that_cannot_be_is_named_at_once(demo: Wire, body: Any, status: int, code: str) -> None:
    run_id, _ = await a_running_run(demo)
    path = f"/v1/runs/{run_id}/commands"
    problem(await send(demo, path, body, Prefer="wait=3"), status, code)
    after = await send(demo, path, {"type": "message.send", "payload": {"content": "hi"}}, Prefer="wait=3")
    assert after.status_code == 200, "what was refused holds up nobody"


async def test_the_deepest_command_is_applied_and_read(demo: Wire) -> None:
    run_id, _ = await a_running_run(demo)
    content = json.loads(nested(127))
    assert (await demo.command(run_id, "message.send", {"content": content})).status_code == 200
    assert (await demo.facts(run_id))[-1]["payload"]["content"] == content


async def test_twenty_equal_commands_have_one_effect(demo: Wire) -> None:
    run_id, _ = await a_running_run(demo)
    path, key = f"/v1/runs/{run_id}/commands", uuid.uuid4().hex
    body = {"type": "message.send", "payload": {"content": "once"}, "idempotency_key": key}
    replies = await asyncio.gather(*(send(demo, path, body, Prefer="wait=5") for _ in range(20)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["applied_through"] for reply in replies}) == 1
    assert [one["payload"]["content"] for one in (await demo.facts(run_id))[3:]] == ["once"]
    spelt = b'{ "payload": {"content" : "once"}, "type":"message.send" }'
    assert (await send(demo, path, spelt, **{"Idempotency-Key": key})).json()["status"] == "applied"
    problem(await send(demo, path, {"type": "run.pause"}, **{"Idempotency-Key": key}), 409, "idempotency_conflict")
    problem(await send(demo, path, body, **{"Idempotency-Key": "another"}), 400, "invalid_request")


async def test_an_accepted_command_is_a_ledger_entry_that_settles(demo: Wire) -> None:
    run_id, _ = await a_running_run(demo)
    reply = await send(demo, f"/v1/runs/{run_id}/commands", {"type": "message.send", "payload": {"content": 1}})
    entry = reply.json()
    assert (reply.status_code, entry["status"], entry["type"], entry["run_id"]) == (
        202, "accepted", "message.send", run_id,
    )  # fmt: skip
    for _ in range(100):
        found = (await demo.http.get(f"/v1/commands/{entry['command_id']}")).json()
        if found["status"] == "applied":
            break
        await asyncio.sleep(0.05)
    async with demo.watch(run_id, cursor=found["applied_through"]) as frames:
        hello = await anext(frames)
    assert (hello.data["outcome"], hello.data["baseline"]["sequence"]) == ("resumed", found["applied_sequence"])


# --- leases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"ttl_s": 5},
        *({"worker_id": worker_id} for worker_id in ("", "a b", "a.b", "w" * 65, 7, None)),
        *({"worker_id": "w", "ttl_s": ttl_s} for ttl_s in (0, -1, 0.1, 1e9, "5", None)),
    ],
)
async def test_a_lease_has_a_worker_and_a_time_within_bounds(demo: Wire, body: Any) -> None:
    problem(await send(demo, f"/v1/runs/{await demo.start_run()}/lease", body), 400, "invalid_request")


async def test_only_its_holder_keeps_gives_back_and_previews(demo: Wire) -> None:
    run_id = await demo.start_run()
    lease, epoch = f"/v1/runs/{run_id}/lease", await demo.lease(run_id, "w")
    held = {"worker_id": "w", "lease_epoch": epoch}
    for nobody in (held | {"worker_id": "v"}, held | {"lease_epoch": epoch + 1}, held | {"lease_epoch": 0}):
        for method in ("PUT", "DELETE"):
            problem(await send(demo, lease, nobody, method), 409, "lease_fenced")
    told = problem(await send(demo, lease, {"worker_id": "w", "ttl_s": 5}), 409, "lease_held")
    assert told["retryable"] is True
    kept = await send(demo, lease, held, "PUT")
    assert (kept.status_code, kept.json()["lease_epoch"]) == (200, epoch)
    assert (await send(demo, lease, held, "DELETE")).status_code == 200
    for method in ("PUT", "DELETE"):
        problem(await send(demo, lease, held, method), 409, "lease_fenced")
    appended = await send(demo, f"/v1/runs/{run_id}/events", {"lease_epoch": epoch, "events": [TURN]})
    problem(appended, 409, "lease_fenced")
    assert await demo.lease(run_id, "w") > epoch
    lost = [one["payload"] for one in await demo.facts(run_id) if one["type"] == "run.lease_lost"]
    assert lost == [{"lease_epoch": epoch, "cause": "released"}]
    assert [one["payload"]["attempt"] for one in await demo.facts(run_id) if one["type"] == "run.leased"] == [1, 2]


async def test_the_lease_of_a_run_that_is_over_cannot_be_had(demo: Wire) -> None:
    run_id, epoch = await a_running_run(demo)
    await demo.append(run_id, epoch, fact("run.completed"))
    problem(await send(demo, f"/v1/runs/{run_id}/lease", {"worker_id": "w2", "ttl_s": 5}), 409, "run_terminal")


async def test_a_lease_that_ran_out_is_a_loss_with_its_cause(demo: Wire) -> None:
    run_id = await demo.start_run()
    epoch = await demo.lease(run_id, ttl_s=0.5)
    for _ in range(100):
        types = [one["type"] for one in await demo.facts(run_id)]
        if types[-1] == "run.lease_lost":
            break
        await asyncio.sleep(0.05)
    assert (await demo.facts(run_id))[-1]["payload"] == {"lease_epoch": epoch, "cause": "expired"}


async def test_of_twenty_who_want_the_lease_one_gets_it(demo: Wire) -> None:
    run_id = await demo.start_run()
    bodies = [{"worker_id": f"w{n}", "ttl_s": 5} for n in range(20)]
    replies = await asyncio.gather(*(send(demo, f"/v1/runs/{run_id}/lease", body) for body in bodies))
    assert sorted(reply.status_code for reply in replies) == [201, *[409] * 19]
    assert {reply.json().get("code") for reply in replies} == {None, "lease_held"}
    assert [one["type"] for one in await demo.facts(run_id)] == ["run.created", "run.leased"]


async def test_a_worker_claims_the_work_of_its_tenant_and_pool_only(demo: Wire, other: Wire) -> None:
    pool = f"p{uuid.uuid4().hex[:8]}"
    claim, body = f"/v1/pools/{pool}/claim", {"worker_id": "w", "ttl_s": 0.5, "wait_s": 3}
    started = await send(demo, "/v1/runs", {"agent": "a", "input": {"q": 1}, "pool": pool})
    run_id = started.json()["run_id"]
    assert (await send(other, claim, body | {"wait_s": 0.3})).status_code == 204
    claimed = (await send(demo, claim, body)).json()
    wanted = {"run_id": run_id, "lease_epoch": 1, "agent": "a", "input": {"q": 1}, "sequence": 2}
    assert wanted.items() <= claimed.items()
    again = await send(demo, claim, body | {"wait_s": 15})
    assert (again.json()["run_id"], again.json()["lease_epoch"]) == (run_id, 2), "who falls silent is replaced"
    for wait_s in (-1, 61, "1"):
        problem(await send(demo, claim, body | {"wait_s": wait_s}), 400, "invalid_request")
    problem(await send(demo, "/v1/pools/a.b/claim", body), 400, "invalid_request")


# --- previews -------------------------------------------------------------------------------------------------


def preview(seq: Any = 1, data: Any = "word ", **more: Any) -> dict[str, Any]:
    return {"preview_id": "p1", "subject": {"kind": "message", "id": "m1"}, "preview_seq": seq, "operation": "append",
            "data": data} | more  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        preview(0),
        preview(-1),
        preview(2**53 + 1),
        preview("1"),
        preview(operation="insert"),
        preview(preview_id="a b"),
        preview(fate="committed"),
        preview(subject=None),
        preview(data=json.loads(nested(200)), operation="replace"),
        preview(5, coalesced={"first_seq": 6, "last_seq": 5, "source_count": 1, "truncated": False}),
        preview(5, coalesced={"first_seq": 0, "last_seq": 5, "source_count": 1, "truncated": False}),
    ],
)
async def test_a_preview_that_makes_no_sense_is_refused_by_its_index(demo: Wire, wrong: Any) -> None:
    run_id, epoch = await a_running_run(demo)
    body = {"lease_epoch": epoch, "previews": [preview(), wrong]}
    assert problem(await send(demo, f"/v1/runs/{run_id}/previews", body), 400, "invalid_request")["index"] == 1


async def test_previews_are_bounded_and_fenced(demo: Wire) -> None:
    run_id, epoch = await a_running_run(demo)
    path = f"/v1/runs/{run_id}/previews"
    assert (await send(demo, path, {"lease_epoch": epoch, "previews": []})).status_code == 202
    many = {"lease_epoch": epoch, "previews": [preview()] * 1001}
    problem(await send(demo, path, many), 400, "invalid_request")
    problem(await send(demo, path, {"lease_epoch": epoch, "previews": [preview(data="x" * 1_100_000)]}), 413,
            "payload_too_large")  # fmt: skip
    for wrong in (0, epoch + 1):
        problem(await send(demo, path, {"lease_epoch": wrong, "previews": [preview()]}), 409, "lease_fenced")
    await demo.append(run_id, epoch, fact("run.completed"))
    problem(await send(demo, path, {"lease_epoch": epoch, "previews": [preview()]}), 409, "lease_fenced")
