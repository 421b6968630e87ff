"""What a selector answers is the same object until it changes, and then another."""

from hypothesis import given, strategies as st

from runlane.client import RunState, selectors
from runlane_contracts import events
from runlane_contracts.resume import SnapshotFrame
from support.runs import a_short_run, a_waiting_run, runs


def test_an_answer_is_the_same_object_until_it_changes():
    story = a_waiting_run()
    state = RunState("run_2")
    for fact in story.facts:
        state.apply(fact)
    asked, tools = state.select(selectors.open_approvals), state.select(selectors.running_tools)
    timeline = state.select(selectors.timeline)
    assert state.select(selectors.open_approvals) is asked
    for fact in story.then(events.InputRequested(input_id="i1", prompt="How many?")).facts[len(story.facts) - 1 :]:
        state.apply(fact)
    assert state.select(selectors.open_approvals) is asked
    assert state.select(selectors.running_tools) is tools
    later = state.select(selectors.timeline)
    assert later is not timeline
    assert all(one is two for one, two in zip(timeline, later, strict=False))


def test_answers_stay_as_they_were_and_arguments_tell_questions_apart():
    story = a_short_run()
    state = RunState("run_1")
    before = None
    for fact in story.facts:
        state.apply(fact)
        call = state.select(selectors.tool_call, "c1")
        if call is not None and call["status"] == "requested":
            before = call
    assert before is not None
    assert before["status"] == "requested"
    assert state.select(selectors.tool_call, "c1")["status"] == "completed"
    assert state.select(selectors.tool_call, "c2") is None


@given(runs(odd=False), st.integers(0, 40))
def test_every_answer_is_what_the_state_says(story, snapshot_at):
    """Take `Selection.touch` out to see this fail."""
    state, twin = RunState(story.run.run_id), RunState(story.run.run_id)
    seen = {}
    for number, fact in enumerate(story.facts):
        twin.apply(fact)
        if number == snapshot_at:
            state.apply(
                SnapshotFrame(state=_copy(twin.data), through_sequence=twin.sequence, reducer_version=1, checksum="")
            )
        else:
            state.apply(fact)
        for selector in (selectors.timeline, selectors.run, selectors.messages, selectors.open_inputs):
            answer = state.select(selector)
            assert answer == selector(state.data)
            if answer == seen.get(selector):
                assert answer is seen[selector]
            seen[selector] = answer


def _copy(data):
    import copy  # noqa: PLC0415

    return copy.deepcopy(data)
