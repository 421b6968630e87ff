"""Writing over HTTP: who may, what is refused by which name, and that nothing is written on any refusal."""

import asyncio
import json
from typing import Any

import pytest

from support.write_side import WriteSide, a_waiting_run, eventually, fact, problem, write_side

ABSENT = "run_doesnotexist"
TEXTS = [b"", b"{", b"null", b"[]", b'{"type": 7}', b'{"lease_epoch": "x"}', b"\xff\xfe"]


def requests_about(run_id: str) -> list[tuple[str, str, Any]]:
    """Every verb that writes to a run, with a body that would be taken."""
    return [
        ("POST", f"/v1/runs/{run_id}/commands", {"type": "run.cancel", "payload": {}}),
        ("POST", f"/v1/runs/{run_id}/re-execute", {"from": "input"}),
        ("POST", f"/v1/runs/{run_id}/lease", {"worker_id": "w", "ttl_s": 5}),
        ("PUT", f"/v1/runs/{run_id}/lease", {"worker_id": "w1", "lease_epoch": 1}),
        ("DELETE", f"/v1/runs/{run_id}/lease", {"worker_id": "w1", "lease_epoch": 1}),
        ("POST", f"/v1/runs/{run_id}/events", {"lease_epoch": 1, "events": [fact("run.completed")]}),
        ("POST", f"/v1/runs/{run_id}/previews", {"lease_epoch": 1, "previews": []}),
    ]


async def test_what_another_tenant_owns_answers_as_what_does_not_exist_whatever_is_sent(side: WriteSide) -> None:
    me, they = side.client(), side.client("other")
    run_id, _ = await a_waiting_run(me)
    before = await side.types(run_id)
    for (verb, theirs, body), (_, nobodys, _) in zip(requests_about(run_id), requests_about(ABSENT), strict=True):
        for content in [json.dumps(body).encode(), *TEXTS]:
            first = await they.http.request(verb, theirs, content=content)
            second = await they.http.request(verb, nobodys, content=content)
            problem(first, 404, "run_not_found")
            assert first.text.replace(run_id, "X") == second.text.replace(ABSENT, "X"), (verb, theirs, content)
            assert sorted(first.headers) == sorted(second.headers)
    assert await side.types(run_id) == before


async def test_the_right_is_asked_before_anything_else(side: WriteSide) -> None:
    nobody = side.client()
    nobody.http.headers["Authorization"] = "Bearer wrong"
    for verb, path, _ in [*requests_about(ABSENT), ("POST", "/v1/runs", {}), ("GET", "/v1/commands/x", None),
                          ("POST", "/v1/pools/p/claim", {})]:  # fmt: skip
        problem(await nobody.http.request(verb, path, content=b"{"), 401, "unauthenticated")


@pytest.mark.parametrize("run_id", ["has.dot", "a b", "*", "%0a", "x" * 65, "é"])
async def test_a_path_that_can_name_no_run_names_none(side: WriteSide, run_id: str) -> None:
    me = side.client()
    problem(await me.http.post(f"/v1/runs/{run_id}/commands", json={"type": "run.cancel"}), 404, "run_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"agent": 7}, {}, {"agent": ""}, {"agent": "a", "run_id": "has.dot"}, {"agent": "a", "run_id": "x\n"},
        {"agent": "a", "dispatch": "teleport"}, {"agent": "a", "limits": {"cancel_grace_s": -1}},
        {"agent": "a", "deadline_at": "tomorrow"}, {"agent": "a", "deadline_at": "2026-02-30T00:00:00Z"},
        {"agent": "a", "agnet": "b"}, {"agent": "a", "pool": "a.b"}, {"agent": "a", "session_id": "a b"},
        {"agent": "a", "idempotency_key": ""}, {"agent": "a", "input": {"deep": "[" * 5}, "limits": 7},
    ],
)  # fmt: skip
async def test_a_start_that_does_not_fit_is_invalid(side: WriteSide, body: dict[str, Any]) -> None:
    problem(await side.client().http.post("/v1/runs", json=body), 400, "invalid_request")


