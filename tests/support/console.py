"""The console as a person has it open in a real browser, on a gateway that does what the test tells it."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Locator, Page, Request, ViewportSize, expect

from runlane_contracts import events, reducer
from support.fake_gateway import TOKEN, FakeGateway, FakeRun
from support.runs import Story

RUN = "run_1"
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
SCREENSHOTS = Path(os.environ.get("RUNLANE_SCREENSHOTS", ".runlane/screenshots"))
"""Pictures of the page that a test run leaves behind."""

FRAMES = """(ms) => new Promise((resolve) => {
  const gaps = [];
  const start = performance.now();
  let last = start;
  const tick = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - start < ms) requestAnimationFrame(tick); else resolve(gaps.slice(1));
  };
  requestAnimationFrame(tick);
})"""
"""How long each frame took, in ms, over so many ms."""


@dataclass
class Console:
    """The page, and everything it should not have done."""

    page: Page
    context: BrowserContext
    gateway: FakeGateway
    faults: list[str] = field(default_factory=list)

    async def open(self, fragment: str) -> Page:
        await self.page.goto(f"{self.gateway.url}/{fragment}")
        return self.page

    async def open_run(self, run_id: str = RUN) -> Page:
        page = await self.open(f"#token={TOKEN}&run={run_id}")
        await expect(self.chip).to_have_text(re.compile("^(connected|ended)$"))
        return page

    async def forget(self) -> None:
        """Leave the page, for a gateway of another address; what it should not have done is told now."""
        faults, self.faults[:] = list(self.faults), []
        await self.page.goto("about:blank")
        await self.page.set_viewport_size(VIEWPORT)
        assert faults == []

    @property
    def chip(self) -> Locator:
        return self.page.locator(".chip")

    @property
    def notice(self) -> Locator:
        return self.page.locator(".notice")

    def item(self, key: str) -> Locator:
        """A row of the timeline."""
        return self.page.locator(f'.item[data-key="{key}"]')

    def card(self, key: str) -> Locator:
        """What needs a person."""
        return self.page.locator(f'.card[data-card="{key}"]')

    async def at(self, sequence: int) -> None:
        """Wait until the page has applied this fact."""
        await expect(self.page.locator(".run-foot .number")).to_have_text(f"#{sequence:,}")

    async def agrees_with(self, run: FakeRun) -> None:
        """The state in the page has the checksum that Python computes."""
        await self.at(len(run.facts))
        own = self.page.locator(f'.run-foot .sum[data-sequence="{len(run.facts)}"]')
        await expect(own).to_have_attribute("data-checksum", reducer.checksum(run.state))

    async def reach(self, key: str) -> Locator:
        """Scroll until a row of the timeline is in the page."""
        row, place = self.item(key), self.page.locator(".timeline")
        await place.evaluate("(e) => { e.scrollTop = 0; }")
        for _ in range(100):
            await self.page.wait_for_timeout(30)
            if await row.count():
                return row
            await place.evaluate("(e) => { e.scrollTop += e.clientHeight; }")
        raise AssertionError(f"no row {key}")

    async def slide_to(self, sequence: int) -> None:
        """Pull the slider to a moment of the record."""
        move = "(e, to) => { e.value = String(to); e.dispatchEvent(new Event('input')); }"
        await self.page.get_by_label("Moment in the record").evaluate(move, sequence)

    async def picture(self, name: str) -> None:
        """Keep a screenshot."""
        await keep_picture(self.page, name)


async def keep_picture(page: Page, name: str) -> None:
    """Keep a screenshot, and say where."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = (SCREENSHOTS / f"{name}.png").resolve()
    await page.screenshot(path=path)
    print(f"screenshot: {path}")  # noqa: T201 - an artifact of the test run


@asynccontextmanager
async def a_console(browser: Browser, gateway: FakeGateway, **context: Any) -> AsyncIterator[Console]:
    """A fresh page; afterwards it must have asked nobody else, broken no rule and thrown nothing."""
    settings = {"viewport": VIEWPORT, "reduced_motion": "reduce"} | context
    opened = await browser.new_context(**settings)
    one = Console(await opened.new_page(), opened, gateway)

    def watch_requests(request: Request) -> None:
        if not request.url.startswith((one.gateway.url, "blob:")):
            one.faults.append(f"external request: {request.url}")

    one.page.on("request", watch_requests)
    one.page.on("pageerror", lambda error: one.faults.append(f"error: {error}"))
    one.page.on("console", lambda said: one.faults.append(said.text) if "Security Policy" in said.text else None)
    one.page.on("dialog", lambda dialog: one.faults.append(f"dialog: {dialog.message}"))
    yield one
    await opened.close()
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


def a_long_run(facts: int) -> Story:
    """A run of so many facts: it speaks and calls a tool, again and again."""
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
