"""Each recording of a real agent, played through the whole product: what comes out is what was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from runlane.adapters.live import play_recording
from runlane.client import HttpTransport, RunReader
from runlane_contracts import reducer
from runlane_contracts.envelope import Fact
from support.product import Product, product

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "recordings"
LOOKED = "I will look at the folder first, then write down what is in it. "
FOUND = "The folder holds one file, notes.txt, with three lines. Nothing else needs doing, so I stop here. " * 3
WEATHER = "I will look at the weather and then remove the old file.  "
SETTLED = "It is 12 degrees in Oslo, and what was asked about the file is settled.  "

EXPECTED: dict[str, dict[str, Any]] = {
    "claude-stream-json": {"texts": [LOOKED, FOUND], "tools": {"toolu_0001": "Bash"}, "approvals": ["approved"]},
    "codex-app-server": {"texts": [LOOKED, FOUND], "tools": {"call_0001": "shell"}, "approvals": ["approved"]},
    "pydantic-ai-events": {"texts": [WEATHER, SETTLED], "tools": {"c1": "get_weather"}, "approvals": []},
    "pydantic-ai-deferred-approval": {
        "texts": [WEATHER, SETTLED], "tools": {"c1": "get_weather", "c2": "delete_file"}, "approvals": ["approved"],
    },
    "pydantic-ai-testmodel": {
        "texts": ['{"get_weather":"12 C in a"}'], "tools": {"pyd_ai_tool_call_id__get_weather": "get_weather"},
        "approvals": [],
    },
}  # fmt: skip


@pytest.fixture
async def up(tmp_path: Path):
    async with product(tmp_path / "state") as running:
        yield running


async def test_recordings_come_out_as_they_were_recorded(up: Product) -> None:
    async with HttpTransport(up.url, up.tokens["demo"]) as transport, up.client() as wire:
        for name, expected in EXPECTED.items():
            run_id = await play_recording(transport, RECORDINGS / f"{name}.jsonl")
            state = await _folded(transport, run_id)
            items = list(state["items"].values())
            texts = [i["content"] for i in items if i["kind"] == "message" and i.get("role") == "assistant"]
            assert texts == expected["texts"], name
            tools = {i["id"]: i["name"] for i in items if i["kind"] == "tool" and i["status"] == "completed"}
            assert tools == expected["tools"], name
            assert all("result" in i for i in items if i["kind"] == "tool"), name
            assert [i["status"] for i in items if i["kind"] == "approval"] == expected["approvals"], name
            assert state["run"]["status"] == "completed", name
            wire.written[run_id] = state["through_sequence"]
            await _nothing_of_previews_stays(wire, run_id)
            snapshot = await wire.snapshot(run_id)
            assert snapshot["state"] == state, name
            assert snapshot["checksum"] == reducer.checksum(state), name
            _, watched, _ = await up.cli("watch", run_id)
            assert f"state {snapshot['checksum']} through #{snapshot['through_sequence']}" in watched, name


async def _folded(transport: HttpTransport, run_id: str) -> dict[str, Any]:
    state = reducer.initial_state("demo", run_id)
    async with RunReader(transport, run_id, from_="start") as reader:
        async for item in reader:
            if isinstance(item, Fact):
                reducer.reduce(state, item)
    return state


async def _nothing_of_previews_stays(wire: Any, run_id: str) -> None:
    facts = await wire.facts(run_id)
    assert all("preview" not in one["type"] for one in facts)
    shown = json.dumps([facts, await wire.snapshot(run_id), await wire.view(run_id)])
    assert '"preview_seq"' not in shown
    assert '"operation": "append"' not in shown
