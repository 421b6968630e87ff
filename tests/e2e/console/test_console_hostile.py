"""What others wrote is text, however hostile."""

import asyncio

import pytest
from playwright.async_api import expect

from runlane_contracts import events
from support.console import FRAMES, RUN, Console, running, said
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
    for key in ("reasoning:r1", "tool:c1", "run 8", "artifact:f1", "approval:a1"):
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


async def test_marks_piled_on_a_letter_and_names_of_prototypes_are_only_text(console: Console) -> None:
    zalgo = "e" + "\u0301\u0327\u0489" * 40 + " ok"
    payload = '{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}},"toString":"x","kind":"script"}'
    story = running().then(said(1, zalgo), said(2, "# not **bold** [link](javascript:alert(1))"))
    story.raw("weather.reported", payload.encode())
    story.raw(
        "tool.requested", b'{"tool_call_id":"__proto__","name":"constructor","arguments":' + payload.encode() + b"}"
    )
    run = console.gateway.add(story)
    page = await console.open_run()
    await expect(console.item("message:m1").locator(".hidden-char")).to_have_text("MARKS×116")
    assert await console.item("message:m1").evaluate("(e) => e.offsetHeight") < 80
    await expect(console.item("message:m2").locator(".text")).to_have_text("# not **bold** [link](javascript:alert(1))")
    await console.item("tool:__proto__").locator("summary").click()
    await expect(console.item("tool:__proto__")).to_contain_text('{"polluted": 1}')
    assert await page.evaluate("({}).polluted === undefined && Object.prototype.kind === undefined")
    await console.agrees_with(run)


BIG = 5_000_000


async def test_five_megabytes_on_one_line_are_folded_and_opened_by_and_by(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    run.then(said(1, "x" * BIG), said(2))
    await expect(console.item("message:m2")).to_be_visible()
    item = console.item("message:m1")
    assert len(await item.inner_text()) < 10_000
    await item.get_by_role("button", name="Show more").click()
    assert 60_000 < len(await item.inner_text()) < 80_000
    assert await page.locator(".timeline").evaluate("(e) => e.scrollWidth <= e.clientWidth")


async def test_huge_values_anywhere_never_freeze_the_page(console: Console) -> None:
    """Draw a value whole instead of its beginning (`block`, `digestLine`), and a frame takes seconds."""
    run = console.gateway.add(running())
    page = await console.open_run()
    big, half = "\u202e<b>x</b>" * (BIG // 9), "\u202e<b>x</b>" * (BIG // 90)
    frames = asyncio.create_task(page.evaluate(FRAMES, 6000))
    arguments = {"line": big, "many": list(range(50_000))}
    run.then(
        events.ToolRequested(tool_call_id="c1", name="n" * 10_000, arguments=arguments),
        events.ToolCompleted(tool_call_id="c1", result={"stdout": half}),
        events.PlanUpdated(version=1, steps=[{"title": half}]),
        events.ReasoningCompleted(reasoning_id="r1", content=half),
    )
    run.preview("p1", ("message", "m9"), 1, half)
    run.then(events.ApprovalRequested(approval_id="a1", description=half, risk=half[:2000], version=1,
                                      action_digest="d", tool_call_id="c1", editable=True))  # fmt: skip
    await expect(console.card("approval:a1")).to_be_visible(timeout=30_000)
    await expect(console.card("approval:a1")).to_contain_text("Too large to be changed here.")
    await (await console.reach("tool:c1")).locator("summary").click()
    await expect(console.item("tool:c1")).to_contain_text("Show more")
    await page.get_by_label("Find in this run").fill("nothing")
    gaps = await frames
    print(f"longest frame with values of 5 MB: {max(gaps):.0f} ms")  # noqa: T201 - what was measured
    assert max(gaps) < 5000, "the page froze"
    assert len(await page.locator("#console").inner_text()) < 100_000
    await console.agrees_with(run)
