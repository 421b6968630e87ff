"""A live program behind the bridge: questions answered from the log, cancellation, an end that is no success."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from runlane.adapters.bridge import Bridge
from runlane.adapters.dialogue import ClaudeDialogue, CodexDialogue
from runlane.adapters.process import JsonLineProcess
from runlane.adapters.scribe import Scribe
from runlane_contracts import codec, events, lifecycle
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import FactDraft, RunLifecycle, draft

CLAUDE = """
import json, sys
def say(m): print(json.dumps(m), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "user":
        say({"type": "user", "message": m["message"], "uuid": "u1", "isReplay": True})
        text = {"type": "text", "text": "may I?"}
        tool = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
        for block in (text, tool): say({"type": "assistant", "message": {"id": "m1", "content": [block]}})
        ask = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "t1"}
        say({"type": "control_request", "request_id": "q1", "request": ask})
    elif m["type"] == "control_response":
        answer = m["response"]["response"]
        say(m)  # the program repeats what it was answered
        if answer["behavior"] == "allow":
            done = {"type": "tool_result", "tool_use_id": "t1", "content": answer["updatedInput"]["command"]}
            say({"type": "user", "message": {"content": [done]}})
        say({"type": "result", "subtype": "success", "result": answer.get("message", "done")})
    elif m["type"] == "control_request" and m["request"]["subtype"] == "interrupt":
        break
"""


class FakeRun:
    """A run in memory that somebody else may write to."""

    def __init__(self) -> None:
        self.run = RunLifecycle(tenant_id="demo", run_id="r")
        self.log: list[Fact] = []
        self.previews: list[str] = []
        self._grown = asyncio.Event()
        self.write([draft(events.RunCreated(agent="a")), draft(events.RunLeased(lease_epoch=1, worker_id="w"))])

    def write(self, drafts: list[FactDraft]) -> None:
        facts = lifecycle.place(self.run, drafts, lease_epoch=1, actor=Actor(kind="agent", id="a"),
                                occurred_at="2026-01-01T00:00:00Z",
                                event_ids=[f"e{self.run.sequence + n}" for n in range(len(drafts))])  # fmt: skip
        self.run.evolve(facts)
        self.log += facts
        self._grown.set()

    async def append(self, *facts: FactDraft) -> None:
        lifecycle.validate(facts)
        self.write(lifecycle.admit(self.run, facts, lease_epoch=1))

    def publish_preview(self, kind: str, id: str, data: Any = None, *, preview_id: str) -> None:  # noqa: A002
        self.previews.append(data)

    async def facts(self) -> AsyncIterator[Fact]:
        at = 0
        while True:
            while at < len(self.log):
                yield self.log[at]
                at += 1
            self._grown.clear()
            await self._grown.wait()

    async def until(self, type_: str) -> events.Payload:
        for _ in range(500):
            for fact in self.log:
                if fact.type == type_:
                    return events.decode_payload(type_, fact.payload)  # type: ignore[return-value]
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {type_} in {[f.type for f in self.log]}")


def resolution(asked: events.ApprovalRequested, decision: str, **kw: Any) -> FactDraft:
    return draft(events.ApprovalResolved(approval_id=asked.approval_id, decision=decision, decided_by="user:x",
                                         version=asked.version, **kw))  # fmt: skip


async def drive(run: FakeRun, code: str, dialogue: Any = None) -> None:
    dialogue = dialogue or ClaudeDialogue("hello")
    async with JsonLineProcess([sys.executable, "-u", "-c", code], grace_s=0.5) as process, Scribe(run) as scribe:
        await Bridge(dialogue, process, scribe).run()


@pytest.mark.parametrize(
    ("decision", "extra", "last_tool", "output"),
    [
        ("approved", {}, ("tool.completed", "ls"), "done"),
        ("modified", {"data": {"command": "ls -l"}}, ("tool.completed", "ls -l"), "done"),
        ("rejected", {"reason": "not now"}, ("tool.cancelled", None), "not now"),
    ],
)
async def test_the_program_gets_the_decision_that_is_in_the_log(
    decision: str, extra: dict[str, Any], last_tool: tuple[str, str | None], output: str
) -> None:
    run = FakeRun()
    driving = asyncio.ensure_future(drive(run, CLAUDE))
    asked = await run.until("approval.requested")
    assert isinstance(asked, events.ApprovalRequested)
    assert run.run.status == "waiting"
    run.write([resolution(asked, decision, **extra)])
    await driving
    tools = [f for f in run.log if f.type in {"tool.completed", "tool.cancelled"}]
    assert [f.type for f in tools] == [last_tool[0]]
    assert [f.type for f in run.log].count("run.resumed") == 1
    if last_tool[1] is not None:
        assert msgspec.json.decode(tools[0].payload)["result"] == last_tool[1]
    assert run.run.status == "completed"
    assert msgspec.json.decode(run.log[-1].payload)["output"] == {"text": output}


async def test_a_cancelled_run_ends_the_program_also_while_it_asks() -> None:
    run = FakeRun()
    driving = asyncio.ensure_future(drive(run, CLAUDE))
    await run.until("approval.requested")
    run.write([draft(events.RunCancelRequested(deadline_at="2026-01-01T00:00:30Z"))])
    await asyncio.wait_for(driving, 5)
    assert run.run.status == "cancelled"
    assert not run.run.open_items


@pytest.mark.parametrize(
    ("code", "words"),
    [("import sys; print('no key', file=sys.stderr); sys.exit(3)", "exit code 3: no key"), ("pass", "exit code 0")],
)
async def test_the_end_of_the_program_without_a_result_is_a_failed_run(code: str, words: str) -> None:
    run = FakeRun()
    await drive(run, code)
    assert run.run.status == "failed"
    assert words in msgspec.json.decode(run.log[-1].payload)["error"]["message"]


async def test_what_the_bridge_cannot_do_is_refused_not_left_hanging() -> None:
    asked = {"type": "control_request", "request_id": "q", "request": {"subtype": "hook_callback"}}
    (refusal,) = ClaudeDialogue("x").react(asked)
    assert refusal["response"]["subtype"] == "error"
    codex = CodexDialogue("x", cwd="/")
    (refusal,) = codex.react({"id": 9, "method": "item/tool/requestUserInput", "params": {}})
    assert refusal["error"]["code"] == -32601
    assert codex.react({"method": "turn/started", "params": {}}) == []


def test_codex_is_led_through_its_handshake() -> None:
    codex = CodexDialogue("hello", cwd="/w", model="m")
    (first,) = codex.opening()
    initialized, thread = codex.react({"id": first["id"], "result": {}})
    assert (initialized["method"], thread["params"]["cwd"], thread["params"]["model"]) == ("initialized", "/w", "m")
    (turn,) = codex.react({"id": thread["id"], "result": {"thread": {"id": "th"}}})
    assert turn["params"] == {"threadId": "th", "input": [{"type": "text", "text": "hello"}]}
    assert codex.interrupt() == []
    assert codex.react({"id": turn["id"], "result": {"turn": {"id": "tu"}}}) == []
    assert codex.interrupt()[0]["params"] == {"threadId": "th", "turnId": "tu"}
    assert not codex.is_over({"method": "turn/started"})
    assert codex.is_over({"method": "turn/completed", "params": {}})
    assert codec.encode(codex.opening())
