"""What people decide, and what became of it."""

import re

import pytest
from playwright.async_api import expect

from runlane_contracts import events
from runlane_contracts.problems import Code
from support.console import RUN, Console, running, said
from support.runs import Story, a_waiting_run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


async def test_p11_an_approval_is_decided_for_exactly_what_is_shown(console: Console) -> None:
    run = console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    await expect(page.locator(".run-head .status")).to_have_text("waiting for an approval")
    await expect(page.locator(".diagnosis")).to_contain_text("Waits for an approval: Pay 12.50")
    card = console.card("approval:a1")
    await expect(card).to_contain_text("risk high")
    await expect(card).to_contain_text("runs pay")
    await card.get_by_role("button", name="Approve").press("Enter")
    await expect(console.item("approval:a1")).to_contain_text("decided by dana")
    await expect(card).to_have_count(0)
    [command] = console.gateway.commands
    assert command["type"] == "approval.resolve"
    assert command["payload"] == {
        "approval_id": "a1", "decision": "approved", "expected_version": 1, "action_digest": "d1",
    }  # fmt: skip
    assert re.fullmatch(r"[0-9a-f-]{36}", command["idempotency_key"])
    assert command["prefer"] == "wait=5"
    await console.agrees_with(run)


async def test_a_risk_that_nobody_stated_is_not_shown(console: Console) -> None:
    story = running().then(
        events.ApprovalRequested(approval_id="a1", description="Go", risk="unknown", version=1, action_digest="d1"),
        events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),)),
    )
    console.gateway.add(story)
    page = await console.open_run()
    await expect(console.card("approval:a1")).to_be_visible()
    await expect(page.get_by_text("risk")).to_have_count(0)


def an_editable_approval(version: int = 3) -> Story:
    return running().then(
        events.ApprovalRequested(
            approval_id="a1", description="Send the mail", risk="medium", version=version, action_digest="d3",
            data={"to": "all", "count": 9007199254740993}, editable=True,
        ),
        events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),)),
    )  # fmt: skip


async def test_data_may_be_changed_before_it_is_approved_and_the_change_is_shown(console: Console) -> None:
    console.gateway.add(an_editable_approval())
    page = await console.open_run()
    card = console.card("approval:a1")
    await card.get_by_role("button", name="Edit…").click()
    area = page.get_by_label("Data, as JSON")
    await expect(area).to_be_focused()
    await area.fill("{not json")
    await expect(card.get_by_role("alert").first).to_contain_text("This is not JSON")
    await page.get_by_role("button", name="Approve with changes").click()
    assert console.gateway.commands == []
    await area.fill('{"to": "one", "count": 9007199254740993}')
    await expect(card.locator('.diff-line[data-kind="removed"]')).to_contain_text('"to": "all"')
    await expect(card.locator('.diff-line[data-kind="added"]')).to_contain_text('"to": "one"')
    await page.get_by_role("button", name="Approve with changes").click()
    await expect(console.item("approval:a1")).to_contain_text("modified")
    payload = console.gateway.commands[0]["payload"]
    assert (payload["decision"], payload["data"]) == ("modified", {"to": "one", "count": 9007199254740993})


async def test_a_change_that_was_undone_approves_what_was_asked(console: Console) -> None:
    console.gateway.add(an_editable_approval())
    page = await console.open_run()
    await page.get_by_role("button", name="Edit…").click()
    await page.get_by_label("Data, as JSON").fill('{"count": 9007199254740993,   "to": "all"}')
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(console.item("approval:a1")).to_contain_text("approved")
    assert "data" not in console.gateway.commands[0]["payload"]


