"""What others wrote is text, however hostile."""

import pytest
from playwright.async_api import expect

from runlane_contracts import events
from support.console import RUN, Console, running, said
from support.runs import Story

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

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
    for key in ("reasoning:r1", "tool:c1", "plan:plan", "artifact:f1", "approval:a1"):
        await (await console.reach(key)).locator("summary").first.click()
    assert await page.locator("#console img, #console script, #console iframe").count() == 0
    assert await page.title() != "owned"
    text = await (await console.reach("message:m1")).locator(".text").inner_text()
    assert text.startswith("<img src=x onerror=")
    for mark in ("ESC", "RLO", "BEL", "TAG×2", "ZWSP", "LRI"):
        assert mark in text
    shown = await page.locator("#console").inner_text()
    assert not set("\x1b\x07\u202e\u2066\u200b") & set(shown)
    assert "\U000e0041" not in shown
    attributes = await page.evaluate(
        """() => [...document.querySelectorAll("#console *:not(.spacer)")]
          .flatMap((e) => [...e.attributes].map((a) => a.name))"""
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
