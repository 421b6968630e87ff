"""Coming back: whatever breaks, no gap and no repeat, and it is said."""

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import expect

from runlane_contracts import events
from runlane_contracts.problems import Code
from support.console import RUN, Console, running, said
from support.fake_gateway import TOKEN, cursor, fact_frame
from support.runs import a_short_run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


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
    await expect(console.chip).to_have_text("connected")
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
    await expect(console.chip).to_have_text("unrecoverable: run_not_found")
    await expect(console.notice).to_contain_text("There is no such run, or it belongs to someone else.")
    console.gateway.add(running("run_of_others"))
    await page.get_by_role("button", name="Try again").click()
    await expect(console.chip).to_have_text("connected")


async def test_the_state_can_be_compared_with_the_servers(console: Console) -> None:
    console.gateway.add(a_short_run(RUN, "demo"))
    page = await console.open_run()
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator(".run-foot .verdict")).to_have_text("agrees with the server at #12")