async def test_a_rejection_may_say_why(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    await page.get_by_label("Reason for a rejection").fill("too expensive")
    await page.get_by_role("button", name="Reject").click()
    await expect(console.item("approval:a1")).to_contain_text("decided by dana: too expensive")


# --- what became of it ------------------------------------------------------------------------------------


async def test_p4_a_decision_whose_answer_was_lost_is_asked_again_under_the_same_key(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    console.gateway.command_drops = 2
    page = await console.open_run()
    await page.get_by_role("button", name="Approve").click()
    await expect(console.item("approval:a1")).to_contain_text("decided by dana")
    await expect(console.card("approval:a1")).to_have_count(0)
    assert len(console.gateway.commands) == 1


def a_failed_call() -> Story:
    return running().then(
        events.ToolRequested(tool_call_id="c1", name="fetch", arguments={}),
        events.ToolFailed(tool_call_id="c1", error=events.Problem(code="timeout", retryable=True)),
    )


async def test_p4_no_answer_is_unknown_until_the_ledger_knows_and_asking_again_is_the_same_question(
    console: Console,
) -> None:
    console.gateway.add(a_failed_call())
    console.gateway.command_silence = 3
    page = await console.open_run()
    answer = console.item("tool:c1").locator(".answer")
    await page.get_by_role("button", name="Retry this call").click()
    await expect(answer).to_have_text(re.compile("^No answer .* Asking again is safe.$"))
    await expect(answer).to_have_attribute("data-phase", "unknown")
    await expect(answer).to_have_text("Not known to the server, so not recorded so far; asking again is safe.")
    assert console.gateway.commands == []
    await page.get_by_role("button", name="Retry this call").click()
    await expect(answer).to_have_text("Recorded.")
    assert len(console.gateway.commands) == 1


async def test_p4_a_lost_answer_settles_by_itself_once_the_ledger_answers(console: Console) -> None:
    console.gateway.add(a_failed_call())
    console.gateway.command_drops = 3
    page = await console.open_run()
    await page.get_by_role("button", name="Retry this call").click()
    answer = console.item("tool:c1").locator(".answer")
    await expect(answer).to_have_attribute("data-phase", "unknown")
    await expect(answer).to_have_text("Recorded.")
    assert len(console.gateway.commands) == 1


async def test_a_command_that_waits_for_the_run_says_so_and_then_how_it_went(console: Console) -> None:
    console.gateway.add(running())
    console.gateway.commands_are_held = True
    page = await console.open_run()
    await page.get_by_label("Message to the agent").fill("hello?")
    await page.get_by_role("button", name="Send").click()
    answer = page.locator(".composer .answer")
    await expect(answer).to_have_text("Accepted. It takes effect when the run can apply it.")
    console.gateway.settle(status="rejected", rejection={"code": "run_terminal", "detail": "the run is over"})
    await expect(answer).to_have_text("Refused: the run is over (run_terminal)")


async def test_a_decision_that_came_too_late_is_shown_what_was_decided(console: Console) -> None:
    console.gateway.add(a_waiting_run(RUN, "demo"))
    recorded = {"decision": "rejected", "decided_by": "kim"}
    console.gateway.command_refusals.append((Code.ALREADY_RESOLVED, {"recorded": recorded}))
    page = await console.open_run()
    await page.get_by_role("button", name="Approve").click()
    await expect(console.card("approval:a1").locator(".answer")).to_have_text(
        "Refused: already rejected by kim (already_resolved)"
    )
    await expect(page.get_by_role("button", name="Approve")).to_be_enabled()


# --- what was typed ---------------------------------------------------------------------------------------


async def test_what_was_typed_survives_breaks_resets_other_runs_and_a_reload(console: Console) -> None:
    run = console.gateway.add(an_editable_approval())
    console.gateway.add(running("run_2"))
    page = await console.open_run()
    reason, message, data = (page.get_by_label(name) for name in (
        "Reason for a rejection", "Message to the agent", "Data, as JSON"
    ))  # fmt: skip
    await page.get_by_role("button", name="Edit…").click()
    await data.fill('{"to": "nobody"}')
    await message.fill("wait a\nmoment")
    await reason.fill("because")
    typed = await reason.element_handle()

    async def all_is_there() -> None:
        await expect(reason).to_have_value("because")
        await expect(message).to_have_value("wait a\nmoment")
        await expect(data).to_have_value('{"to": "nobody"}')

    run.send(b"", then="break")
    await expect(console.notice).to_contain_text("Resumed")
    run.then(said(1))
    await expect(console.item("message:m1")).to_be_visible()
    await all_is_there()
    run.reset_reason = "compacted"
    run.send(b"", then="break")
    await expect(console.notice).to_contain_text("Reset: snapshot taken")
    await all_is_there()
    assert typed is not None
    assert await typed.evaluate("(e) => e.isConnected && document.activeElement === e"), (
        "the very field, with the focus"
    )
    await page.evaluate("() => { location.hash = '#/runs/run_2'; }")
    await expect(page.get_by_label("Reason for a rejection")).to_have_count(0)
    await page.go_back()
    await all_is_there()
    await page.reload()
    await all_is_there()


async def test_a_question_that_is_asked_in_another_version_is_another_question(console: Console) -> None:
    """What was typed into the arguments of one version, or became of it, must not reach the next."""
    run = console.gateway.add(an_editable_approval())
    page = await console.open_run()
    card = console.card("approval:a1")
    await page.get_by_role("button", name="Edit…").click()
    await page.get_by_label("Data, as JSON").fill('{"to": "nobody"}')
    console.gateway.command_refusals.append((Code.VERSION_CONFLICT, {}))
    await page.get_by_role("button", name="Approve with changes").click()
    await expect(card.locator(".answer")).to_contain_text("(version_conflict)")
    run.then(
        events.ApprovalRequested(approval_id="a1", description="Send the mail twice", risk="medium", version=4,
                                 action_digest="d4", data={"to": "all"}, editable=True)
    )  # fmt: skip
    await expect(card).to_contain_text("Send the mail twice")
    await expect(card).to_have_count(1)
    await expect(card.locator(".answer")).to_have_text("")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(console.item("approval:a1")).to_contain_text("decided by dana")
    [command] = console.gateway.commands
    payload = command["payload"]
    assert (payload["decision"], payload["expected_version"], payload["action_digest"]) == ("approved", 4, "d4")
    assert "data" not in payload


# --- other things to decide -------------------------------------------------------------------------------


async def test_who_follows_the_end_still_does_after_a_decision(console: Console) -> None:
    run = console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    run.then(*(said(number, "line\n" * 12) for number in range(10)))
    await console.at(16)
    await page.get_by_role("button", name="Approve").click()
    await expect(console.card("approval:a1")).to_have_count(0)
    run.then(said(77))
    await expect(console.item("message:m77")).to_be_in_viewport()
    await expect(page.get_by_role("button", name="Newest")).to_be_hidden()


async def test_what_waits_is_beside_the_evidence_wherever_that_is_scrolled(console: Console) -> None:
    run = console.gateway.add(a_waiting_run(RUN, "demo"))
    page = await console.open_run()
    run.then(*(said(number, "line\n" * 12) for number in range(10)))
    await console.at(16)
    await expect(console.card("approval:a1")).to_be_in_viewport()
    await expect(console.item("approval:a1")).not_to_be_in_viewport()
    await page.keyboard.press("n")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()


async def test_a_question_is_answered_in_the_shape_of_its_schema(console: Console) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "minimum": 1},
            "class": {"enum": ["eco", "first"]}, "note": {"type": "string"}, "direct": {"type": "boolean"},
            "extras": {"type": "array", "items": {"enum": ["bag", "meal"]}},
            "who": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
        "required": ["city", "days", "who"],
    }  # fmt: skip
    console.gateway.add(
        running().then(
            events.InputRequested(input_id="i1", prompt="Where to?", schema=schema),
            events.RunWaiting(on=(events.WaitingFor(kind="input", id="i1"),)),
        )
    )
    page = await console.open_run()
    form = console.card("input:i1")
    await form.get_by_role("button", name="Send").click()
    await expect(form.get_by_role("alert")).to_contain_text("city")
    await form.get_by_label("city").fill("Oslo")
    await form.get_by_label("days").fill("0")
    await form.get_by_role("button", name="Send").click()
    await expect(form.get_by_role("alert")).to_contain_text("days")
    await form.get_by_label("days").fill("3")
    await form.get_by_label("class").select_option("first")
    await form.get_by_label("meal").check()
    await form.get_by_label("name").fill("Ann")
    await form.get_by_role("button", name="Send").click()
    await expect(console.item("input:i1")).to_contain_text("answered by dana")
    value = {"city": "Oslo", "days": 3, "class": "first", "extras": ["meal"], "who": {"name": "Ann"}}
    assert console.gateway.commands[0]["payload"] == {"input_id": "i1", "value": value}
    await expect(page.locator(".run-head .status")).to_have_text("running")


