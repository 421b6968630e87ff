"""Whatever is sent is answered by name, never as a fault of ours."""

import json
import random
from typing import Any

from runlane_contracts import commands, events
from runlane_contracts.problems import Code
from support.write_side import WriteSide, fact

JUNK: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, 1e300, "", "x", "a.b", "\x00", "\ud800", "9" * 300, [], [[]], {}, {"": None},
    {"id": 7}, "2026-01-01T00:00:00Z", "2026-02-31T00:00:00Z", [{"kind": "approval", "id": "a"}],
]  # fmt: skip


def spoiled(value: Any, chance: random.Random) -> Any:
    """The value with something replaced, left out or added somewhere."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        changed = dict(value)
        key = chance.choice(list(changed))
        match chance.randrange(4):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(["x", "tenant_id", "run_id", "type", "__class__"])] = chance.choice(JUNK)
            case _:
                changed[key] = spoiled(changed[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], spoiled(value[at], chance), *value[at + 1 :]]
    return chance.choice(JUNK)


def bodies(run_id: str) -> list[tuple[str, str, Any]]:
    sample_events = [
        fact(type_, **dict.fromkeys(cls.__struct_fields__, "x"))
        | {"event_id": "e", "occurred_at": "2026-01-01T00:00:00Z"}
        for type_, cls in events.PAYLOADS.items()
    ]
    preview = {"preview_id": "p", "subject": {"kind": "m", "id": "m"}, "preview_seq": 1, "operation": "append",
               "data": "x", "coalesced": {"first_seq": 1, "last_seq": 1, "source_count": 1}}  # fmt: skip
    return [
        ("POST", "/v1/runs", {"agent": "a", "input": {}, "run_id": "r", "pool": "p", "limits": {"cancel_grace_s": 1},
                              "deadline_at": "2099-01-01T00:00:00Z", "dispatch": "external"}),
        *(("POST", f"/v1/runs/{run_id}/commands", {"type": type_, "meta": {}, "idempotency_key": "k",
                                                  "payload": dict.fromkeys(cls.__struct_fields__, "x")})
          for type_, cls in commands.COMMANDS.items()),
        ("POST", f"/v1/runs/{run_id}/lease", {"worker_id": "w", "ttl_s": 5}),
        ("PUT", f"/v1/runs/{run_id}/lease", {"worker_id": "w", "lease_epoch": 1}),
        ("DELETE", f"/v1/runs/{run_id}/lease", {"worker_id": "w", "lease_epoch": 1}),
        *(("POST", f"/v1/runs/{run_id}/events", {"lease_epoch": 1, "expected_sequence": 2, "events": [event]})
          for event in sample_events),
        ("POST", f"/v1/runs/{run_id}/previews", {"lease_epoch": 1, "previews": [preview]}),
        ("POST", "/v1/pools/p/claim", {"worker_id": "w", "ttl_s": 5, "wait_s": 0}),
    ]  # fmt: skip


async def test_spoiled_requests_are_refused_by_name(side: WriteSide) -> None:
    me = side.client()
    chance = random.Random(9)
    run_id = await me.start_run()
    await me.lease(run_id)
    asked = bodies(run_id)
    for _ in range(1_200):
        verb, path, body = chance.choice(asked)
        for _ in range(chance.randrange(1, 3)):
            body = spoiled(body, chance)
        content = json.dumps(body).encode()
        reply = await me.http.request(verb, path, content=content, headers={"Prefer": "wait=1"})
        assert reply.status_code < 500, (verb, path, content, reply.text)
        if reply.status_code >= 400:
            assert reply.json()["code"] in set(Code), reply.text
            assert reply.json()["status"] == reply.status_code
    assert [f.sequence for f in await side.facts(run_id)] == list(range(1, len(await side.facts(run_id)) + 1))
