"""The console on the real thing: `runlane up` as a process, a producer over HTTP, a real browser."""

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from runlane.adapters.live import play_recording
from runlane.client import HttpTransport
from support.console import keep_picture
from support.cutter import Cutter
from support.product import Product, Wire, fact, product

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

RECORDINGS = Path(__file__).parents[2] / "fixtures" / "recordings"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("console") / "state") as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, up: Product) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport={"width": 1200, "height": 800})
    one = await context.new_page()
    faults: list[str] = []
    one.on("pageerror", lambda error: faults.append(f"error: {error}"))
    one.on("console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None)
    yield one
    await context.close()
    assert faults == []


async def open_run(page: Page, up: Product, run_id: str) -> None:
    await page.goto(f"{up.url}/#token={up.tokens['demo']}&run={run_id}")
    await expect(page.locator(".chip")).to_have_text(re.compile("^(connected|ended)$"))


async def agrees(page: Page, wire: Wire, run_id: str) -> None:
    """The page's checksum is that of the server's snapshot."""
    snapshot = await wire.snapshot(run_id)
    own = page.locator(f'.run-foot .sum[data-sequence="{snapshot["through_sequence"]}"]')
    await expect(own).to_have_attribute("data-checksum", snapshot["checksum"], timeout=15_000)
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator(".run-foot .verdict")).to_contain_text("agrees with the server")


async def test_a_run_is_seen_live_decided_and_ends_with_the_servers_own_checksum(page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id = await wire.start_run(agent="console-live", input={"text": "hello"})
        epoch = await wire.lease(run_id)
        await open_run(page, up, run_id)
        await wire.append(
            run_id, epoch, fact("run.started"), fact("message.started", message_id="m1", role="assistant")
        )
        fragment = {"preview_id": "p1", "subject": {"kind": "message", "id": "m1"}, "preview_seq": 1,
                    "operation": "append", "data": "Thinking about i"}  # fmt: skip
        item = page.locator('.item[data-key="message:m1"]')
        await expect(item).to_be_visible()
        await wire.http.post(f"/v1/runs/{run_id}/previews", json={"lease_epoch": epoch, "previews": [fragment]})
        await expect(item.locator(".preview .text")).to_have_text("Thinking about i")
        await wire.append(
            run_id, epoch,
            fact("message.completed", message_id="m1", role="assistant", content="Thought about it.", preview_id="p1"),
            fact("tool.requested", tool_call_id="c1", name="pay", arguments={"amount": 1.5}, side_effect="unsafe"),
            fact("approval.requested", approval_id="a1", tool_call_id="c1", description="Pay 1.50", risk="high",
                 version=1, action_digest="d1", data={"amount": 1.5}, editable=False),
            fact("run.waiting", on=[{"kind": "approval", "id": "a1"}]),
        )  # fmt: skip
        await expect(item.locator(".preview")).to_have_count(0)
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator('.item[data-key="approval:a1"]')).to_contain_text("decided by")
        await wire.append(
            run_id, epoch, fact("run.resumed"), fact("tool.completed", tool_call_id="c1", result={"paid": True}),
            fact("run.completed", output={"text": "Paid."}),
        )  # fmt: skip
        await expect(page.locator(".chip")).to_have_text("ended")
        await expect(page.locator(".outcome")).to_contain_text("Paid.")
        await agrees(page, wire, run_id)