async def test_a_secret_is_typed_unseen_and_kept_nowhere(console: Console) -> None:
    console.gateway.add(
        running().then(
            events.InputRequested(input_id="i1", prompt="Token?", schema={"type": "string", "format": "password"}),
            events.RunWaiting(on=(events.WaitingFor(kind="input", id="i1"),)),
        )
    )
    page = await console.open_run()
    await console.card("input:i1").locator("input[type=password]").fill("hunter2")
    await page.reload()
    await expect(console.card("input:i1").locator("input[type=password]")).to_have_value("")
    assert "hunter2" not in await page.evaluate("() => JSON.stringify({...sessionStorage, ...localStorage})")


async def test_a_call_of_unknown_outcome_is_reconciled_with_note_and_result(console: Console) -> None:
    run = console.gateway.add(
        running().then(
            events.ToolRequested(tool_call_id="c1", name="charge_card", arguments={"amount": 249},
                                 side_effect="unsafe", operation_id="op1"),
            events.ToolRunning(tool_call_id="c1"),
            events.RunLeaseLost(lease_epoch=1),
            events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="op1"),
        )
    )  # fmt: skip
    page = await console.open_run()
    await expect(page.locator(".diagnosis")).to_contain_text("Nobody knows whether charge_card took effect")
    card = console.card("tool:c1")
    await card.get_by_role("button", name="Reconcile").click()
    await expect(card.get_by_role("alert")).to_have_text("Say whether it took effect.")
    await card.get_by_label("It took effect").check()
    await card.get_by_role("button", name="Reconcile").click()
    await expect(card.get_by_role("alert")).to_have_text("Say how you know.")
    await card.get_by_label("How do you know?").fill("it is on the bank's list")
    await card.get_by_label("What it returned").fill('{"receipt": 17}')
    await card.get_by_role("button", name="Reconcile").click()
    await expect(console.item("tool:c1")).to_contain_text(
        "reconciled: executed — said by dana: it is on the bank's list"
    )
    assert console.gateway.commands[0]["payload"] == {
        "tool_call_id": "c1", "outcome": "executed", "note": "it is on the bank's list", "result": {"receipt": 17},
    }  # fmt: skip
    await console.agrees_with(run)


