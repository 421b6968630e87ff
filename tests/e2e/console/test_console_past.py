"""The record as a slider: a run as it was, and nothing to decide in it."""

import pytest
from playwright.async_api import expect

from runlane_contracts import events, reducer
from support.console import Console, a_long_run, running, said
from support.runs import a_waiting_run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

AT = """async ({facts, sequence}) => {
  const { Record } = await import("/record.js");
  const { checksum } = await import("/reducer.js");
  const { Api } = await import("/api.js");
  const live = { runFacts: new Map(), traceparent: null };
  const record = new Record(new Api(sessionStorage.getItem("runlane.token")), "run_1");
  const picture = await record.at(sequence, facts, live);
  const again = await record.at(sequence, facts, live);
  return [await checksum(picture.state), await checksum(again.state)];
}"""


async def test_the_past_is_marked_and_nothing_can_be_decided_in_it(console: Console) -> None:
    run = console.gateway.add(a_waiting_run("run_1", "demo"))
    run.then(events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="kim", version=1),
             events.RunResumed(), said(1, "Paid."))  # fmt: skip
    page = await console.open_run()
    await expect(console.item("message:m1")).to_be_visible()
    await console.slide_to(6)
    await expect(page.locator(".past-bar")).to_contain_text("You are looking at the past#6 of 9")
    await expect(page.locator(".run-head .status")).to_have_text("waiting for an approval")
    await expect(console.item("message:m1")).to_have_count(0)
    await expect(console.card("approval:a1").get_by_role("button", name="Approve")).to_be_disabled()
    for name in ("Pause", "Cancel…", "Send"):
        await expect(page.get_by_role("button", name=name)).to_be_disabled()
    await page.get_by_label("Message to the agent").press("Control+Enter")
    run.then(said(2, "And more."))
    await expect(page.locator(".past-bar")).to_contain_text("#6 of 10")
    await expect(console.item("message:m2")).to_have_count(0)
    await page.get_by_role("button", name="Back to now").click()
    await expect(page.locator(".past-bar")).to_be_hidden()
    await expect(console.item("message:m2")).to_be_visible()
    await expect(page.locator(".run-head .status")).to_have_text("running")
    await expect(page.get_by_role("button", name="Cancel…")).to_be_enabled()
    assert console.gateway.commands == []
    await console.agrees_with(run)


async def test_p6_the_past_is_the_state_at_that_sequence_folded_or_asked_for(console: Console) -> None:
    run = console.gateway.add(a_long_run(700))
    page = await console.open_run()
    for sequence in (1, 249, 250, 251, 640):
        expected = reducer.checksum(run.state_at(sequence))
        assert await page.evaluate(AT, {"facts": len(run.facts), "sequence": sequence}) == [expected] * 2
    assert console.gateway.snapshot_reads == [], "a run of some hundred facts is folded in the page"
    expected = reducer.checksum(run.state_at(640))
    assert await page.evaluate(AT, {"facts": 100_000, "sequence": 640}) == [expected] * 2
    assert console.gateway.snapshot_reads == [640], "of a long one the server is asked, once for a moment"


async def test_the_record_is_stepped_and_played_from_the_keyboard(console: Console) -> None:
    console.gateway.add(running().then(*(said(number) for number in range(1, 6))))
    page = await console.open_run()
    await console.at(8)
    place = page.locator(".slider .place")
    await page.keyboard.press("[")
    await expect(place).to_have_text("#7 of 8")
    await page.keyboard.press("[")
    await expect(place).to_have_text("#6 of 8")
    await expect(console.item("message:m3")).to_be_visible()
    await expect(console.item("message:m4")).to_have_count(0)
    await page.keyboard.press("]")
    await expect(place).to_have_text("#7 of 8")
    await page.keyboard.press("Escape")
    await expect(place).to_have_text("now")
    await page.get_by_role("button", name="Speed").click()
    await page.get_by_role("button", name="Play the record").click()
    await expect(page.locator(".past-bar")).to_be_visible()
    await expect(place).to_have_text("now")
    await expect(page.locator(".past-bar")).to_be_hidden()


async def test_what_was_typed_is_still_there_after_a_look_at_the_past(console: Console) -> None:
    console.gateway.add(a_waiting_run("run_1", "demo"))
    page = await console.open_run()
    await page.get_by_label("Reason for a rejection").fill("because")
    await console.slide_to(3)
    await expect(page.locator(".past-bar")).to_be_visible()
    await expect(page.locator(".card")).to_have_count(0)
    await page.get_by_role("button", name="Back to now").click()
    await expect(page.get_by_label("Reason for a rejection")).to_have_value("because")
