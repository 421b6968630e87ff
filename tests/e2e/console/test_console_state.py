"""The state in the page: the same as everywhere, to the byte."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from playwright.async_api import Page

from runlane_contracts import events, reducer
from runlane_contracts.codec import encode
from runlane_contracts.timeline import timeline_of
from support.console import RUN, Console, running
from support.runs import Story, payloads, recordings

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

CORPUS = Path(__file__).parents[3] / "contracts" / "fixtures" / "v1" / "reducer"

FOLD = """async ({facts}) => {
  const { initialState, reduce, checksum, adopt } = await import("/reducer.js");
  const { parseJson } = await import("/json.js");
  const all = parseJson(facts);
  const state = initialState(all[0].tenant_id, all[0].run_id);
  const sums = [];
  for (const fact of all) { reduce(state, fact); sums.push(await checksum(state)); }
  return sums;
}"""


CASE = """async ({text}) => {
  const { initialState, reduce, checksum } = await import("/reducer.js");
  const { parseJson, canonicalJson } = await import("/json.js");
  const { facts, checksums, state: expected } = parseJson(text);
  const state = initialState(facts[0].tenant_id, facts[0].run_id);
  const sums = [];
  for (const fact of facts) { reduce(state, fact); sums.push(await checksum(state)); }
  const same = (a, b) => canonicalJson(a) === canonicalJson(b);
  return { checksums: same(sums, checksums), state: same(state, expected) };
}"""


async def sums_in_browser(page: Page, facts: Any) -> list[str]:
    return list(await page.evaluate(FOLD, {"facts": encode(facts).decode()}))


def sums_in_python(facts: Any) -> list[str]:
    state = reducer.initial_state(facts[0].tenant_id, facts[0].run_id)
    sums = []
    for fact in facts:
        reducer.reduce(state, fact)
        sums.append(reducer.checksum(state))
    return sums


async def test_the_browser_passes_the_reducer_corpus(console: Console) -> None:
    page = await console.open("")
    paths = sorted(CORPUS.glob("*.json"))
    assert paths
    for path in paths:
        case = page.evaluate(CASE, {"text": path.read_text(encoding="utf-8")})
        assert await case == {"checksums": True, "state": True}, path.name


async def test_the_browser_folds_recorded_runs_to_the_same_checksum_at_every_sequence(console: Console) -> None:
    page = await console.open("")
    for name, facts in recordings():
        assert await sums_in_browser(page, facts) == sums_in_python(facts), name


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(st.lists(st.lists(payloads, min_size=1, max_size=40), min_size=5, max_size=5))
def made_up_stories(found: list[list[Story]], told: list[list[events.Payload]]) -> None:
    found.append([Story("acme", RUN).then(*one) for one in told])


async def test_p6_the_browser_folds_made_up_runs_to_the_same_checksum_at_every_sequence(console: Console) -> None:
    found: list[list[Story]] = []
    made_up_stories(found)
    page = await console.open("")
    for story in (one for some in found for one in some):
        assert await sums_in_browser(page, story.facts) == sums_in_python(story.facts)


AWKWARD = [
    b'{"a":1.0,"b":-0.0,"c":1e20,"d":9007199254740993,"e":123456789012345678901234567890,"f":1e-6,"g":0.00001}',
    b'{"a":9007199254740992.0,"b":1e16,"c":12345678901234567.0,"d":5e-324,"e":1.7976931348623157e308,"f":-1.5e-7}',
    b'{"a":"9007199254740993, \\"12345678901234567\\": 1","b":[9007199254740993,[-9007199254740993]],"c":0.1}',
    '{"\\ue000":1,"\U0001f600":2,"\uffff":3,"":4,"A":5,"\\u0000\\u001f\x7f\u2028":6,"é":"\\ud83d\\ude00"}'.encode(),
    b'{"__proto__":{"polluted":true},"constructor":1,"toString":2,"hasOwnProperty":3,"length":4}',
    b'{"kind":"x","id":"y","status":"made up","type":"z","items":{},"ended_at":null}',
    b'{"alone":"\\ud800"}',
    b'{"much":1e400}',
    b"[1,2]",
    b"null",
    b'{"a":' * 128 + b"1" + b"}" * 128,
    b'{"a":' * 129 + b"1" + b"}" * 129,
]


async def test_awkward_numbers_keys_and_texts_hash_alike(console: Console) -> None:
    story = running()
    for payload in AWKWARD:
        story.raw("weather.reported", payload).raw("artifact.observed", payload).raw("log.compacted", payload)
        story.raw("run.leased", payload).raw("tool.completed", payload).raw("run.waiting", payload)
    page = await console.open("")
    assert await sums_in_browser(page, story.facts) == sums_in_python(story.facts)
    assert await page.evaluate("() => ({}).polluted === undefined")


async def test_the_page_knows_exactly_the_types_of_the_contract(console: Console) -> None:
    page = await console.open("")
    known = await page.evaluate("""async () => [...(await import("/reducer.js")).KNOWN_TYPES.entries()]""")
    expected = {name: list(cls.ITEM) if cls.ITEM else None for name, cls in events.PAYLOADS.items()}
    assert dict(known) == expected


ROWS = """async ({facts}) => {
  const { RunModel } = await import("/run_model.js");
  const { rowsOf } = await import("/grouping.js");
  const { parseJson } = await import("/json.js");
  const model = new RunModel("run_1");
  for (const fact of parseJson(facts)) model.apply(fact, null);
  const items = Object.entries(model.state.items).filter(([key]) => key !== "plan:plan")
    .map(([key, item]) => ({ key, item, sequence: item.first_sequence }));
  const alone = [...model.runFacts.keys(), ...model.state.marks.map((mark) => mark.sequence)];
  const others = alone.map((sequence) => ({ sequence }));
  const entries = [...items, ...others].sort((a, b) => a.sequence - b.sequence);
  return rowsOf(entries, () => false).filter((row) => row.items !== undefined || row.item !== undefined)
    .map((row) => (row.items ?? [row.item]).map((item) => `${item.kind}:${item.id}`));
}"""


def a_run_that_does_alike_things() -> Story:
    """Calls and thoughts that alternate, fail, wait and are cut by what ends folding."""
    story = running()
    for number in range(30):
        call = events.ToolRequested(tool_call_id=f"c{number}", name="read" if number % 3 else "list", arguments={})
        story.then(call, events.ReasoningCompleted(reasoning_id=f"r{number}", content="hm"))
        failed = events.ToolFailed(tool_call_id=f"c{number}", error=events.Problem(code="no"))
        story.then(failed if number in {7, 20} else events.ToolCompleted(tool_call_id=f"c{number}", result=1))
        if number in {11, 25}:
            story.then(events.PlanUpdated(version=number, steps=[]), events.RunPaused(), events.RunResumed())
        if number == 15:
            story.then(events.MessageCompleted(message_id="m", role="user", content="go on"))
    return story


async def test_alike_neighbours_are_folded_as_the_timeline_of_the_server_folds_them(console: Console) -> None:
    page = await console.open("")
    stories = [("told", a_run_that_does_alike_things().facts), *recordings()]
    for name, facts in stories:
        shown = await page.evaluate(ROWS, {"facts": encode(facts).decode()})
        expected = [list(row.items) for row in timeline_of(facts) if row.items and row.kind != "plan"]
        assert shown == expected, name


OVERLAY = """async ({rounds}) => {
  const { Overlay } = await import("/overlay.js");
  const { initialState } = await import("/reducer.js");
  return rounds.map((fragments) => {
    const overlay = new Overlay();
    const state = initialState("demo", "run_1");
    const before = JSON.stringify(state);
    for (const [first, last, data] of fragments) {
      overlay.apply({ preview_id: "p", subject: { kind: "message", id: "m" }, preview_seq: last, operation: "append",
        data, coalesced: { first_seq: first, last_seq: last, source_count: last - first + 1 } }, state);
    }
    const entry = overlay.get("message:m");
    return { parts: entry.parts, incomplete: entry.incomplete, touched: JSON.stringify(state) !== before };
  });
}"""


def on_the_way(chance: random.Random) -> list[tuple[int, int, str]]:
    """Fragments `1,` `2,` … as they may arrive: merged, some dropped, some repeated, some late."""
    sent, at = [], 1
    while at <= 40:
        last = min(40, at + chance.choice([0, 0, 0, 1, 3]))
        sent.append((at, last, "".join(f"{n}," for n in range(at, last + 1))))
        at = last + 1
    arrived = [one for one in sent if chance.random() > 0.2] or sent
    arrived += chance.sample(arrived, k=min(3, len(arrived)))
    for _ in range(3):
        here = chance.randrange(len(arrived))
        arrived.insert(chance.randrange(len(arrived)), arrived.pop(here))
    return arrived


async def test_p7_a_preview_is_never_joined_over_what_is_missing_and_never_touches_the_state(console: Console) -> None:
    page = await console.open("")
    rounds = [on_the_way(random.Random(seed)) for seed in range(200)]
    for fragments, shown in zip(rounds, await page.evaluate(OVERLAY, {"rounds": rounds}), strict=True):
        numbers: list[int] = []
        for part in shown["parts"]:
            if "text" in part:
                new = [int(one) for one in part["text"].split(",") if one]
                assert new == list(range(new[0], new[0] + len(new))), fragments
                assert not numbers or new[0] > numbers[-1], fragments
                numbers += new
        whole = numbers == list(range(1, numbers[-1] + 1))
        assert shown["incomplete"] is not whole, fragments
        assert shown["touched"] is False


SPLIT = """async ({text, sizes}) => {
  const { SseParser } = await import("/sse.js");
  return sizes.map((size) => {
    const parser = new SseParser();
    const out = [];
    for (let at = 0; at < text.length; at += size) out.push(...parser.push(text.slice(at, at + size)));
    return out;
  });
}"""


async def test_frames_are_read_alike_however_the_bytes_are_cut(console: Console) -> None:
    page = await console.open("")
    text = (
        ": beat\n\nevent: fact\nid: c1\ndata: {\ndata:  1}\n\nevent:a\r\ndata:x\r\n\r\ndata: y\r\rid: old\n\n"
        "data\ndata\n\ndata: after\n\nevent: cut\ndata: never"
    )
    whole, *cut = await page.evaluate(SPLIT, {"text": text, "sizes": [1000, 1, 2, 3, 5, 7]})
    assert [one for one in whole if "comment" not in one] == [
        {"event": "fact", "id": "c1", "data": "{\n 1}"},
        {"event": "a", "id": None, "data": "x"},
        {"event": "message", "id": None, "data": "y"},
        {"event": "message", "id": None, "data": "\n"},
        {"event": "message", "id": None, "data": "after"},
    ]
    assert all(one == whole for one in cut)
