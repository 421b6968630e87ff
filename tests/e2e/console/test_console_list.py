"""Who is looking, and the list of runs."""

import pytest
from playwright.async_api import expect

from support.console import RUN, Console, running
from support.fake_gateway import TOKEN
from support.runs import a_short_run, a_waiting_run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


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
    await page.get_by_label("Search runs by text").fill("pay")
    await expect(rows.locator(".agent")).to_have_text(["payer"])
    await page.get_by_label("Search runs by text").fill("")
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
