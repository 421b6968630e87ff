"""Each recording, mapped and folded, holds the recorded texts, tool calls and approvals."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runlane.adapters.mapping import Decided, FactDraft, Fragment, ModelSaid
from runlane.adapters.pydantic_ai import PydanticAIMapping
from runlane.adapters.recordings import mapping_for, statements
from runlane_contracts import codec, events, lifecycle, reducer
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import RunLifecycle, draft

RECORDINGS = Path(__file__).parents[2] / "fixtures" / "recordings"
LOOKED = "I will look at the folder first, then write down what is in it. "
FOUND = "The folder holds one file, notes.txt, with three lines. Nothing else needs doing, so I stop here. " * 3
WEATHER = "It is 12 degrees in Oslo, and what was asked about the file is settled.  "


def fold(name: str) -> tuple[dict[str, Any], list[Fragment], list[FactDraft]]:
    """State after the whole recording, written as a lease holder would write it."""
    run = RunLifecycle(tenant_id="demo", run_id="r")
    state = reducer.initial_state("demo", "r")
    fragments: list[Fragment] = []
    drafts: list[FactDraft] = []

    def write(some: list[FactDraft], epoch: int) -> None:
        facts = lifecycle.place(run, some, lease_epoch=epoch, actor=Actor(kind="agent", id="a"),
                                occurred_at="2026-01-01T00:00:00.000000Z",
                                event_ids=[f"evt_{run.sequence + i}" for i in range(len(some))])  # fmt: skip
        run.evolve(facts)
        for fact in facts:
            reducer.reduce(state, codec.decode_fact(codec.encode(fact)))

    write([draft(events.RunCreated(agent="a"))], 0)
    write([draft(events.RunLeased(lease_epoch=1, worker_id="w"))], 0)
    for said in statements(RECORDINGS / f"{name}.jsonl", mapping_for(Path(name))):
        for one in said:
            if isinstance(one, Fragment):
                fragments.append(one)
            elif isinstance(one, Decided):
                asked = run.approvals[one.approval_id].request
                write([draft(events.ApprovalResolved(approval_id=one.approval_id, decision=one.decision,
                                                     decided_by="user:x", version=asked.version))], 0)  # fmt: skip
            else:
                drafts.append(one)
                lifecycle.validate([one])
                write(lifecycle.admit(run, [one], lease_epoch=1), 1)
    return state, fragments, drafts


def texts(state: dict[str, Any], role: str) -> list[str]:
    return [i["content"] for i in state["items"].values() if i["kind"] == "message" and i.get("role") == role]


def test_claude_code_folds_to_what_it_said_and_did() -> None:
    state, fragments, _ = fold("claude-stream-json")
    assert texts(state, "user") == ["What is in this folder?"]
    assert texts(state, "assistant") == [LOOKED, FOUND]
    tool = state["items"]["tool:toolu_0001"]
    assert (tool["status"], tool["name"]) == ("completed", "Bash")
    assert tool["arguments"]["command"] == "touch made-by-agent.txt && ls -la"
    assert "made-by-agent.txt" in tool["result"]
    (approval,) = [i for i in state["items"].values() if i["kind"] == "approval"]
    assert (approval["status"], approval["tool_call_id"]) == ("approved", "toolu_0001")
    assert state["run"]["status"] == "completed"
    assert state["run"]["output"] == {"text": FOUND}
    assert "".join(f.text for f in fragments) == LOOKED + FOUND


@pytest.mark.parametrize(
    ("name", "said_by"),
    [
        ("claude-stream-json", ("scripted-model", "anthropic")),
        ("codex-app-server", ("scripted-model", "local")),
        ("pydantic-ai-events", (None, None)),
    ],
)
def test_a_message_says_of_which_model_it_is_where_the_program_tells(
    name: str, said_by: tuple[str | None, str | None]
) -> None:
    """Its beginning and its end; what a person said says nothing."""
    drafts = [one for one in fold(name)[2] if one.type in {"message.started", "message.completed"}]
    payloads = [(one.type, codec.decode_json(one.payload)) for one in drafts]
    found = {(type_, one.get("model"), one.get("provider")) for type_, one in payloads if one["role"] == "assistant"}
    assert found == {("message.started", *said_by), ("message.completed", *said_by)}
    assert not [one for _, one in payloads if one["role"] == "user" and "model" in one]


def test_a_pydantic_ai_agent_s_messages_are_of_its_model() -> None:
    mapping = PydanticAIMapping(ModelSaid.of("gemini-3-pro", "google-gla"))
    said = [
        *mapping.feed({"event_kind": "part_start", "index": 0, "part": {"part_kind": "text", "content": ""}}),
        *mapping.feed({"event_kind": "part_end", "index": 0, "part": {"part_kind": "text", "content": "Hi."}}),
    ]
    payloads = [codec.decode_json(one.payload) for one in said if isinstance(one, FactDraft)]
    assert [(one["model"], one["provider"]) for one in payloads] == [("gemini-3-pro", "gcp.gemini")] * 2


@pytest.mark.parametrize("nothing", [None, "", 7, {"a": 1}])
def test_what_is_no_name_of_a_model_says_nothing(nothing: Any) -> None:
    assert ModelSaid.of(nothing, nothing) == ModelSaid(None, None)
    assert ModelSaid.of("m" * 999).model == "m" * 256


def test_codex_folds_to_what_it_said_and_did() -> None:
    state, fragments, _ = fold("codex-app-server")
    assert texts(state, "user") == ["What is in this folder?"]
    assert texts(state, "assistant") == [LOOKED, FOUND]
    tool = state["items"]["tool:call_0001"]
    assert (tool["status"], tool["result"]["exit_code"]) == ("completed", 0)
    assert "made-by-agent.txt" in tool["result"]["output"]
    (approval,) = [i for i in state["items"].values() if i["kind"] == "approval"]
    assert approval["status"] == "approved"
    assert state["run"]["status"] == "completed"
    assert "".join(f.text for f in fragments if f.kind == "message") == LOOKED + FOUND


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("pydantic-ai-events", {"c1": ("get_weather", "12 C in Oslo")}),
        (
            "pydantic-ai-deferred-approval",
            {"c1": ("get_weather", "12 C in Oslo"), "c2": ("delete_file", "deleted old.txt")},
        ),
        ("pydantic-ai-testmodel", {"pyd_ai_tool_call_id__get_weather": ("get_weather", "12 C in a")}),
    ],
)
def test_pydantic_ai_folds_to_what_it_said_and_did(name: str, tools: dict[str, tuple[str, str]]) -> None:
    state, fragments, _ = fold(name)
    assert {i["id"]: (i["name"], i["result"]) for i in state["items"].values() if i["kind"] == "tool"} == tools
    assert state["run"]["status"] == "completed"
    assert state["run"]["output"] == texts(state, "assistant")[-1]
    if name != "pydantic-ai-testmodel":
        assert state["run"]["output"] == WEATHER
    assert "".join(f.text for f in fragments) == "".join(texts(state, "assistant"))
    approvals = [i["status"] for i in state["items"].values() if i["kind"] == "approval"]
    assert approvals == (["approved"] if name == "pydantic-ai-deferred-approval" else [])


@pytest.mark.parametrize("name", sorted(p.stem for p in RECORDINGS.glob("*.jsonl")))
def test_every_preview_names_the_fact_that_replaces_it(name: str) -> None:
    _, fragments, drafts = fold(name)
    replaced = {msgspec.json.decode(d.payload).get("preview_id") for d in drafts}
    assert {f.preview_id for f in fragments} <= replaced


@pytest.mark.parametrize("name", sorted(p.stem for p in RECORDINGS.glob("*.jsonl")))
def test_a_recording_that_is_cut_off_is_a_failed_run(name: str, tmp_path: Path) -> None:
    whole = (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    cut = tmp_path / f"{name}.jsonl"
    cut.write_bytes(b"".join(whole[: len(whole) // 2]))
    *_, last = statements(cut, mapping_for(cut))
    assert [one.type for one in last] == ["run.failed"]


def test_an_unknown_message_is_counted_and_says_nothing() -> None:
    for name in ("claude", "codex", "pydantic-ai"):
        mapping = mapping_for(Path(name))
        message = {"type": "novel", "event_kind": "novel", "method": "novel/thing"}
        assert mapping.feed(message) == []
        assert sum(mapping.ignored.values()) == 1


def test_facts_stay_whole_on_the_wire() -> None:
    state, _, _ = fold("codex-app-server")
    assert codec.decode_json(codec.encode(state)) == state
    assert isinstance(Fact, type)
