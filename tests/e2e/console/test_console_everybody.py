"""For everybody: keyboard, screen reader, narrow screens, dark rooms."""

import pytest
from playwright.async_api import expect

from runlane_contracts import events
from support.console import RUN, Console, running
from support.fake_gateway import TOKEN
from support.runs import a_waiting_run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


async def test_status_changes_are_announced_politely_and_the_timeline_is_a_feed(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    run.then(events.RunPaused())
    await expect(page.locator("[aria-live=polite]", has_text="The run is now paused")).to_have_count(1)
    await expect(page.get_by_role("feed")).to_have_count(1)
    assert await page.title() == "writer · paused — Runlane"


async def test_everything_is_reached_by_keyboard(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    console.gateway.add(running("run_2"))
    page = await console.open(f"#token={TOKEN}")
    await expect(page.locator(".runs a")).to_have_count(2)
    await page.keyboard.press("/")
    await page.keyboard.type("payer")
    await page.keyboard.press("Enter")
    await expect(console.item("approval:a1")).to_be_visible()
    await page.keyboard.press("Escape")  # leaves the field
    await expect(page.locator(".item")).to_have_count(5)
    await page.keyboard.press("k")  # from the end
    await expect(page.locator(".item").last).to_be_focused()
    await page.keyboard.press("k")
    await expect(console.item("approval:a1")).to_be_focused()
    await page.keyboard.press("o")
    await expect(console.item("approval:a1")).to_contain_text("action d1")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("f")
    await page.keyboard.type("nothing like this")
    await expect(page.locator(".item")).to_have_count(0)
    await page.keyboard.press("Escape")  # empties the field
    await expect(console.item("approval:a1")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(console.item("approval:a1")).to_contain_text("decided by dana")
    await expect(console.item("approval:a1")).to_be_focused()
    await page.keyboard.press("/")
    await page.keyboard.press("Control+a")
    await page.keyboard.press("Delete")
    await page.keyboard.press("Escape")
    await page.keyboard.press("K")
    await expect(page.get_by_role("heading", name="writer")).to_be_visible()


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
