"""The console in a real browser, against a gateway that does what the test tells it."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings, strategies as st
from playwright.async_api import Browser, BrowserContext, Locator, Page, Request, expect

from runlane_contracts import events, reducer
from runlane_contracts.codec import encode
from runlane_contracts.problems import Code
from support.browser import chromium
from support.fake_gateway import TOKEN, FakeGateway, FakeRun, cursor, fact_frame
from support.runs import Story, a_short_run, a_waiting_run, payloads, recordings

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

RUN = "run_1"
CORPUS = Path(__file__).parent.parent.parent / "contracts" / "fixtures" / "v1" / "reducer"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def gateway() -> AsyncIterator[FakeGateway]:
    one = FakeGateway()
    await one.start()
    yield one
    await one.stop()


@dataclass
class Console:
    """The page as a person has it open, and everything it should not have done."""

    page: Page
    context: BrowserContext
    gateway: FakeGateway
    faults: list[str] = field(default_factory=list)

    async def open(self, fragment: str) -> Page:
        await self.page.goto(f"{self.gateway.url}/{fragment}")
        return self.page

    async def open_run(self, run_id: str = RUN) -> Page:
        page = await self.open(f"#token={TOKEN}&run={run_id}")
        await expect(self.chip).to_have_text(re.compile("live|ended"))
        return page

    @property
    def chip(self) -> Locator:
        return self.page.locator(".chip")

    @property
    def notice(self) -> Locator:
        return self.page.locator(".notice")

    def item(self, key: str) -> Locator:
        return self.page.locator(f'.item[data-key="{key}"]')

    async def at(self, sequence: int) -> None:
        """Wait until the page has applied this fact."""
        await expect(self.page.locator(".run-foot .number")).to_have_text(f"#{sequence:,}")

    async def agrees_with(self, run: FakeRun) -> None:
        """The state in the page has the checksum that Python computes."""
        await self.at(len(run.facts))
        own = reducer.checksum(run.state)
        await expect(self.page.locator(".run-foot .sum")).to_have_attribute("title", f"{own} at #{len(run.facts)}")


@pytest_asyncio.fixture(loop_scope="module")
async def console(browser: Browser, gateway: FakeGateway) -> AsyncIterator[Console]:
    context = await browser.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
    one = Console(await context.new_page(), context, gateway)

    def watch_requests(request: Request) -> None:
        if not request.url.startswith(gateway.url):
            one.faults.append(f"external request: {request.url}")

    one.page.on("request", watch_requests)
    one.page.on("pageerror", lambda error: one.faults.append(f"error: {error}"))
    one.page.on("console", lambda said: one.faults.append(said.text) if "Security Policy" in said.text else None)
    one.page.on("dialog", lambda dialog: one.faults.append(f"dialog: {dialog.message}"))
    yield one
    await context.close()
    assert one.faults == []


def running(run_id: str = RUN) -> Story:
    """A run that a worker drives."""
    return Story("demo", run_id).then(
        events.RunCreated(agent="writer", input={"text": "Write."}),
        events.RunLeased(lease_epoch=1, worker_id="w1"),
        events.RunStarted(),
    )


def said(number: int, text: str = "") -> events.MessageCompleted:
    """One thing the agent says."""
    return events.MessageCompleted(message_id=f"m{number}", role="assistant", content=text or f"message {number}")


# --- the same state as everywhere -------------------------------------------------------------------------

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


# --- who is looking ---------------------------------------------------------------------------------------


async def test_a_link_brings_the_token_which_leaves_the_address_bar_and_stays_for_the_tab(console: Console) -> None:
    console.gateway.add(a_short_run(RUN, "demo"))
    page = await console.open_run()
    assert TOKEN not in page.url
    assert page.url.endswith(f"#/runs/{RUN}")
    await page.reload()
    await expect(console.chip).to_have_text("ended")
    other = await console.context.new_page()
    await other.goto(page.url)
    await expect(other.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_token_is_asked_for_and_a_wrong_one_refused(console: Console) -> None:
    console.gateway.add(a_short_run(RUN, "demo"))
    page = await console.open(f"#/runs/{RUN}")
    await page.get_by_label("Token").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_have_text("This token is not accepted.")
    await page.get_by_label("Token").fill(TOKEN)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="acceptance")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_token_that_is_taken_back_while_watching_leads_to_the_form(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    run.end("unauthorized")
    await expect(page.get_by_role("alert")).to_have_text("This token is no longer accepted.")


# --- the list ---------------------------------------------------------------------------------------------


async def test_the_list_is_newest_first_refreshes_itself_and_filters(console: Console) -> None:
    gateway = console.gateway
    gateway.add(a_short_run("run_old", "demo"))
    gateway.add(a_waiting_run("run_new", "demo"))
    page = await console.open(f"#token={TOKEN}")
    rows = page.locator(".runs li")
    await expect(rows.locator(".agent")).to_have_text(["payer", "acceptance"])
    await expect(page.locator(".waiting-list")).to_contain_text("Pay 12.50")
    gateway.add(running("run_newest"))
    await expect(rows.locator(".agent")).to_have_text(["writer", "payer", "acceptance"])
    await page.get_by_label("Filter runs by text").fill("pay")
    await expect(rows.locator(".agent")).to_have_text(["payer"])
    await page.get_by_label("Filter runs by text").fill("")
    await page.get_by_label("Filter runs by status").select_option("completed")
    await expect(rows.locator(".agent")).to_have_text(["acceptance"])
    await rows.first.get_by_role("link").click()
    await expect(page.get_by_role("heading", name="acceptance")).to_be_visible()
    await expect(rows.first.get_by_role("link")).to_have_attribute("aria-current", "page")


async def test_more_runs_than_a_page_are_read_when_asked_for(console: Console) -> None:
    for number in range(60):
        console.gateway.add(running(f"run_{number:03}"))
    page = await console.open(f"#token={TOKEN}")
    await expect(page.locator(".runs li")).to_have_count(50)
    await page.get_by_role("button", name="Older runs").click()
    await expect(page.locator(".runs li")).to_have_count(60)
    await expect(page.get_by_role("button", name="Older runs")).to_be_hidden()


# --- one run, live ----------------------------------------------------------------------------------------


async def test_facts_appear_as_they_happen_and_the_end_is_shown(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    await expect(console.chip).to_have_text("live")
    run.then(
        events.TurnStarted(turn_id="t1"),
        events.ToolRequested(tool_call_id="c1", name="search", arguments={"q": "tea"}),
    )
    await expect(console.item("tool:c1")).to_contain_text("requested")
    run.then(events.ToolCompleted(tool_call_id="c1", result={"found": 3}), said(1, "  two\n    spaces"))
    await expect(console.item("tool:c1")).to_contain_text("completed")
    await console.item("tool:c1").locator("summary").click()
    await expect(console.item("tool:c1")).to_contain_text('{"found": 3}')
    assert await console.item("message:m1").locator(".text").inner_text() == "  two\n    spaces"
    run.then(events.RunCompleted(output={"text": "All done."}, usage={"total_tokens": 21}))
    await expect(page.locator(".outro")).to_contain_text("All done.")
    await expect(console.chip).to_have_text("ended")
    await expect(page.locator(".run-head .status")).to_have_text("completed")
    await console.agrees_with(run)


async def test_what_happened_to_the_run_itself_is_told_alike_live_and_after_a_reload(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    run.then(said(1), events.RunLeaseLost(lease_epoch=1), events.RunLeased(lease_epoch=2, worker_id="w2", attempt=2))
    run.then(said(2), events.RunPauseRequested(), events.RunPaused())
    await console.at(9)
    lines = page.locator(".items .item")
    told = await lines.all_inner_texts()
    assert [line.split("\n")[-1] for line in told] == [
        "w1 took the run, lease epoch 1", "Started", "message 1", "Lease epoch 1 was lost: expired",
        "w2 took the run, lease epoch 2, attempt 2", "message 2", "Asked to pause", "Paused",
    ]  # fmt: skip
    await page.reload()
    await expect(lines).to_have_count(8)
    assert await lines.all_inner_texts() == told


async def test_a_hidden_page_gives_its_connection_back_and_goes_on_when_looked_at(console: Console) -> None:
    console.gateway.heartbeat_s = 120.0  # so that it is not the silence that ends the connection
    run = console.gateway.add(running())
    page = await console.open(f"#token={TOKEN}")
    await page.clock.install()
    await page.evaluate("(id) => { location.hash = `#/runs/${id}`; }", RUN)
    await expect(console.chip).to_have_text("live")
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    await page.clock.fast_forward(61_000)
    await expect(console.chip).to_have_text("resting while hidden")
    run.story.then(said(1))
    await page.evaluate(hide, False)
    await page.clock.run_for(2_000)
    await console.at(4)
    assert run.watches[-1] == cursor(3)


async def test_failures_are_never_folded_away(console: Console) -> None:
    story = running().then(
        events.ToolRequested(tool_call_id="c1", name="pay", arguments={}),
        events.ToolFailed(tool_call_id="c1", error=events.Problem(code="card_declined", message="No money left")),
        events.MessageStarted(message_id="m1", role="assistant"),
        events.MessageFailed(message_id="m1", error=events.Problem(code="model_gone", message="The model left")),
        events.LogQuarantined(reason="payload did not fit"),
        events.RunFailed(error=events.Problem(code="gave_up", message="Too many failures")),
    )
    console.gateway.add(story)
    page = await console.open_run()
    for text in ("card_declined No money left", "model_gone The model left", "payload did not fit"):
        await expect(page.locator(".items").get_by_text(text.split()[0])).to_be_visible()
        await expect(page.locator(".items").first).to_contain_text(text)
    await expect(page.locator(".outro")).to_contain_text("gave_up Too many failures")


async def test_a_preview_is_visibly_provisional_until_its_fact_replaces_it(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.preview("p1", ("message", "m1"), 1, "Once upon ")
    run.preview("p1", ("message", "m1"), 2, "a time")
    item = console.item("message:m1")
    await expect(item.locator(".preview .text")).to_have_text("Once upon a time")
    await expect(item.locator(".preview-mark")).to_have_text("provisional")
    await expect(item.locator(".preview")).to_have_css("font-style", "italic")
    run.preview("p1", ("message", "m1"), 2, "a time")  # repeated
    run.preview("p1", ("message", "m1"), 5, "ever after")
    await expect(item.locator(".preview .missing")).to_have_text("2 fragments missing")
    await expect(item.locator(".preview-mark")).to_have_text("provisional — incomplete, 2 lost")
    run.then(events.MessageCompleted(message_id="m1", role="assistant", content="The end.", preview_id="p1"))
    await expect(item.locator(".text")).to_have_text("The end.")
    await expect(item.locator(".preview")).to_have_count(0)
    run.preview("p1", ("message", "m1"), 6, "too late")
    run.then(said(2))
    await expect(console.item("message:m2")).to_be_visible()
    await expect(item.locator(".preview")).to_have_count(0)
    await console.agrees_with(run)


async def test_a_preview_over_a_started_item_is_shown_in_place_and_marked_when_abandoned(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.then(events.MessageStarted(message_id="m1", role="assistant"), said(2))
    run.preview("p1", ("message", "m1"), 1, "half a sen")
    item = console.item("message:m1")
    await expect(item.locator(".preview .text")).to_have_text("half a sen")
    run.preview_gap("p1", 2, 4)
    await expect(item.locator(".preview-mark")).to_have_text("provisional — incomplete, 3 lost")
    run.then(events.RunLeaseLost(lease_epoch=1))
    await expect(item.locator(".preview-mark")).to_have_text("abandoned — never confirmed")
    await expect(console.page.locator(".run-head .status")).to_have_text(re.compile("lost"))
    await console.agrees_with(run)


async def test_a_newer_preview_takes_the_place_of_an_older_one_for_good(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    text = console.item("message:m1").locator(".preview .text")
    run.preview("p1", ("message", "m1"), 1, "first try")
    await expect(text).to_have_text("first try")
    run.preview("p2", ("message", "m1"), 1, "second try")
    run.preview("p1", ("message", "m1"), 2, ", late")
    run.preview("p2", ("message", "m1"), 2, ", goes on")
    await expect(text).to_have_text("second try, goes on")
    run.preview("p2", ("message", "m1"), 3, None, fate="abandoned")
    run.preview("p2", ("message", "m1"), 4, ", late")
    run.preview("p3", ("message", "m2"), 1, "another")
    await expect(console.item("message:m2")).to_be_visible()
    await expect(text).to_have_text("second try, goes on")
    await expect(console.item("message:m1").locator(".preview-mark")).to_have_text("abandoned — never confirmed")


async def test_types_of_tomorrow_become_generic_items_unless_they_must_be_understood(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.raw("weather.reported", {"sky": "blue"})
    await expect(console.page.locator(".item", has_text="weather.reported")).to_contain_text('"sky": "blue"')
    run.raw("approval.delegated", {"to": "you"})
    await expect(console.chip).to_have_text("refused: not_understood")
    await expect(console.notice).to_contain_text("approval.delegated at #5 is newer than this page; reload it")


# --- coming back ------------------------------------------------------------------------------------------


async def test_p5_after_a_cut_inside_any_frame_the_page_goes_on_without_gap_or_repeat(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    for number in range(1, 9):
        body = fact_frame(run.story.then(said(number)).facts[-1])
        cut = len(body) * number // 9
        run.send(body[:cut], then="break" if number % 2 else "end")  # a broken connection, or a clean EOF
        await console.at(len(run.facts))
        assert run.watches[-1] == cursor(len(run.facts) - 1), "resumes after the last fact that was applied"
    await expect(console.notice).to_have_text(re.compile(r"Resumed without a gap at #10; caught up to #11"))
    for number in range(1, 9):
        await expect(console.item(f"message:m{number}")).to_have_count(1)
    await console.agrees_with(run)


async def test_the_state_goes_on_over_a_restart_of_the_server(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.then(said(1))
    await console.at(4)
    await console.gateway.stop()
    await expect(console.chip).to_have_text(re.compile(r"reconnecting in \d+ s"))
    await expect(console.item("message:m1")).to_be_visible()
    run.story.then(said(2))
    await console.gateway.start()
    await console.page.evaluate("() => { dispatchEvent(new Event('online')); }")  # the network is back: no more waiting
    await console.at(5)
    await expect(console.notice).to_contain_text("Resumed without a gap at #4; caught up to #5")
    await console.agrees_with(run)


async def test_a_fact_that_does_not_follow_is_not_shown_and_the_page_reads_again(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.withheld.add(4)
    run.then(said(1))
    run.then(said(2))
    await console.at(5)
    assert run.watches[-1] == cursor(3)
    assert await console.page.locator(".item[data-kind=message]").evaluate_all(
        "(all) => all.map((one) => one.dataset.key)"
    ) == ["message:m1", "message:m2"]
    await console.agrees_with(run)


async def test_a_server_that_keeps_a_hole_is_asked_for_its_whole_state(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    first = run.opening

    def with_a_hole(after: int | None, heartbeat_s: float) -> Any:
        return [body for body in first(after, heartbeat_s) if after is None or b'"sequence":4,' not in body]

    run.opening = with_a_hole  # type: ignore[method-assign]
    run.withheld.add(4)
    run.then(said(1), said(2))
    await console.at(5)
    await expect(console.notice).to_contain_text("snapshot taken at #5")
    await console.agrees_with(run)


async def test_a_reset_is_said_and_the_snapshot_taken(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.reset_reason = "compacted"
    run.story.then(said(1))
    run.send(b"", then="break")
    await expect(console.notice).to_contain_text("Reset: snapshot taken at #4")
    await expect(console.item("message:m1")).to_be_visible()
    await console.agrees_with(run)


async def test_a_cursor_that_is_refused_is_given_up_for_a_snapshot(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    console.gateway.refusals.append((Code.CURSOR_INVALID, {}))
    run.story.then(said(1))
    run.send(b"", then="break")
    await expect(console.notice).to_contain_text("snapshot taken at #4")
    assert run.watches[-1] is None
    await console.agrees_with(run)


async def test_a_connection_that_fell_silent_is_noticed(console: Console) -> None:
    console.gateway.heartbeat_s = 0.4
    run = console.gateway.add(running())
    await console.open_run()
    await asyncio.sleep(1.5)
    assert len(run.watches) == 1, "heartbeats keep it"
    console.gateway.is_silent = True
    run.story.then(said(1))
    await console.at(4)
    assert run.watches[1] == cursor(3)


async def test_the_server_says_when_to_come_back(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.end("shutdown", retry_after_ms=4200)
    await expect(console.chip).to_have_text(re.compile(r"reconnecting in [45] s"))
    await expect(console.chip).to_have_attribute("title", "the server closed the stream: shutdown")
    await console.page.locator(".run-foot button", has_text="Now").click()
    await expect(console.chip).to_have_text("live")
    console.gateway.refusals.append((Code.OVERLOADED, {"Retry-After": "5"}))
    run.end("lifetime")
    await expect(console.chip).to_have_text(re.compile(r"reconnecting in [567] s"))


async def test_a_run_that_ended_meanwhile_is_not_asked_for_again(console: Console) -> None:
    run = console.gateway.add(running())
    await console.open_run()
    run.story.then(events.RunCompleted())
    body = fact_frame(run.facts[-1])
    run.send(body, then="break")  # the last fact arrives, the word that it was the last does not
    await expect(console.chip).to_have_text("ended")
    reads = len(run.watches)
    await asyncio.sleep(1)
    assert len(run.watches) == reads == 2


async def test_a_run_of_nobody_is_refused_with_the_reason(console: Console) -> None:
    page = await console.open(f"#token={TOKEN}&run=run_of_others")
    await expect(console.chip).to_have_text("refused: run_not_found")
    await expect(console.notice).to_contain_text("There is no such run, or it belongs to someone else.")
    console.gateway.add(running("run_of_others"))
    await page.get_by_role("button", name="Try again").click()
    await expect(console.chip).to_have_text("live")


async def test_the_state_can_be_compared_with_the_servers(console: Console) -> None:
    console.gateway.add(a_short_run(RUN, "demo"))
    page = await console.open_run()
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator(".run-foot .verdict")).to_have_text("agrees with the server at #12")


# --- deciding ---------------------------------------------------------------------------------------------


async def test_p11_an_approval_is_decided_for_exactly_what_is_shown(console: Console) -> None:
    run = console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    await expect(page.locator(".run-head .status")).to_have_text("waiting for an approval")
    card = console.item("approval:a1")
    await expect(card).to_contain_text("risk high")
    await card.get_by_role("button", name="Approve").press("Enter")
    await expect(card).to_contain_text("decided by dana")
    [command] = console.gateway.commands
    assert command["type"] == "approval.resolve"
    assert command["payload"] == {
        "approval_id": "a1", "decision": "approved", "expected_version": 1, "action_digest": "d1",
    }  # fmt: skip
    assert re.fullmatch(r"[0-9a-f-]{36}", command["idempotency_key"])
    assert command["prefer"] == "wait=5"
    await console.agrees_with(run)


def an_editable_approval() -> Story:
    return running().then(
        events.ApprovalRequested(
            approval_id="a1", description="Send the mail", risk="medium", version=3, action_digest="d3",
            data={"to": "all", "count": 9007199254740993}, editable=True,
        ),
        events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),)),
    )  # fmt: skip


async def test_data_may_be_changed_before_it_is_approved(console: Console) -> None:
    console.gateway.add(an_editable_approval())
    page = await console.open_run()
    area = page.get_by_label("Data, as JSON")
    await area.fill("{not json")
    await page.get_by_role("button", name="Approve with changes").click()
    await expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    assert console.gateway.commands == []
    await area.fill('{"to": "one", "count": 9007199254740993}')
    await page.get_by_role("button", name="Approve with changes").click()
    await expect(console.item("approval:a1")).to_contain_text("modified")
    payload = console.gateway.commands[0]["payload"]
    assert (payload["decision"], payload["data"]) == ("modified", {"to": "one", "count": 9007199254740993})


async def test_a_rejection_may_say_why(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    await page.get_by_label("Reason for a rejection").fill("too expensive")
    await page.get_by_role("button", name="Reject").click()
    await expect(console.item("approval:a1")).to_contain_text("decided by dana: too expensive")


async def test_p4_a_decision_whose_answer_was_lost_is_asked_again_under_the_same_key(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    console.gateway.command_drops = 2
    page = await console.open_run()
    await page.get_by_role("button", name="Approve").click()
    await expect(console.item("approval:a1")).to_contain_text("decided by dana")
    await expect(console.item("approval:a1").locator("form")).to_have_count(0)
    assert len(console.gateway.commands) == 1


async def test_p4_asking_again_after_no_answer_is_the_same_question(console: Console) -> None:
    console.gateway.add(running().then(
        events.ToolRequested(tool_call_id="c1", name="fetch", arguments={}),
        events.ToolFailed(tool_call_id="c1", error=events.Problem(code="timeout", retryable=True)),
    ))  # fmt: skip
    console.gateway.command_drops = 4
    page = await console.open_run()
    await page.get_by_role("button", name="Retry this call").click()
    await expect(console.item("tool:c1").locator(".answer")).to_contain_text("asking again is safe")
    await page.get_by_role("button", name="Retry this call").click()
    await expect(console.item("tool:c1").locator(".answer")).to_have_text("Recorded.")
    assert len(console.gateway.commands) == 1


async def test_a_decision_that_came_too_late_is_shown_what_was_decided(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    recorded = {"decision": "rejected", "decided_by": "kim"}
    console.gateway.command_refusals.append((Code.ALREADY_RESOLVED, {"recorded": recorded}))
    page = await console.open_run()
    await page.get_by_role("button", name="Approve").click()
    await expect(console.item("approval:a1").locator(".answer")).to_have_text("Refused: already rejected by kim.")
    await expect(page.get_by_role("button", name="Approve")).to_be_enabled()


async def test_what_was_typed_survives_what_happens_meanwhile(console: Console) -> None:
    run = console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    await page.get_by_label("Reason for a rejection").fill("because")
    run.send(b"", then="break")
    await expect(console.notice).to_contain_text("Resumed")
    run.then(said(1))
    await expect(console.item("message:m1")).to_be_visible()
    await expect(page.get_by_label("Reason for a rejection")).to_have_value("because")


async def test_what_waits_for_a_person_is_said_while_it_is_out_of_sight(console: Console) -> None:
    run = console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    await expect(page.locator(".attention")).to_be_hidden()
    run.then(*(said(number, "line\n" * 12) for number in range(10)))
    await expect(page.locator(".attention")).to_contain_text("Approval needed Pay 12.50")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    await expect(page.locator(".attention")).to_be_hidden()


async def test_a_question_is_answered_in_the_shape_of_its_schema(console: Console) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "class": {"enum": ["eco", "first"]}},
        "required": ["city", "days"],
    }
    console.gateway.add(
        running().then(
            events.InputRequested(input_id="i1", prompt="Where to?", schema=schema),
            events.RunWaiting(on=(events.WaitingFor(kind="input", id="i1"),)),
        )
    )
    page = await console.open_run()
    form = console.item("input:i1")
    await form.get_by_role("button", name="Send").click()
    await expect(form.get_by_role("alert")).to_contain_text("days")
    await form.get_by_label("city").fill("Oslo")
    await form.get_by_label("days").fill("3")
    await form.get_by_label("class").select_option("first")
    await form.get_by_role("button", name="Send").click()
    await expect(form).to_contain_text("answered by dana")
    assert console.gateway.commands[0]["payload"] == {
        "input_id": "i1", "value": {"city": "Oslo", "days": 3, "class": "first"},
    }  # fmt: skip
    await expect(page.locator(".run-head .status")).to_have_text("running")


async def test_a_run_is_cancelled_only_after_a_second_yes(console: Console) -> None:
    console.gateway.add(running())
    page = await console.open_run()
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Keep it running").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    assert console.gateway.commands == []
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("dialog").get_by_label("Reason for cancelling").fill("wrong branch")
    await page.get_by_role("button", name="Cancel the run").click()
    await expect(page.locator(".run-head .status")).to_have_text("cancelling")
    assert console.gateway.commands[0]["payload"] == {"reason": "wrong branch"}
    await expect(page.get_by_role("button", name="Cancel…")).to_be_hidden()


async def test_a_run_is_paused_and_resumed(console: Console) -> None:
    console.gateway.add(running())
    page = await console.open_run()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".run-head .status")).to_have_text("paused")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator(".run-head .status")).to_have_text("running")
    assert [command["type"] for command in console.gateway.commands] == ["run.pause", "run.resume"]


async def test_a_failed_call_offers_a_retry_until_it_was_retried(console: Console) -> None:
    run = console.gateway.add(
        running().then(
            events.ToolRequested(tool_call_id="c1", name="fetch", arguments={}),
            events.ToolFailed(tool_call_id="c1", error=events.Problem(code="timeout", retryable=True)),
        )
    )
    page = await console.open_run()
    await page.get_by_role("button", name="Retry this call").click()
    await expect(console.item("tool:c1").locator(".answer")).to_have_text("Recorded.")
    assert console.gateway.commands[0]["payload"] == {"tool_call_id": "c1"}
    run.then(events.ToolRequested(tool_call_id="c2", name="fetch", arguments={}, attempt=2, retry_of="c1"))
    await expect(page.get_by_role("button", name="Retry this call")).to_have_count(0)


# --- what others wrote ------------------------------------------------------------------------------------

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "</div>\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u2066x\u2069 \U000e0041\U000e0042 \u200b javascript:alert(1)"
)


async def test_p8_hostile_text_is_shown_and_inert_everywhere(console: Console) -> None:
    story = Story("demo", RUN).then(
        events.RunCreated(agent=HOSTILE[:128], input=HOSTILE),
        events.RunLeased(lease_epoch=1, worker_id="w1"),
        events.RunStarted(),
        said(1, HOSTILE),
        events.ReasoningCompleted(reasoning_id="r1", summary=HOSTILE, content=HOSTILE),
        events.ToolRequested(tool_call_id="c1", name=HOSTILE, arguments={HOSTILE: HOSTILE}),
        events.ToolFailed(tool_call_id="c1", error=events.Problem(code=HOSTILE, message=HOSTILE, retryable=True)),
        events.PlanUpdated(version=1, steps=[{"title": HOSTILE, "status": HOSTILE}]),
        events.TaskCreated(task_id="k1", title=HOSTILE, description=HOSTILE),
        events.ArtifactCreated(artifact_id="f1", name=HOSTILE, media_type=HOSTILE, content=HOSTILE),
        events.InputRequested(input_id="i1", prompt=HOSTILE, schema={"enum": [HOSTILE], "title": HOSTILE}),
        events.ApprovalRequested(approval_id="a1", description=HOSTILE, risk=HOSTILE, version=1, action_digest=HOSTILE,
                                 data=HOSTILE),
        events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),)),
    )  # fmt: skip
    run = console.gateway.add(story)
    page = await console.open_run()
    run.raw(HOSTILE.replace(".", "").replace(" ", ""), {"x": HOSTILE})
    run.preview("p1", ("message", "m9"), 1, HOSTILE)
    await expect(console.item("message:m9")).to_be_visible()
    for fold in await page.locator("summary").all():
        await fold.click()
    assert await page.locator("#console img, #console script, #console iframe").count() == 0
    assert await page.title() != "owned"
    text = await console.item("message:m1").locator(".text").inner_text()
    assert text.startswith("<img src=x onerror=")
    for mark in ("ESC", "RLO", "BEL", "TAG×2", "ZWSP", "LRI"):
        assert mark in text
    shown = await page.locator("#console").inner_text()
    assert not set("\x1b\x07\u202e\u2066\u200b") & set(shown)
    assert "\U000e0041" not in shown
    attributes = await page.evaluate(
        """() => [...document.querySelectorAll("#console *")].flatMap((e) => [...e.attributes].map((a) => a.name))"""
    )
    assert not [name for name in attributes if name.startswith("on") or name == "style"]


async def test_five_megabytes_on_one_line_are_folded_and_opened_by_and_by(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    run.then(said(1, "x" * 5_000_000), said(2))
    await expect(console.item("message:m2")).to_be_visible()
    item = console.item("message:m1")
    assert len(await item.inner_text()) < 10_000
    await item.get_by_role("button", name="Show more").click()
    assert 60_000 < len(await item.inner_text()) < 80_000
    assert await page.locator(".timeline").evaluate("(e) => e.scrollWidth <= e.clientWidth")


# --- long runs --------------------------------------------------------------------------------------------


def a_long_run(facts: int) -> Story:
    story = running()
    number = 0
    while len(story.facts) < facts:
        number += 1
        story.then(
            said(number),
            events.ToolRequested(tool_call_id=f"c{number}", name="step", arguments={"n": number}),
            events.ToolCompleted(tool_call_id=f"c{number}", result={"ok": True}),
        )
    return story


@pytest.mark.slow
async def test_a_run_of_ten_thousand_facts_stays_light(console: Console) -> None:
    run = console.gateway.add(a_long_run(10_000))
    page = await console.open_run()
    await console.at(len(run.facts))
    assert await page.locator(".item").count() <= 400
    await page.get_by_role("button", name="Show earlier").click()
    assert await page.locator(".item").count() == 1000
    longest = page.evaluate("""() => new Promise((resolve) => {
        let worst = 0, last = performance.now();
        const tick = () => {
          const now = performance.now(); worst = Math.max(worst, now - last); last = now;
          if (now - start < 2500) requestAnimationFrame(tick); else resolve(worst);
        };
        const start = last; requestAnimationFrame(tick);
    })""")
    first = len(run.facts)
    for batch in range(20):
        run.then(*(said(100_000 + batch * 50 + one) for one in range(50)))
        await asyncio.sleep(0.05)
    await console.at(first + 1000)
    worst_frame_ms = await longest
    assert worst_frame_ms < 1000, "the page froze"
    await console.agrees_with(run)


async def test_a_reader_who_scrolled_up_is_left_there_and_can_go_back_down(console: Console) -> None:
    run = console.gateway.add(a_long_run(300))
    page = await console.open_run()
    timeline = page.locator(".timeline")
    bottom = "(e) => e.scrollHeight - e.scrollTop - e.clientHeight < 80"
    await expect(console.item("tool:c99")).to_be_in_viewport()
    await timeline.evaluate("(e) => { e.scrollTop = 200; }")
    await expect(page.get_by_role("button", name="Newest")).to_be_visible()
    run.then(*(said(1000 + number) for number in range(20)))
    await expect(console.item("message:m1019")).to_have_count(1)
    assert abs(await timeline.evaluate("(e) => e.scrollTop") - 200) < 60
    await page.get_by_role("button", name="Newest").click()
    await page.wait_for_timeout(100)
    assert await timeline.evaluate(bottom)


# --- for everybody ----------------------------------------------------------------------------------------


async def test_status_changes_are_announced_politely_and_the_timeline_is_a_feed(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    run.then(events.RunPaused())
    await expect(page.locator("[aria-live=polite]", has_text="The run is now paused")).to_have_count(1)
    await expect(page.get_by_role("feed")).to_have_count(1)
    assert await page.title() == "writer · paused — Runlane"


async def test_everything_is_reached_by_keyboard(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open(f"#token={TOKEN}")
    await page.keyboard.press("/")
    await page.keyboard.type("payer")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")  # over the status and the approval that waits
    await expect(page.locator(".runs a")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(console.item("approval:a1")).to_be_visible()
    await page.locator(".timeline").focus()
    await page.keyboard.press("k")  # from the end
    await page.keyboard.press("k")
    await expect(console.item("approval:a1")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(console.item("approval:a1")).to_contain_text("decided by dana")
    await expect(console.item("approval:a1")).to_be_focused()


async def test_on_a_narrow_screen_list_and_run_take_turns(console: Console) -> None:
    console.gateway.add(running())
    page = console.page
    await page.set_viewport_size({"width": 380, "height": 720})
    await console.open(f"#token={TOKEN}")
    await page.locator(".runs a").click()
    await expect(page.get_by_role("heading", name="writer")).to_be_visible()
    await expect(page.get_by_role("navigation", name="Runs")).to_be_hidden()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await page.get_by_role("link", name="All runs").click()
    await expect(page.get_by_role("navigation", name="Runs")).to_be_visible()
