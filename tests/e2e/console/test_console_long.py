"""Long runs stay light."""

import asyncio

import pytest
from playwright.async_api import CDPSession, expect

from runlane_contracts import events
from support.console import FRAMES, Console, a_long_run, running, said

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

FRAME_MS = 1000 / 60
SCROLL = """(ms) => new Promise((resolve) => {
  const scroller = document.querySelector(".timeline");
  const start = performance.now();
  let last = start;
  const tick = (now) => {
    scroller.scrollTop -= 3 * Math.min(50, now - last);  // as a wheel does that is turned fast
    last = now;
    if (now - start < ms) requestAnimationFrame(tick); else resolve();
  };
  requestAnimationFrame(tick);
})"""


class Budget:
    """What the page's thread computes, in CPU time, so that a busy machine does not count as a slow page."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._session: CDPSession | None = None

    async def frames(self, ms: int) -> tuple[list[float], float]:
        """How long each frame took over so many ms, and how much was computed for one, in ms."""
        if self._session is None:
            self._session = await self._console.context.new_cdp_session(self._console.page)
            await self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = await self._computed_s()
        gaps = await self._console.page.evaluate(FRAMES, ms)
        return gaps, (await self._computed_s() - before) * 1000 / len(gaps)

    async def _computed_s(self) -> float:
        assert self._session is not None
        found = await self._session.send("Performance.getMetrics")
        return float(next(one["value"] for one in found["metrics"] if one["name"] == "TaskDuration"))


@pytest.mark.slow
async def test_a_run_of_ten_thousand_facts_stays_smooth(console: Console) -> None:
    """Draw every row instead of those in sight (`VirtualList`), and a frame costs many times its budget."""
    run = console.gateway.add(a_long_run(10_000))
    page = await console.open_run()
    await console.at(len(run.facts))
    assert await page.locator(".item").count() <= 120, "only what is in sight is in the page"
    first = len(run.facts)
    budget = Budget(console)
    live = asyncio.create_task(budget.frames(2500))
    for batch in range(20):
        run.then(*(said(100_000 + batch * 50 + one) for one in range(50)))
        await asyncio.sleep(0.08)
    measured = {"facts pouring in": await live}
    await console.at(first + 1000)
    scrolling = asyncio.create_task(budget.frames(2000))
    await page.evaluate(SCROLL, 1900)
    measured["scrolling"] = await scrolling
    await page.get_by_role("button", name="Newest").click()
    await expect(console.item("message:m100999")).to_be_in_viewport()
    for name, (gaps, computed_ms) in measured.items():
        words = (
            f"{name}: {computed_ms / FRAME_MS:.0%} of a frame's budget, {len(gaps)} frames, longest {max(gaps):.0f} ms"
        )
        print(words)  # noqa: T201 - what was measured
        assert computed_ms < 3 * FRAME_MS, words
        assert max(gaps) < 3000, words
    assert await page.locator(".item").count() <= 120
    await console.agrees_with(run)


async def test_a_reader_who_scrolled_up_is_left_there_and_can_go_back_down(console: Console) -> None:
    run = console.gateway.add(a_long_run(300))
    page = await console.open_run()
    timeline = page.locator(".timeline")
    await expect(console.item("tool:c99")).to_be_in_viewport()
    await timeline.evaluate("(e) => { e.scrollTop = 200; }")
    await expect(page.get_by_role("button", name="Newest")).to_be_visible()
    await page.wait_for_timeout(100)
    row = timeline.locator(".item").nth(8)
    before = await row.evaluate("(e) => [e.dataset.key, e.getBoundingClientRect().top]")
    run.then(*(said(1000 + number) for number in range(20)))
    await expect(page.get_by_role("button", name="20 new")).to_be_visible()
    after = await console.item(before[0]).evaluate("(e) => [e.dataset.key, e.getBoundingClientRect().top]")
    assert after == before
    await page.get_by_role("button", name="20 new").click()
    await expect(console.item("message:m1019")).to_be_in_viewport()
    run.then(said(2000))
    await expect(console.item("message:m2000")).to_be_in_viewport()


async def test_what_is_alike_is_one_row_with_a_count_and_failures_stand_alone(console: Console) -> None:
    story = running()
    for number in range(40):
        call = events.ToolRequested(tool_call_id=f"c{number}", name="read", arguments={"page": number})
        story.then(call, events.ToolRunning(tool_call_id=f"c{number}"))
        failed = events.Problem(code="not_there", message=f"no page {number}")
        story.then(events.ToolFailed(tool_call_id=f"c{number}", error=failed) if number == 20
                   else events.ToolCompleted(tool_call_id=f"c{number}", result="ok"))  # fmt: skip
    run = console.gateway.add(story)
    page = await console.open_run()
    groups = page.locator(".item.group")
    await expect(groups).to_have_count(2)
    await expect(groups.first).to_contain_text("×20")
    await expect(groups.first).to_contain_text("#4–#63")
    await expect(console.item("tool:c20")).to_contain_text("not_there no page 20")
    run.then(events.ToolRequested(tool_call_id="c40", name="read", arguments={"page": 40}))
    await expect(console.item("tool:c40")).to_contain_text("requested")
    run.then(events.ToolCompleted(tool_call_id="c40", result="ok"))
    await expect(groups.last).to_contain_text("×20")
    await groups.first.get_by_role("button").click()
    await expect(page.locator(".item[data-nested]")).to_have_count(20)
    await page.get_by_role("button", name="Failures 1").click()
    await expect(page.locator(".item")).to_have_count(1)
    await page.get_by_role("button", name="All", exact=True).click()
    await page.get_by_label("Find in this run").fill("no page")
    await expect(page.locator(".item")).to_have_count(1)
    await expect(console.item("tool:c20")).to_be_visible()


async def test_evidence_is_read_when_somebody_wants_it(console: Console) -> None:
    ref = events.ContentRef(uri="art/17", sha256="0" * 64, size=2_400_000, media_type="text/plain")
    console.gateway.contents["art/17"] = (b"first line\n" + b"x" * 2_400_000, "text/plain")
    story = running().then(
        events.ToolRequested(tool_call_id="c1", name="edit", arguments={"old": "a\nb\nc", "new": "a\nB\nc"}),
        events.ToolCompleted(tool_call_id="c1", content_ref=ref),
    )
    console.gateway.add(story)
    page = await console.open_run()
    row = console.item("tool:c1")
    await row.locator("summary").click()
    await expect(row.locator('.diff-line[data-kind="removed"]')).to_contain_text("b")
    await expect(row.locator('.diff-line[data-kind="added"]')).to_contain_text("B")
    await row.get_by_role("button", name="Show facts #4–#5").click()
    await expect(row.locator(".raw .code")).to_have_count(2)
    await row.get_by_role("button", name="Load the first 1.0 MB").click()
    await expect(row).to_contain_text("first line")
    await expect(row).to_contain_text("Save 1.0 MB")
    await row.get_by_role("button", name="Load all 2.4 MB").click()
    await expect(row).to_contain_text("Save 2.4 MB")
    assert len(await row.inner_text()) < 20_000
    console.gateway.contents.clear()
    await page.reload()
    await row.locator("summary").click()
    await row.get_by_role("button", name="Load all 2.4 MB").click()
    await expect(row).to_contain_text("Could not be loaded: No such resource. (not_found)")
