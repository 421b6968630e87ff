"""One run, as it happens."""

import re

import pytest
from playwright.async_api import expect

from runlane_contracts import events
from support.console import RUN, Console, running, said
from support.fake_gateway import TOKEN, cursor

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


async def test_facts_appear_as_they_happen_and_the_end_is_shown(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    await expect(console.chip).to_have_text("connected")
    run.then(
        events.TurnStarted(turn_id="t1"),
        events.ToolRequested(tool_call_id="c1", name="search", arguments={"q": "tea"}),
    )
    await expect(console.item("tool:c1")).to_contain_text("requested")
    run.then(events.ToolCompleted(tool_call_id="c1", result={"found": 3}), said(1, "  two\n    spaces"))
    await expect(console.item("tool:c1")).to_contain_text("completed")
    await console.item("tool:c1").locator("summary").click()
    await expect(console.item("tool:c1").locator(".fields-of").last).to_have_text("found3")
    assert await console.item("message:m1").locator(".text").inner_text() == "  two\n    spaces"
    run.then(events.RunCompleted(output={"text": "All done."}, usage={"total_tokens": 21}))
    await expect(page.locator(".outcome")).to_contain_text("All done.")
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


async def test_a_hidden_page_gives_its_connection_back_and_goes_on_when_looked_at(fresh_console: Console) -> None:
    console = fresh_console
    console.gateway.heartbeat_s = 120.0  # so that it is not the silence that ends the connection
    run = console.gateway.add(running())
    page = await console.open(f"#token={TOKEN}")
    await page.clock.install()
    await page.evaluate("(id) => { location.hash = `#/runs/${id}`; }", RUN)
    await expect(console.chip).to_have_text("connected")
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
    await expect(page.locator(".outcome")).to_contain_text("gave_up Too many failures")


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
    await expect(item.locator(".preview .missing")).to_have_text("live output omitted: 2 fragments")
    await expect(item.locator(".preview-mark")).to_have_text(
        "provisional — incomplete, live output omitted: 2 fragments"
    )
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
    await expect(item.locator(".preview-mark")).to_have_text(
        "provisional — incomplete, live output omitted: 3 fragments"
    )
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
    await expect(console.chip).to_have_text("unrecoverable: not_understood")
    await expect(console.notice).to_contain_text("approval.delegated at #5 is newer than this page; reload it")
