"""The timeline: every fact in exactly one row, the same rows however they came, and no failure hidden."""

import pytest
from hypothesis import given, settings, strategies as st

from runlane_contracts import events, reducer, timeline
from runlane_contracts.envelope import Fact
from runlane_contracts.timeline import MAX_FOLDED, Timeline, TimelineRow, timeline_of
from support.recorded import recorded_runs
from support.runs import Story, a_short_run, a_waiting_run, runs

RUNS = [
    pytest.param(a_short_run().facts, id="a_short_run"),
    pytest.param(a_waiting_run().facts, id="a_waiting_run"),
    *(pytest.param(facts, id=name) for name, facts in recorded_runs().items()),
]


def called(story: Story, *ids: str, tool: str = "read_file", until: str = "completed") -> Story:
    for id_ in ids:
        story.then(events.ToolRequested(tool_call_id=id_, name=tool, arguments={"of": id_}))
        story.then(events.ToolRunning(tool_call_id=id_))
        match until:
            case "completed":
                story.then(events.ToolCompleted(tool_call_id=id_, result=1))
            case "failed":
                story.then(events.ToolFailed(tool_call_id=id_, error=events.Problem(code="disk", message="full")))
            case _:
                pass
    return story


def of_tools(story: Story) -> list[tuple[str | None, str, int, bool]]:
    return [(row.name, row.phase, row.count, row.failed) for row in timeline_of(story.facts) if row.kind == "tool"]


def assert_each_fact_is_in_one_row(facts: list[Fact], rows: list[TimelineRow]) -> None:
    assert sorted(sequence for row in rows for sequence in row.sequences) == [fact.sequence for fact in facts]
    assert len({row.row_id for row in rows}) == len(rows)
    assert [row.first_sequence for row in rows] == sorted(row.first_sequence for row in rows)
    for row in rows:
        assert list(row.sequences) == sorted(row.sequences)
        assert (row.first_sequence, row.last_sequence) == (row.sequences[0], row.sequences[-1])


def assert_failures_stand_alone(facts: list[Fact], rows: list[TimelineRow]) -> None:
    state = reducer.initial_state("acme", facts[0].run_id)
    for fact in facts:
        reducer.reduce(state, fact)
    failed = {key for key, item in state["items"].items() if item["status"] in {"failed", "outcome_unknown"}}
    assert {row.items for row in rows if row.failed and row.items} == {(key,) for key in failed}
    assert all(row.count == 1 for row in rows if row.failed)


@pytest.mark.parametrize("facts", RUNS)
def test_every_fact_of_a_recording_belongs_to_exactly_one_row(facts: list[Fact]) -> None:
    rows = timeline_of(facts)
    assert_each_fact_is_in_one_row(facts, rows)
    assert_failures_stand_alone(facts, rows)


@settings(deadline=None)
@given(runs())
def test_every_fact_belongs_to_exactly_one_row_and_failures_to_their_own(story: Story) -> None:
    rows = timeline_of(story.facts)
    assert_each_fact_is_in_one_row(story.facts, rows)
    assert_failures_stand_alone(story.facts, rows)


@settings(deadline=None)
@given(runs(), st.data())
def test_rows_are_the_same_whether_facts_come_one_by_one_or_all_at_once(story: Story, data: st.DataObject) -> None:
    """Take the `_stale_from = min(…)` out of `_apply_to_item`: rows that were asked for before stay as they were."""
    growing = Timeline()
    for fact in story.facts:
        growing.apply(fact)
        if data.draw(st.booleans()):
            assert growing.rows() == timeline_of(story.facts[: fact.sequence])
    assert growing.rows() == timeline_of(story.facts)


@settings(deadline=None)
@given(runs(), st.integers(1, 5))
def test_pages_give_every_row_once(story: Story, limit: int) -> None:
    whole = Timeline()
    for fact in story.facts:
        whole.apply(fact)
    paged: list[TimelineRow] = []
    while page := whole.rows(after=paged[-1].first_sequence if paged else 0, limit=limit):
        assert len(page) <= limit
        paged += page
    assert paged == whole.rows()


def compacted(*erased: str) -> events.LogCompacted:
    return events.LogCompacted(
        from_sequence=1, to_sequence=1, snapshot_ref="-", sha256="-", policy="asked to", reason="erasure",
        erased=erased,
    )  # fmt: skip


@settings(deadline=None)
@given(runs(odd=False))
def test_rows_made_before_an_erasure_are_those_made_after_it(story: Story) -> None:
    """To see it fail: take `_forget` out, or let it leave a name, a text or a phase that came from content."""
    erased = [fact.sequence for fact in story.facts if not fact.type.startswith("log.")]
    before = timeline_of(story.then(compacted("*")).facts)
    after = timeline_of(story.erased(*erased).facts)
    assert before == after
    assert all((row.name, row.text, row.error) == (None, None, None) for row in after if row.kind != "log")


