"""The spans of one demo run at a real OTLP receiver: its worker is killed, its approval waits, the tree stays whole."""

import itertools
import json
from pathlib import Path

import pytest

from support.collector import collector, tree
from support.product import fact, product

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SECRET = "sk-proj-" + "Zq3vT8wK1nB6mD4xR9sJ2hF7" * 2
CONTENT = {
    "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result",
}  # fmt: skip
CLIENT, UNSAMPLED = f"00-{'ab' * 16}-{'cd' * 8}-01", f"00-{'ef' * 16}-{'cd' * 8}-00"


async def test_the_spans_of_a_demo_run_arrive_complete_and_in_one_tree(tmp_path: Path, monkeypatch) -> None:
    """Taken out, one after the other: `sending` in the gateway's intake; the replaced `traceparent` in the
    supervisor's handler; `measured` around the filter's handler; `_leave_span` of the edge gateway; links in
    `_tenure_span`; closing the telemetry in the composition. Each time another line below fails.
    """
    async with collector(tmp_path) as taps:
        monkeypatch.setenv("RUNLANE_TELEMETRY_ENDPOINT", taps.url)
        monkeypatch.setenv("RUNLANE_TELEMETRY_INTERVAL_S", "1")
        monkeypatch.setenv("RUNLANE_METRICS_AGGREGATOR_CONTENT_TENANTS", "other")
        async with product(tmp_path / "state") as up:
            _, out, _ = await up.cli("demo", "--crash", "--json")
            run_id = json.loads(out.splitlines()[-1])["run_id"]
            async with up.client() as wire:
                view = await wire.view(run_id)
                await _runs_of_clients(wire)
            async with up.client("other") as wire:
                await _run_that_shows_content(wire)
            await taps.wait(
                lambda seen: (
                    {"invoke_agent order-desk", "invoke_agent mine", "invoke_agent open"} <= {one.name for one in seen}
                )
            )
            await taps.wait(lambda _: {"runlane_runs", "runlane_commit_duration_seconds"} <= taps.metrics())
        spans = taps.spans()  # the product has stopped: what waited was sent
        said = taps.text
    mine = [one for one in spans if one.trace_id == view["trace_id"]]
    found = tree(spans, view["trace_id"])
    assert "?" not in found, "a parent is missing"
    assert found[""] == ["POST /v1/runs"]
    assert found["POST /v1/runs"] == ["send RL_COMMAND"]
    assert found["send RL_COMMAND"] == ["process RL_COMMAND"]
    assert {"invoke_agent order-desk", "send RL_LOG_0", "process RL_LOG_0", "process RL_VIEW_0"} <= set(
        found["process RL_COMMAND"]
    )
    inside = found["invoke_agent order-desk"]
    assert [name for name in inside if name.startswith(("execute_tool", "runlane."))] == [
        "execute_tool charge_card", "execute_tool reserve_stock", "execute_tool send_receipt",
        "runlane.approval", *["runlane.attempt"] * inside.count("runlane.attempt"),
    ]  # fmt: skip
    assert {"send RL_LOG_0", "process RL_LOG_0", "process RL_VIEW_0", "deliver rl.live"} <= set(inside)
    _check_owners(mine)
    _check_approval(mine, spans)
    assert all(one.attributes["messaging.system"] == "nats" for one in mine if one.name.startswith("process"))
    assert all(one.started_ns <= one.ended_ns for one in spans)
    # Content: what the demo's agent handles never leaves by this road.
    assert "Charge" not in said
    assert "receipt for" not in said
    assert "CANARY-7f3a" not in said
    assert SECRET not in said
    _check_clients(spans)
    _check_content(spans)


