"""One wish has one effect and one answer, whatever the network does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runlane.client import ActionOutcome, Applied, Declined, RunActions, RunState, Unknown
from runlane.client.commands import IN_PROGRESS, CommandState
from runlane.client.transports.ports import CommandReceipt
from runlane_contracts import events
from runlane_contracts.commands import SendMessage
from runlane_contracts.events import Payload
from support.memory_lane import MemoryLane, MemoryRun
from support.runs import a_short_run, a_waiting_run


def waiting(give_up_after_s: float = 5.0) -> tuple[MemoryLane, RunActions]:
    lane = MemoryLane("acme")
    story = a_waiting_run()
    lane.runs["run_2"] = MemoryRun(story.run, list(story.facts))
    return lane, RunActions(lane, "run_2", give_up_after_s=give_up_after_s)


def submitted(lane: MemoryLane) -> int:
    return sum(verb == "submit" for verb, _ in lane.calls)


async def test_a_decision_is_applied_and_says_up_to_where_to_read():
    _, actions = waiting()
    outcome = await actions.resolve_approval("a1", "approved", expected_version=1)
    assert outcome == Applied(outcome.command_id, "c7", 7)
    assert actions.unsettled == {}


async def test_p4_a_lost_answer_is_unknown_never_sent_again_by_itself_and_settled_by_recovery():
    """To see it fail: let `send_intent` go on after an `Unreachable` that was sent."""
    lane, actions = waiting()
    lane.lose_answers.extend(["submit"])
    lost = await actions.send("hello")
    assert isinstance(lost, Unknown)
    assert submitted(lane) == 1
    (found,) = (await actions.recover()).values()
    assert isinstance(found, Applied)
    assert submitted(lane) == 1, "the ledger knows it: nothing was sent again"
    assert lane.types("run_2").count("message.completed") == 1


async def test_who_wants_to_wait_has_it_settled():
    lane, actions = waiting()
    lane.lose_answers.extend(["submit", "find_command"])
    assert isinstance(await actions.settled(await actions.send("hello")), Applied)
    assert lane.types("run_2").count("message.completed") == 1


def followed(*more: Payload) -> tuple[MemoryLane, RunActions, RunState]:
    """A waiting run, and its state as it is known here; `more` is known here only."""
    lane, actions = waiting()
    state = RunState("run_2", "acme")
    for fact in a_waiting_run().then(*more).facts:
        state.apply(fact)
    actions.state = state
    return lane, actions, state


async def test_what_the_local_state_knows_to_be_over_is_declined_without_asking():
    """To see it fail: let `objection` answer None."""
    decided = events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u", version=1)
    lane, actions, _ = followed(decided)
    late = await actions.resolve_approval("a1", "rejected", expected_version=1)
    assert isinstance(late, Declined)
    assert (late.code, late.sent, late.recorded["decision"]) == ("already_resolved", False, "approved")
    assert submitted(lane) == 0
    assert actions.unsettled == {}
    await actions.resolve_approval("a1", "rejected", expected_version=2)
    assert submitted(lane) == 1, "it may have been asked anew: the server says"


async def test_a_version_that_is_known_to_be_void_is_declined_without_asking():
    revoked = events.ApprovalResolved(approval_id="a1", decision="revoked", decided_by="system", version=1)
    again = events.ApprovalRequested(approval_id="a1", description="d", risk="low", version=2, action_digest="x")
    lane, actions, _ = followed(revoked, again)
    void = await actions.resolve_approval("a1", "approved", expected_version=1)
    assert isinstance(void, Declined)
    assert (void.code, void.sent, void.recorded["version"]) == ("version_conflict", False, 2)
    assert submitted(lane) == 0


@pytest.mark.parametrize(
    ("facts", "ask", "code"),
    [
        ([events.RunCompleted()], lambda a: a.cancel_run(), "run_terminal"),
        ([events.RunCompleted()], lambda a: a.send("hi"), "run_terminal"),
        ([events.ToolRequested(tool_call_id="c9", name="n", arguments={}), events.ToolCompleted(tool_call_id="c9")],
         lambda a: a.retry_tool("c9"), "not_retryable"),
        ([events.ToolRequested(tool_call_id="c9", name="n", arguments={}), events.ToolCompleted(tool_call_id="c9")],
         lambda a: a.reconcile("c9", "executed", "saw it"), "invalid_state"),
        ([events.ToolRequested(tool_call_id="c9", name="n", arguments={}, retry_of="c8", attempt=2)],
         lambda a: a.retry_tool("c8"), "already_retried"),
        ([events.InputRequested(input_id="i9", prompt="p"), events.InputProvided(input_id="i9", by="u", value=1)],
         lambda a: a.provide_input("i9", 2), "already_resolved"),
    ],
)  # fmt: skip
async def test_each_wish_that_can_have_no_effect_any_more_is_declined_by_name(
    facts: list[Payload], ask: Callable[[RunActions], Awaitable[ActionOutcome]], code: str
):
    lane, actions, _ = followed(*facts)
    outcome = await ask(actions)
    assert isinstance(outcome, Declined)
    assert (outcome.code, outcome.sent) == (code, False)
    assert submitted(lane) == 0


async def test_what_may_still_change_is_for_the_server_to_decide():
    lane, actions, _ = followed()
    await actions.resume()
    await actions.resolve_approval("nobody-knows", "approved")
    assert submitted(lane) == 2


async def test_one_submission_about_a_thing_is_on_its_way_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """To see it fail: let `RunActions._objection` not look at `unsettled`."""
    lane, actions = waiting()
    submit = lane.submit

    async def slowly(*args: Any, **kw: Any) -> CommandReceipt:
        await asyncio.sleep(0.01)
        return await submit(*args, **kw)

    monkeypatch.setattr(lane, "submit", slowly)
    replies = await asyncio.gather(
        actions.resolve_approval("a1", "approved"), actions.resolve_approval("a1", "rejected"), actions.pause(),
        actions.send("one"), actions.send("two"), actions.cancel(),
    )  # fmt: skip
    first, second, *others = replies
    assert isinstance(first, Applied)
    assert isinstance(second, Declined)
    assert (second.code, second.sent) == (IN_PROGRESS, False)
    assert [type(one) for one in others] == [Applied] * 4
    assert lane.types("run_2").count("approval.resolved") == 1


async def test_while_an_outcome_is_unknown_nothing_else_is_asked_about_the_same_thing():
    lane, actions = waiting()
    lane.lose_answers.extend(["submit"])
    assert isinstance(await actions.resolve_approval("a1", "approved"), Unknown)
    other = await actions.resolve_approval("a1", "rejected")
    assert isinstance(other, Declined)
    assert other.code == IN_PROGRESS
    await actions.recover()
    late = await actions.resolve_approval("a1", "rejected")
    assert isinstance(late, Declined)
    assert late.code == "already_resolved"


async def test_the_latest_command_of_each_action_is_kept_apart_from_the_run():
    lane, actions, state = followed()
    told: list[CommandState] = []
    actions.on_change = told.append
    before = state.checksum()
    lane.lose_answers.extend(["submit"])
    await actions.resolve_approval("a1", "approved")
    await actions.recover()
    await actions.pause()
    await actions.resume()
    phases = [(one.action, one.entity, one.phase) for one in told]
    decide = ("approval.resolve", "approval:a1")
    assert phases == [
        (*decide, "submitting"), (*decide, "unknown"), (*decide, "succeeded"),
        ("run.pause", "run", "submitting"), ("run.pause", "run", "succeeded"),
        ("run.resume", "run", "submitting"), ("run.resume", "run", "succeeded"),
    ]  # fmt: skip
    assert {place: one.phase for place, one in actions.latest.items()} == {
        decide: "succeeded", ("run.pause", "run"): "succeeded", ("run.resume", "run"): "succeeded",
    }  # fmt: skip
    assert state.checksum() == before, "a command is no fact"


async def test_a_second_decision_learns_the_first():
    _, actions = waiting()
    await actions.resolve_approval("a1", "rejected")
    late = await actions.resolve_approval("a1", "approved")
    assert late == Declined("already_resolved", late.detail, {"decision": "rejected"})


async def test_an_answer_that_never_comes_is_unknown_and_recovered_by_its_key():
    lane, actions = waiting(give_up_after_s=0.3)
    lane.lose_answers.extend(["submit"] * 100)
    assert isinstance(await actions.cancel("enough"), Unknown)
    (key,) = actions.unsettled
    lane.lose_answers.clear()
    outcomes = await actions.recover()
    assert isinstance(outcomes[key], Applied)
    assert actions.unsettled == {}
    assert lane.types("run_2").count("run.cancel_requested") == 1


async def test_what_the_server_never_got_is_sent_again_on_recovery():
    _, actions = waiting()
    actions.unsettled["key_1"] = intent = actions.factory.intent(
        "run_2", SendMessage(content="hi"), idempotency_key="key_1"
    )
    assert intent.type == "message.send"
    assert isinstance((await actions.recover())["key_1"], Applied)


async def test_a_request_that_never_left_is_declined_as_unreachable():
    lane, actions = waiting(give_up_after_s=0.3)
    lane.unreachable = True
    assert await actions.pause() == Declined("unreachable", "no route", sent=False)


async def test_an_overloaded_server_is_asked_again():
    lane, actions = waiting()
    lane.refuse_next.extend(["submit"])
    assert isinstance(await actions.pause(), Applied)


async def test_a_finished_run_declines_by_name():
    lane = MemoryLane("acme")
    story = a_short_run()
    lane.runs["run_1"] = MemoryRun(story.run, list(story.facts))
    outcome = await RunActions(lane, "run_1").cancel()
    assert isinstance(outcome, Declined)
    assert outcome.code == "run_terminal"
