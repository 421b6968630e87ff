"""For everybody: keyboard, screen reader, narrow screens, dark rooms."""

from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from runlane_contracts import events
from support.console import RUN, Console, a_console, running, said
from support.fake_gateway import TOKEN, FakeGateway
from support.runs import Story, a_waiting_run

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


# --- what axe finds, and what it looks like ---------------------------------------------------------------

RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
}


async def breaches(page: Page) -> list[Any]:
    """What axe-core finds against WCAG 2.2 AA: contrast, names, roles, order."""
    found = await Axe().run(page, options=RULES)
    return [f"{one['id']}: {node['html'][:120]}" for one in found.response["violations"] for node in one["nodes"]]


def a_busy_run() -> Story:
    """A little of everything that a run page shows."""
    failed = events.Problem(code="exit_1", message="1 failed, 1203 passed", retryable=True)
    edit = {"path": "src/pay.py", "old": "a = 1\nb = 2", "new": "a = 1\nb = 3"}
    story = Story("demo", RUN, session_id="ses_1").then(
        events.RunCreated(agent="release-assistant", input={"text": "Prepare release 2.4."}, pool="default"),
        events.RunLeased(lease_epoch=1, worker_id="worker-1"), events.RunStarted(),
        events.TurnStarted(turn_id="t1"),
        events.PlanUpdated(version=1, steps=[
            {"title": "Read the tickets", "status": "completed"}, {"title": "Run the tests", "status": "failed"},
            {"title": "Publish", "status": "in_progress"}, {"title": "Announce", "status": "pending"},
        ]),
        events.ReasoningCompleted(reasoning_id="r1", summary="Every ticket closed, a green report, and a yes."),
        said(1, "I read the open tickets first, then the report."),
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )  # fmt: skip
    for number in range(9):
        arguments = {"id": f"UI-{number}"}
        story.then(events.ToolRequested(tool_call_id=f"t{number}", name="read_ticket", arguments=arguments),
                   events.ToolCompleted(tool_call_id=f"t{number}", result={"state": "closed"}))  # fmt: skip
    return story.then(
        events.ToolRequested(tool_call_id="c1", name="run_tests", arguments={"command": "pytest -q"}),
        events.ToolFailed(tool_call_id="c1", error=failed),
        events.ToolRequested(tool_call_id="c2", name="edit", arguments=edit), events.ToolCompleted(tool_call_id="c2"),
        events.RunLeaseLost(lease_epoch=1), events.RunLeased(lease_epoch=2, worker_id="worker-2", attempt=2),
        events.LogQuarantined(reason="payload did not fit"),
        events.ToolRequested(tool_call_id="c3", name="charge", arguments={}, side_effect="unsafe", operation_id="op1"),
        events.ToolOutcomeUnknown(tool_call_id="c3", operation_id="op1"),
        events.ToolRequested(tool_call_id="c4", name="build", arguments={"target": "docs"}),
        events.ToolRunning(tool_call_id="c4"),
        events.InputRequested(input_id="i1", prompt="Which channel?", schema={"enum": ["stable", "beta"]}),
        events.ApprovalRequested(approval_id="a1", description="Publish release 2.4", risk="high", version=1, quorum=2,
                                 action_digest="d1", data={"version": "2.4", "channel": "stable"}, editable=True),
        events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),)),
    )  # fmt: skip


SCREENS = [
    ("light", {"color_scheme": "light", "viewport": {"width": 1440, "height": 900}}),
    ("dark", {"color_scheme": "dark", "viewport": {"width": 1440, "height": 900}}),
    ("narrow", {"color_scheme": "light", "viewport": {"width": 375, "height": 740}}),
]


@pytest.mark.parametrize(("name", "screen"), SCREENS, ids=[name for name, _ in SCREENS])
async def test_what_is_on_screen_can_be_read_and_reached_by_everybody(
    browser: Browser, gateway: FakeGateway, name: str, screen: dict[str, Any]
) -> None:
    """Make a colour of `base.css` paler, or take a label off a field, and axe says which."""
    run = gateway.add(a_busy_run())
    async with a_console(browser, gateway, **screen) as console:
        page = await console.open_run()
        run.preview("p1", ("tool", "c4"), 1, "building index\n")
        run.preview("p2", ("message", "m9"), 1, "While I wait ")
        run.preview("p2", ("message", "m9"), 4, "I draft")
        await expect(
            console.item("message:m9") if "narrow" not in name else console.card("approval:a1")
        ).to_be_visible()
        await console.picture(f"run-{name}")
        assert await breaches(page) == []
        if "narrow" in name:
            await page.get_by_role("button", name="Evidence").click()
            await expect(console.item("message:m9")).to_be_visible()
            await console.picture(f"evidence-{name}")
            assert await breaches(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        else:
            await page.get_by_role("button", name="Edit…").click()
            await page.get_by_label("Data, as JSON").fill('{"version": "2.4", "channel": "beta"}')
            await console.item("tool:c2").locator("summary").click()
            await console.picture(f"edit-{name}")
            assert await breaches(page) == []
        await console.slide_to(12)
        await expect(page.locator(".past-bar")).to_be_visible()
        await console.picture(f"past-{name}")
        await page.keyboard.press("?")
        assert await breaches(page) == []


async def test_the_theme_can_be_chosen_and_is_remembered(console: Console) -> None:
    page = await console.open(f"#token={TOKEN}")
    grounds = []
    for _ in range(3):
        grounds.append(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        await page.get_by_role("button", name="Theme").click()
    assert grounds[0] == grounds[1] != grounds[2], "as the system, light, dark"
    await page.get_by_role("button", name="Theme").click()
    await page.keyboard.press("t")
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == grounds[2]
