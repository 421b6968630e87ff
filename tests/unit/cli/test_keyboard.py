"""Keys decide what was shown, and nothing else."""

from typing import Any

from hypothesis import given, strategies as st

from runlane.cli.keyboard import Choice, Chosen
from runlane.cli.timeline import body
from runlane.client import RunState
from runlane_contracts import events
from support.runs import Story


def ask(id_: str, version: int = 1) -> dict[str, Any]:
    return {"id": id_, "description": f"do {id_}", "version": version, "status": "waiting"}


def test_a_decision_takes_its_key_and_a_yes():
    choice = Choice()
    choice.see([ask("a1")])
    assert choice.press("a") is None
    assert choice.press("y") == Chosen(ask("a1"), "approved")
    assert choice.press("y") is None
    choice.press("x")
    assert choice.press("n") is None
    choice.press("x")
    assert choice.press("Y") == Chosen(ask("a1"), "rejected")


def test_a_yes_does_not_decide_what_changed_or_is_gone_in_between():
    for now in ([ask("a1", version=2)], [], [ask("a2")]):
        choice = Choice()
        choice.see([ask("a1")])
        choice.press("a")
        choice.see(now)
        assert choice.press("y") is None


def test_the_next_one_is_chosen_in_turn_and_stays_chosen_while_others_come_and_go():
    choice = Choice()
    choice.see([ask("a1"), ask("a2"), ask("a3")])
    assert [choice.selected, choice.press("n"), choice.selected] == ["a1", None, "a2"]
    choice.see([ask("a2"), ask("a3"), ask("a4")])
    assert choice.selected == "a2"
    choice.see([ask("a3")])
    assert choice.selected == "a3"
    choice.press("\t")
    assert choice.selected == "a3"


def test_keys_wait_while_a_decision_is_on_its_way():
    choice = Choice(sending=True)
    choice.see([ask("a1")])
    assert choice.press("a") is None
    assert choice.asked is None


@given(st.lists(st.one_of(st.sampled_from("axyn\tq?"), st.lists(st.sampled_from(["a1", "a2"]), unique=True))))
def test_no_keys_ever_decide_without_a_yes_right_after_the_question(steps: list[Any]):
    choice, shown = Choice(), list[str]()
    before: Any = None
    for step in steps:
        if isinstance(step, list):
            shown = step
            choice.see([ask(one) for one in step])
        else:
            chosen = choice.press(step)
            if chosen is not None:
                assert step == "y"
                assert before in ("a", "x", *([before] if isinstance(before, list) else []))
                assert chosen.approval["id"] in shown
        before = step if not isinstance(step, list) else before


def test_calls_that_are_alike_are_one_line_and_failures_never_are():
    story = Story().then(events.RunCreated(agent="a"))
    for number in range(6):
        call = f"c{number}"
        story.then(events.ToolRequested(tool_call_id=call, name="read", arguments={"n": number}, action_digest="d"))
        error = events.Problem(code="gone", message="no file")
        done = events.ToolCompleted(tool_call_id=call, result="x")
        story.then(events.ToolFailed(tool_call_id=call, error=error) if number == 4 else done)
    state = RunState("run_1")
    for fact in story.facts:
        state.apply(fact)
    lines = [line.plain for line in body(state)]
    assert ["×4" in lines[0], "gone: no file" in lines[1], "read" in lines[2], len(lines)] == [True, True, True, 3]
