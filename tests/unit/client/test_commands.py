"""One wish has one effect and one answer, whatever the network does."""

from runlane.client import Applied, Declined, RunActions, Unknown
from runlane_contracts.commands import SendMessage
from support.memory_lane import MemoryLane, MemoryRun
from support.runs import a_short_run, a_waiting_run


def waiting(give_up_after_s: float = 5.0) -> tuple[MemoryLane, RunActions]:
    lane = MemoryLane("acme")
    story = a_waiting_run()
    lane.runs["run_2"] = MemoryRun(story.run, list(story.facts))
    return lane, RunActions(lane, "run_2", give_up_after_s=give_up_after_s)


async def test_a_decision_is_applied_and_says_up_to_where_to_read():
    _, actions = waiting()
    outcome = await actions.resolve_approval("a1", "approved", expected_version=1)
    assert outcome == Applied(outcome.command_id, "c7", 7)
    assert actions.unsettled == {}


async def test_p4_a_lost_answer_is_sent_again_under_the_same_key_and_has_one_effect():
    lane, actions = waiting()
    lane.lose_answers.extend(["submit"] * 2)
    assert isinstance(await actions.send("hello"), Applied)
    assert lane.types("run_2").count("message.completed") == 1


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
    assert await actions.pause() == Declined("unreachable", "no route")


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