def _check_owners(mine) -> None:
    owners = sorted((one for one in mine if one.name == "runlane.attempt"), key=lambda one: one.started_ns)
    assert len(owners) >= 2
    assert {one.attributes["runlane.worker_id"].rsplit("-", 1)[0] for one in owners} == {"worker-a", "worker-b"}
    for before, after in itertools.pairwise(owners):
        assert (before.span_id, "previous_owner") in after.links
    charge = next(one for one in mine if one.name == "execute_tool charge_card")
    linked = [span_id for span_id, reason in charge.links if reason == "owner"]
    assert len(linked) == 2, "begun by one owner, finished by another"
    assert set(linked) <= {one.span_id for one in owners}
    assert charge.attributes["gen_ai.operation.name"] == "execute_tool"
    assert charge.attributes["gen_ai.tool.name"] == "charge_card"


def _check_approval(mine, spans) -> None:
    approval = next(one for one in mine if one.name == "runlane.approval")
    (decided_by,) = [span_id for span_id, reason in approval.links if reason == "decided_by"]
    decision = next(one for one in spans if one.span_id == decided_by)
    assert (decision.name, decision.attributes["runlane.command_type"]) == ("process RL_COMMAND", "approval.resolve")
    path = {one.span_id: one for one in spans}
    assert path[path[decision.parent_id].parent_id].name == "POST /v1/runs/{run_id}/commands"


async def _runs_of_clients(wire) -> None:
    """One brings a trace that is not recorded, one brings a recorded one."""
    for traceparent in (UNSAMPLED, CLIENT):
        body = {"agent": "mine", "input": "CANARY-7f3a", "dispatch": "external"}
        reply = await wire.http.post("/v1/runs", json=body, headers={"traceparent": traceparent})
        run_id = reply.json()["run_id"]
        epoch = await wire.lease(run_id)
        await wire.append(run_id, epoch, fact("run.started"), fact("run.completed"))


async def _run_that_shows_content(wire) -> None:
    """Its tenant wants content on spans; what is masked for people is masked there."""
    reply = await wire.http.post("/v1/runs", json={"agent": "open", "input": "two plums", "dispatch": "external"})
    run_id = reply.json()["run_id"]
    epoch = await wire.lease(run_id)
    said = {
        "message_id": "m1",
        "role": "assistant",
        "content": f"Plums. {SECRET}",
        "model": "gpt-5",
        "provider": "openai",
    }
    call = {"tool_call_id": "c1", "name": "weigh", "arguments": {"fruit": "plum", "n": 2}}
    await wire.append(
        run_id, epoch, fact("run.started"), fact("message.completed", **said), fact("tool.requested", **call),
        fact("tool.completed", tool_call_id="c1", result={"grams": 71}), fact("run.completed", output={"plums": 2}),
    )  # fmt: skip


def _check_content(spans) -> None:
    """Taken out: `wants` in `Contents`, then the runs of the other tenant show theirs, too."""
    with_content = [one for one in spans if CONTENT & one.attributes.keys()]
    assert {one.attributes["runlane.tenant_id"] for one in with_content} == {"other"}
    shown = {one.name: one.attributes for one in with_content}
    assert set(shown) == {"invoke_agent open", "chat gpt-5", "execute_tool weigh"}
    asked, told = (json.loads(shown["invoke_agent open"][f"gen_ai.{way}.messages"]) for way in ("input", "output"))
    assert asked == [{"role": "user", "parts": [{"type": "text", "content": "two plums"}]}]
    assert told[0]["parts"] == [{"type": "text", "content": '{"plums":2}'}]
    (said,) = json.loads(shown["chat gpt-5"]["gen_ai.output.messages"])
    assert (said["role"], said["finish_reason"]) == ("assistant", "stop")
    assert said["parts"][0]["content"].startswith("Plums. [")
    call = shown["execute_tool weigh"]
    assert json.loads(call["gen_ai.tool.call.arguments"]) == {"fruit": "plum", "n": 2}
    assert json.loads(call["gen_ai.tool.call.result"]) == {"grams": 71}


def _check_clients(spans) -> None:
    theirs = [one for one in spans if one.attributes.get("gen_ai.agent.name") == "mine"]
    assert {one.trace_id for one in theirs} == {"ab" * 16}
    assert [one.name for one in spans if one.trace_id == "ab" * 16 and one.parent_id == "cd" * 8] == ["POST /v1/runs"]
    assert [one for one in spans if one.trace_id == "ef" * 16] == []