async def test_broken_json_is_invalid_and_a_huge_body_too_large(side: WriteSide) -> None:
    me = side.client()
    for content in (b"{not json", b"[" * 100_000, b'{"agent": "a", "input": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"):
        problem(await me.http.post("/v1/runs", content=content), 400, "invalid_request")
    problem(await me.http.post("/v1/runs", json={"agent": "a", "input": "x" * 1_100_000}), 413, "payload_too_large")
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    big = fact("message.completed", message_id="m", role="assistant", content="x" * 3_000_000)
    problem(await me.post_events(run_id, epoch, big), 413, "payload_too_large")
    many = [fact("message.completed", message_id=f"m{n}", role="a", content="x" * 21_000) for n in range(100)]
    problem(await me.post_events(run_id, epoch, *many), 413, "payload_too_large")
    artifact = fact("artifact.created", artifact_id="f", content="x" * 70_000)
    assert problem(await me.post_events(run_id, epoch, artifact), 413, "payload_too_large")["index"] == 0
    assert await side.types(run_id) == ["run.created", "run.leased"]


@pytest.mark.parametrize(
    "event",
    [
        fact("tool.completed"), fact("run.unheard_of"), fact("run.leased", lease_epoch=9, worker_id="w"),
        fact("approval.resolved", approval_id="a", decision="approved", decided_by="me", version=1),
        {"type": "turn.started"}, {"payload": {}}, 7, None, {"type": "turn.started", "payload": {"turn_id": "a.b"}},
        fact("run.started") | {"event_id": "a b"}, fact("run.started") | {"actor": {"kind": "system", "id": "x"}},
        fact("run.started") | {"schema_version": 2}, fact("run.started") | {"occurred_at": "2026-02-30T00:00:00Z"},
        fact("run.started") | {"classification": "secret"}, fact("message.started", message_id="m\n", role="user"),
        fact("approval.requested", approval_id="a", description="d", risk="r", version=1, action_digest="d",
             expires_at="2026-13-01T00:00:00Z"),
    ],
)  # fmt: skip
async def test_one_bad_event_names_its_index_and_nothing_is_written(side: WriteSide, event: Any) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    reply = await me.post_events(run_id, epoch, fact("run.started"), fact("turn.started", turn_id="t"), event)
    assert problem(reply, 400, "invalid_request")["index"] == 2
    assert await side.types(run_id) == ["run.created", "run.leased"]


async def test_what_a_later_version_adds_to_an_event_is_kept(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    event = fact("turn.started", turn_id="t", of_a_later_version=1) | {"session_id": "ses_forged", "later": True}
    await me.append(run_id, epoch, fact("run.started"), event)
    assert (await side.payloads(run_id, "turn.started")) == [{"turn_id": "t", "of_a_later_version": 1}]
    assert {f.session_id for f in await side.facts(run_id)} == {None}


async def test_an_append_says_who_where_and_how_often(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run(agent="writer", session_id="ses_1")
    epoch = await me.lease(run_id)
    events = [fact("run.started") | {"event_id": "evt_1"}, fact("turn.started", turn_id="t") | {"event_id": "evt_2"}]
    first = await me.append(run_id, epoch, *events)
    assert first == [{"event_id": "evt_1", "sequence": 3}, {"event_id": "evt_2", "sequence": 4}]
    assert await asyncio.gather(*(me.append(run_id, epoch, *events) for _ in range(4))) == [first] * 4
    assert await me.append(run_id, 99, *events) == first, "a repeat is answered whatever became of the lease"
    facts = await side.facts(run_id)
    assert [f.sequence for f in facts] == [1, 2, 3, 4]
    assert {f.session_id for f in facts} == {"ses_1"}
    assert (facts[2].actor.kind, facts[2].actor.id, facts[2].lease_epoch) == ("agent", "writer", epoch)
    stale = await me.post_events(run_id, epoch, fact("turn.completed", turn_id="t"), expected_sequence=3)
    assert problem(stale, 409, "sequence_conflict")["current_sequence"] == 4
    problem(await me.post_events(run_id, epoch + 1, fact("run.started")), 409, "lease_fenced")
    mixed = await me.post_events(run_id, epoch, events[0], fact("plan.updated", version=1, steps=[]))
    assert mixed.status_code == 409
    assert len(await side.facts(run_id)) == 4


async def test_the_bounds_of_an_append_hold(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    problem(await me.post_events(run_id, epoch), 400, "invalid_request")
    events = [fact("turn.started", turn_id=f"t{n}") for n in range(1_001)]
    problem(await me.post_events(run_id, epoch, *events), 400, "invalid_request")
    assert len(await me.append(run_id, epoch, *events[:1_000])) == 1_000


@pytest.mark.parametrize("ttl_s", [0, 0.4, -1, 3_601, "x", None, 1e400])
async def test_a_lease_is_neither_too_short_nor_for_ever(side: WriteSide, ttl_s: Any) -> None:
    me = side.client()
    run_id = await me.start_run()
    content = json.dumps({"worker_id": "w", "ttl_s": ttl_s})
    problem(await me.http.post(f"/v1/runs/{run_id}/lease", content=content), 400, "invalid_request")
    assert await side.types(run_id) == ["run.created"]


async def test_a_held_lease_says_until_when_and_what_lost_it_is_fenced_everywhere(side: WriteSide) -> None:
    """P3. To see it fail: let `LeaseDesk._held` not compare epochs and workers, or `lifecycle.admit` not the epochs."""
    me = side.client()
    run_id = await me.start_run()
    old = await me.lease(run_id, "old", ttl_s=0.5)
    held = problem(await me.http.post(f"/v1/runs/{run_id}/lease", json={"worker_id": "old"}), 409, "lease_held")
    assert 0 <= held["retry_after_s"] <= 0.5
    await asyncio.sleep(0.6)
    new = await me.lease(run_id, "new")
    assert new > old
    mine = {"worker_id": "old", "lease_epoch": old}
    preview = {"preview_id": "p", "subject": {"kind": "message", "id": "m"}, "preview_seq": 1, "data": "zombie"}
    for verb, path, body in [
        ("PUT", "lease", mine), ("DELETE", "lease", mine),
        ("PUT", "lease", mine | {"lease_epoch": new}), ("DELETE", "lease", mine | {"lease_epoch": new}),
        ("POST", "events", {"lease_epoch": old, "events": [fact("run.started")]}),
        ("POST", "previews", {"lease_epoch": old, "previews": [preview]}),
    ]:  # fmt: skip
        problem(await me.http.request(verb, f"/v1/runs/{run_id}/{path}", json=body), 409, "lease_fenced")
    mine = {"worker_id": "new", "lease_epoch": new}
    released = await me.http.request("DELETE", f"/v1/runs/{run_id}/lease", json=mine)
    assert released.status_code == 200
    assert await me.lease(run_id) == new + 1


async def test_previews_go_out_and_leave_no_trace(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    heard: list[bytes] = []
    listener = await side.connections.of("redaction_filter")

    async def hear(message: Any) -> None:
        heard.append(message.data)

    await listener.nc.subscribe(f"rl.preview.raw.demo.{run_id}", cb=hear)
    await listener.nc.flush()
    before = len(await side.facts(run_id))
    for n in range(1, 4):
        preview = {"preview_id": "p", "subject": {"kind": "message", "id": "m"}, "preview_seq": n, "data": "x",
                   "tenant_id": "other", "run_id": "another", "lease_epoch": 77}  # fmt: skip
        reply = await me.http.post(f"/v1/runs/{run_id}/previews", json={"lease_epoch": epoch, "previews": [preview]})
        assert (reply.status_code, reply.json()) == (202, {"accepted": 1})

    async def all_of_them() -> bool:
        return sum(len(p["data"]) for raw in heard for p in json.loads(raw)["previews"]) == 3

    await eventually(all_of_them)
    sent = json.loads(heard[0])["previews"][0]
    assert (sent["tenant_id"], sent["run_id"], sent["lease_epoch"]) == ("demo", run_id, epoch)
    assert len(await side.facts(run_id)) == before
    worst = {"preview_id": "p", "subject": {"kind": "m", "id": "m"}, "preview_seq": 0}
    bad = {"lease_epoch": epoch, "previews": [worst]}
    assert problem(await me.http.post(f"/v1/runs/{run_id}/previews", json=bad), 400, "invalid_request")["index"] == 0


async def test_previews_beyond_the_quota_are_refused_by_name() -> None:
    async with write_side(preview_bytes_per_s=1_000, preview_burst_bytes=1_500) as side:
        me = side.client()
        run_id = await me.start_run()
        epoch = await me.lease(run_id)
        preview = {"preview_id": "p", "subject": {"kind": "message", "id": "m"}, "preview_seq": 1, "data": "x" * 600}
        body = {"lease_epoch": epoch, "previews": [preview]}
        replies = [await me.http.post(f"/v1/runs/{run_id}/previews", json=body) for _ in range(4)]
        assert replies[0].status_code == 202
        refused = problem(replies[-1], 429, "quota_exceeded")
        assert int(replies[-1].headers["retry-after"]) >= 1
        assert refused["retryable"]
        await me.append(run_id, epoch, fact("run.started"))


async def test_the_same_run_id_starts_once(side: WriteSide) -> None:
    me = side.client()
    body = {"agent": "a", "input": {}, "run_id": "run_mine", "dispatch": "external"}
    first = await me.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1"})
    again = await me.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert first.json()["sequence"] == 1
    assert first.json()["cursor"].startswith("c1.")
    problem(await me.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k2"}), 409, "already_exists")
    other = body | {"agent": "b"}
    problem(await me.http.post("/v1/runs", json=other, headers={"Idempotency-Key": "k1"}), 409, "idempotency_conflict")
    assert await side.types("run_mine") == ["run.created"]
    theirs = await side.client("other").http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1"})
    assert theirs.status_code == 201, "another tenant's ids are its own"


async def test_a_start_without_a_run_id_is_the_same_run_when_it_is_repeated(side: WriteSide) -> None:
    me = side.client()
    body = {"agent": "a", "dispatch": "external"}
    started = [await me.http.post("/v1/runs", json=body | {"idempotency_key": "once"}) for _ in range(3)]
    assert len({reply.json()["run_id"] for reply in started}) == 1
    different = await me.http.post("/v1/runs", json=body | {"idempotency_key": "a"}, headers={"Idempotency-Key": "b"})
    problem(different, 400, "invalid_request")


async def test_commands_are_looked_up_by_id_and_by_key_within_the_tenant(side: WriteSide) -> None:
    me, they = side.client(), side.client("other")
    run_id = await me.start_run()
    reply = await me.command(run_id, "message.send", {"content": "hi"}, key="k", wait_s=None)
    assert reply.status_code == 202
    command_id = reply.json()["command_id"]
    assert "fingerprint" not in reply.json()

    async def applied() -> Any:
        found = (await me.http.get(f"/v1/commands/{command_id}")).json()
        return found if found["status"] == "applied" else None

    found = await eventually(applied)
    assert found["applied_sequence"] == 2
    assert (await me.http.get("/v1/commands", params={"idempotency_key": "k"})).json() == found
    problem(await they.http.get(f"/v1/commands/{command_id}"), 404, "command_not_found")
    problem(await they.http.get("/v1/commands", params={"idempotency_key": "k"}), 404, "command_not_found")
    problem(await me.http.get("/v1/commands/cmd_unknown"), 404, "command_not_found")
    problem(await me.http.get("/v1/commands/a.b"), 404, "command_not_found")
    problem(await me.http.get("/v1/commands"), 400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"type": "run.explode"}, {"type": "approval.resolve", "payload": {"approval_id": "a", "decision": "maybe"}},
        {"type": "run.cancel", "payload": {"why": 1}}, {"type": "run.cancel", "payload": 7}, {"type": 7},
        {"type": "message.send"}, {"type": "tool.retry", "payload": {"tool_call_id": "a.b"}},
        {"type": "run.cancel", "idempotency_key": "x" * 201}, {"type": "run.cancel", "run_id": "another"},
    ],
)  # fmt: skip
async def test_a_command_that_does_not_fit_is_invalid_and_is_not_in_the_ledger(
    side: WriteSide, body: dict[str, Any]
) -> None:
    me = side.client()
    run_id = await me.start_run()
    reply = await me.http.post(f"/v1/runs/{run_id}/commands", json=body, headers={"Idempotency-Key": "bad"})
    problem(reply, 400, "invalid_request")
    problem(await me.http.get("/v1/commands", params={"idempotency_key": "bad"}), 404, "command_not_found")


async def test_waiting_ends_when_the_client_said_so() -> None:
    async with write_side(supervisor=False) as side:
        me = side.client()
        reply = await me.http.post("/v1/runs", json={"agent": "a"}, headers={"Prefer": "wait=1"})
        assert reply.status_code == 202
        assert reply.json()["status"] == "accepted"


async def test_starts_beyond_the_bounds_are_refused_by_name_and_what_runs_goes_on() -> None:
    async with write_side(starts_per_s=0.01, starts_burst=2) as side:
        me = side.client()
        run_id = await me.start_run()
        epoch = await me.lease(run_id)
        await me.start_run()
        refused = await me.http.post("/v1/runs", json={"agent": "a"})
        problem(refused, 429, "quota_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        await side.client("other").start_run()
        await me.append(run_id, epoch, fact("run.started"), fact("run.completed"))


async def test_a_nearly_full_log_takes_no_new_runs_and_all_facts() -> None:
    async with write_side(full_at=0.001, fullness_every_s=0.1) as side:
        me = side.client()
        run_id = await me.start_run()
        epoch = await me.lease(run_id)
        await me.append(run_id, epoch, fact("message.completed", message_id="m", role="a", content="x" * 200_000))

        async def refused() -> bool:
            reply = await me.http.post("/v1/runs", json={"agent": "a"})
            return reply.status_code == 503 and reply.json()["code"] == "overloaded" and "retry-after" in reply.headers

        await eventually(refused)
        await me.append(run_id, epoch, fact("run.completed"))


async def test_a_broker_that_is_away_is_named_and_what_was_asked_can_be_asked_again(side: WriteSide) -> None:
    me = side.client()
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    event = fact("run.started") | {"event_id": "evt_once"}
    side.server.pause()
    try:
        asking = asyncio.create_task(me.post_events(run_id, epoch, event))
        await asyncio.sleep(0.5)
    finally:
        side.server.cont()
    assert (await asking).status_code in {200, 503}
    assert await me.append(run_id, epoch, event) == [{"event_id": "evt_once", "sequence": 3}]