async def test_a_message_is_sent_to_the_agent(console: Console) -> None:
    run = console.gateway.add(running())
    page = await console.open_run()
    await page.keyboard.press("m")
    await page.keyboard.type("Stop after this one.")
    await page.keyboard.press("Control+Enter")
    await expect(console.item("message:said-3")).to_contain_text("Stop after this one.")
    await expect(page.get_by_label("Message to the agent")).to_have_value("")
    assert console.gateway.commands[0]["type"] == "message.send"
    assert console.gateway.commands[0]["payload"] == {"content": "Stop after this one."}
    run.then(events.RunCompleted())
    await expect(page.locator(".composer")).to_be_hidden()


async def test_a_run_is_cancelled_only_after_a_second_yes(console: Console) -> None:
    console.gateway.add(running())
    page = await console.open_run()
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Keep it running").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    assert console.gateway.commands == []
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("dialog").get_by_label("Reason for cancelling").fill("wrong branch")
    await page.get_by_role("button", name="Cancel the run").click()
    await expect(page.locator(".run-head .status")).to_have_text("cancelling")
    assert console.gateway.commands[0]["payload"] == {"reason": "wrong branch"}
    await expect(page.get_by_role("button", name="Cancel…")).to_be_hidden()


async def test_a_run_is_paused_and_resumed(console: Console) -> None:
    console.gateway.add(running())
    page = await console.open_run()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".run-head .status")).to_have_text("paused")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator(".run-head .status")).to_have_text("running")
    assert [command["type"] for command in console.gateway.commands] == ["run.pause", "run.resume"]


async def test_a_failed_call_offers_a_retry_until_it_was_retried(console: Console) -> None:
    run = console.gateway.add(a_failed_call())
    page = await console.open_run()
    await page.get_by_role("button", name="Retry this call").click()
    await expect(console.item("tool:c1").locator(".answer")).to_have_text("Recorded.")
    assert console.gateway.commands[0]["payload"] == {"tool_call_id": "c1"}
    run.then(events.ToolRequested(tool_call_id="c2", name="fetch", arguments={}, attempt=2, retry_of="c1"))
    await expect(page.get_by_role("button", name="Retry this call")).to_have_count(0)
