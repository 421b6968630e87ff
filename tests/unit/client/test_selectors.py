from runlane.client import RunState, selectors
from runlane_contracts import events
from support.runs import a_short_run, a_waiting_run


def state_of(story) -> RunState:
    state = RunState(story.run.run_id)
    for fact in story.facts:
        state.apply(fact)
    return state


def test_items_are_found_by_what_they_are():
    state = state_of(a_short_run()).data
    assert selectors.run(state)["status"] == "completed"
    assert selectors.tool_call(state, "c1")["result"] == {"items": ["apple", "pear"]}
    assert [one["id"] for one in selectors.messages(state)] == ["m1", "m2"]
    assert [one["kind"] for one in selectors.timeline(state)] == ["turn", "message", "reasoning", "tool", "message"]
    assert selectors.tool_call(state, "nope") is None
    assert selectors.plan(state) is None
    assert selectors.artifacts(state) == []


def test_what_is_open_is_listed_until_it_is_not():
    story = a_waiting_run().then(
        events.ToolRunning(tool_call_id="c1"),
        events.InputRequested(input_id="i1", prompt="How many?"),
        events.PlanUpdated(version=2, steps=["pay"]),
    )
    state = state_of(story).data
    assert [one["id"] for one in selectors.open_approvals(state)] == ["a1"]
    assert [one["id"] for one in selectors.open_inputs(state)] == ["i1"]
    assert [one["id"] for one in selectors.running_tools(state)] == ["c1"]
    assert selectors.approval(state, "a1")["description"] == "Pay 12.50"
    assert selectors.plan(state)["steps"] == ["pay"]


def test_runs_that_are_over_are_not_running():
    listed = [{"run_id": "a", "status": "running"}, {"run_id": "b", "status": "failed"}, {"run_id": "c"}]
    assert [one["run_id"] for one in selectors.running_runs(listed)] == ["a", "c"]