def test_what_is_erased_of_one_item_is_not_told_any_more() -> None:
    story = called(Story(), "c1").then(events.MessageCompleted(message_id="m1", role="user", content="my address"))
    told = timeline_of(story.then(compacted("message:m1")).facts)
    assert [(row.kind, row.name, row.text) for row in told][:2] == [
        ("tool", "read_file", '{"of":"c1"}'), ("message", None, None)
    ]  # fmt: skip


def test_calls_of_one_tool_that_stand_alike_are_one_row_with_a_count() -> None:
    story = called(Story().then(events.RunCreated(agent="a", input=None)), "c1", "c2", "c3")
    (row,) = (row for row in timeline_of(story.facts) if row.kind == "tool")
    assert (row.name, row.phase, row.count, row.failed, row.open) == ("read_file", "completed", 3, False, False)
    assert row.sequences == tuple(range(2, 11))
    assert row.items == ("tool:c1", "tool:c2", "tool:c3")
    assert row.row_id == "row_2"


def test_what_runs_is_a_row_beside_what_completed_and_joins_it() -> None:
    story = called(called(Story(), "c1", "c2"), "c3", until="running")
    assert of_tools(story) == [("read_file", "completed", 2, False), ("read_file", "running", 1, False)]
    story.then(events.ToolCompleted(tool_call_id="c3", result=1))
    assert of_tools(story) == [("read_file", "completed", 3, False)]


def test_other_tools_thoughts_and_turns_between_do_not_split_a_row() -> None:
    story = Story()
    for turn in ("t1", "t2", "t3"):
        story.then(events.TurnStarted(turn_id=turn))
        story.then(events.ReasoningCompleted(reasoning_id=f"r_{turn}", summary="hm"))
        called(story, f"{turn}_read")
        called(story, f"{turn}_grep", tool="grep")
        story.then(events.TurnCompleted(turn_id=turn))
    assert [(row.kind, row.name, row.count) for row in timeline_of(story.facts)] == [
        ("turn", None, 3), ("reasoning", None, 3), ("tool", "read_file", 3), ("tool", "grep", 3),
    ]  # fmt: skip


def test_what_a_person_sees_between_splits_a_row() -> None:
    story = called(Story(), "c1", "c2")
    story.then(events.MessageCompleted(message_id="m1", role="assistant", content="half of it"))
    assert of_tools(called(story, "c3")) == [("read_file", "completed", 2, False), ("read_file", "completed", 1, False)]


def test_a_failure_is_never_folded_and_shows_where_it_happened() -> None:
    story = called(called(Story(), "c1", "c2"), "c3", "c4", until="failed")
    rows = [row for row in timeline_of(called(story, "c5").facts) if row.kind == "tool"]
    assert [(row.phase, row.count, row.failed) for row in rows] == [
        ("completed", 2, False), ("failed", 1, True), ("failed", 1, True), ("completed", 1, False),
    ]  # fmt: skip
    assert rows[1].error is not None
    assert (rows[1].error.code, rows[1].error.message) == ("disk", "full")


def test_a_call_whose_outcome_was_unknown_stays_a_row_of_its_own() -> None:
    story = called(called(Story(), "c1"), "c2", until="running")
    story.then(events.ToolOutcomeUnknown(tool_call_id="c2", operation_id="o1"))
    assert of_tools(story)[1] == ("read_file", "outcome_unknown", 1, True)
    story.then(events.ToolReconciled(tool_call_id="c2", outcome="executed", by="u1"))
    assert of_tools(story) == [("read_file", "completed", 1, False), ("read_file", "completed", 1, False)]


def test_a_row_holds_only_so_many() -> None:
    story = called(Story(), *(f"c{number}" for number in range(MAX_FOLDED + 1)))
    assert [count for _, _, count, _ in of_tools(story)] == [MAX_FOLDED, 1]


def test_text_is_short_whatever_it_was() -> None:
    story = Story().then(
        events.MessageCompleted(message_id="m1", role="assistant", content="x" * 100_000),
        events.MessageCompleted(message_id="m2", role="assistant", content=[{"text": "y" * 1000}]),
    )
    assert all(row.text is not None and len(row.text) == timeline.MAX_TEXT for row in timeline_of(story.facts))


def test_a_hole_is_refused_and_a_repeat_changes_nothing() -> None:
    facts = a_short_run().facts
    growing = Timeline()
    growing.apply(facts[0])
    growing.apply(facts[0])
    with pytest.raises(reducer.SequenceGap):
        growing.apply(facts[2])
    assert growing.through_sequence == 1