async def test_a_cancel_from_the_page_reaches_the_run(page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id = await wire.start_run(agent="console-cancel")
        await open_run(page, up, run_id)
        await page.get_by_role("button", name="Cancel…").click()
        await page.get_by_role("button", name="Cancel the run").click()
        await expect(page.locator(".run-head .status")).to_have_text("cancelled")
        await expect(page.locator(".chip")).to_have_text("ended")


async def test_the_list_shows_what_was_started_and_nothing_of_another_tenant(page: Page, up: Product) -> None:
    async with up.client("other") as foreign, up.client() as wire:
        hidden = await foreign.start_run(agent="console-foreign")
        await wire.start_run(agent="console-listed")
        await page.goto(f"{up.url}/#token={up.tokens['demo']}")
        await expect(page.locator(".runs .agent", has_text="console-listed").first).to_be_visible()
        await expect(page.locator(".runs .agent", has_text="console-foreign")).to_have_count(0)
        await page.goto(f"{up.url}/#/runs/{hidden}")
        await expect(page.locator(".chip")).to_have_text("unrecoverable: run_not_found")


async def test_two_browsers_on_one_run_agree_when_one_decides(browser: Browser, page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id, epoch = await waiting_run(wire, "console-two")
        context = await browser.new_context(color_scheme="dark", viewport={"width": 390, "height": 760})
        other = await context.new_page()
        await open_run(page, up, run_id)
        await open_run(other, up, run_id)
        await other.get_by_label("Reason for a rejection").fill("still thinking")
        await page.get_by_role("button", name="Approve", exact=True).click()
        for one in (page, other):
            await expect(one.locator(".card")).to_have_count(0)
            await expect(one.locator(".run-head .status")).to_have_text("waiting")
            await expect(one.locator(".diagnosis")).to_contain_text("Decided")
        await other.get_by_role("button", name="Evidence").click()
        await expect(other.locator('.item[data-key="approval:a1"]')).to_contain_text("decided by")
        await keep_picture(other, "product-narrow-dark")
        await wire.append(run_id, epoch, fact("run.resumed"),
                          fact("tool.completed", tool_call_id="c1", result={"paid": True}),
                          fact("run.completed", output={"text": "Paid."}))  # fmt: skip
        for one in (page, other):
            await expect(one.locator(".chip")).to_have_text("ended")
            await agrees(one, wire, run_id)
        await context.close()


async def waiting_run(wire: Wire, agent: str) -> tuple[str, int]:
    """A run that asks whether it may pay."""
    run_id = await wire.start_run(agent=agent, input={"text": "Pay the bill."})
    epoch = await wire.lease(run_id)
    await wire.append(
        run_id, epoch, fact("run.started"),
        fact("tool.requested", tool_call_id="c1", name="pay", arguments={"amount": 1.5}, side_effect="unsafe"),
        fact("approval.requested", approval_id="a1", tool_call_id="c1", description="Pay 1.50", risk="high",
             version=1, action_digest="d1", data={"amount": 1.5}, editable=True),
        fact("run.waiting", on=[{"kind": "approval", "id": "a1"}]),
    )  # fmt: skip
    return run_id, epoch


async def test_an_approval_with_changed_arguments_reaches_the_run(page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id, _ = await waiting_run(wire, "console-edit")
        await open_run(page, up, run_id)
        await page.get_by_role("button", name="Edit…").click()
        await page.get_by_label("Data, as JSON").fill('{"amount": 0.5}')
        await keep_picture(page, "product-approve-with-changes")
        await page.get_by_role("button", name="Approve with changes").click()
        await expect(page.locator('.item[data-key="approval:a1"]')).to_contain_text("modified")
        await page.get_by_label("Message to the agent").fill("Thank you.")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator('.item[data-kind="message"]')).to_contain_text("Thank you.")
        [resolved] = [one for one in await wire.facts(run_id) if one["type"] == "approval.resolved"]
        assert (resolved["payload"]["decision"], resolved["payload"]["data"]) == ("modified", {"amount": 0.5})
        await agrees(page, wire, run_id)


async def test_a_network_that_is_cut_and_comes_back_loses_and_repeats_nothing(page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id = await wire.start_run(agent="console-offline")
        epoch = await wire.lease(run_id)
        await wire.append(run_id, epoch, fact("run.started"))
        await open_run(page, up, run_id)
        proxy = Cutter(up.url)
        async with proxy.serve() as url:
            await page.goto(f"{url}/#token={up.tokens['demo']}&run={run_id}")
            for number in range(30):
                said = fact("message.completed", message_id=f"m{number}", role="assistant", content=str(number))
                await wire.append(run_id, epoch, said)
                if number % 10 == 5:
                    proxy.cut()
                    await expect(page.locator(".chip")).to_have_text(re.compile("reconnecting"))
                    await page.evaluate("() => { dispatchEvent(new Event('online')); }")
            await expect(page.locator(".run-foot .number")).to_have_text(f"#{wire.written[run_id]}")
            await expect(page.locator(".notice")).to_contain_text("Resumed without a gap")
            await page.get_by_role("button", name="Messages").click()
            keys = await page.locator(".item").evaluate_all("(all) => all.map((one) => one.dataset.key)")
            assert keys == [f"message:m{number}" for number in range(30)][-len(keys) :]
            await agrees(page, wire, run_id)


async def test_every_recording_ends_in_the_page_with_the_servers_checksum(page: Page, up: Product) -> None:
    async with HttpTransport(up.url, up.tokens["demo"]) as transport, up.client() as wire:
        for path in sorted(RECORDINGS.glob("*.jsonl")):
            if path.name.endswith(".facts.jsonl"):
                continue
            run_id = await play_recording(transport, path)
            await page.goto("about:blank")
            await open_run(page, up, run_id)
            await expect(page.locator(".chip")).to_have_text("ended")
            await agrees(page, wire, run_id)
            await keep_picture(page, f"recording-{path.stem}")


async def test_large_content_is_loaded_when_it_is_wanted(page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id = await wire.start_run(agent="console-content")
        epoch = await wire.lease(run_id)
        body = "first line\n" + "filler\n" * 20_000
        kept = await wire.http.post(
            f"/v1/content?run_id={run_id}", content=body.encode(), headers={"Content-Type": "text/plain"}
        )
        assert kept.status_code == 201, kept.text
        ref = {name: kept.json()[name] for name in ("uri", "sha256", "size", "media_type")}
        await wire.append(
            run_id, epoch, fact("run.started"), fact("tool.requested", tool_call_id="c1", name="log", arguments={}),
            fact("tool.completed", tool_call_id="c1", content_ref=ref),
        )  # fmt: skip
        await open_run(page, up, run_id)
        row = page.locator('.item[data-key="tool:c1"]')
        await row.locator("summary").click()
        await row.get_by_role("button", name="Load 140 kB").click()
        await expect(row).to_contain_text("first line")


async def test_a_run_page_shows_the_trace_of_its_run(page: Page, up: Product) -> None:
    async with up.client() as wire:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        reply = await wire.http.post(
            "/v1/runs", json={"agent": "console-trace", "input": {}, "dispatch": "external"},
            headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
        )  # fmt: skip
        await open_run(page, up, reply.json()["run_id"])
        await expect(page.locator(".run-head .trace")).to_have_text(trace)


@pytest.mark.fault
async def test_the_page_goes_on_without_a_gap_after_everything_was_killed(page: Page, up: Product) -> None:
    async with up.client() as wire:
        run_id = await wire.start_run(agent="console-killed")
        epoch = await wire.lease(run_id)
        await wire.append(run_id, epoch, fact("run.started"))
        await open_run(page, up, run_id)
        for round_ in range(2):
            said = [
                fact("message.completed", message_id=f"m{round_}-{n}", role="assistant", content=f"{n}")
                for n in range(5)
            ]
            await wire.append(run_id, epoch, *said)
            await expect(page.locator(f'.item[data-key="message:m{round_}-4"]')).to_be_visible()
            await up.stop(signal.SIGKILL)
            await expect(page.locator(".chip")).to_have_text(re.compile("reconnecting"))
            await expect(page.locator(f'.item[data-key="message:m{round_}-4"]')).to_be_visible()
            await up.start()
            await page.evaluate("() => { dispatchEvent(new Event('online')); }")
            await expect(page.locator(".notice")).to_contain_text("Resumed without a gap", timeout=30_000)
        await page.get_by_role("button", name="Messages").click()
        await expect(page.locator('.item[data-kind="message"]')).to_have_count(10)
        await agrees(page, wire, run_id)
