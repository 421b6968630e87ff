"""P6: a snapshot at any sequence, and the tail after it, give what a full replay gives."""

from copy import deepcopy

import pytest
from hypothesis import given, settings

from runlane_contracts import reducer
from runlane_contracts.codec import decode_fact, decode_json, encode
from runlane_contracts.envelope import Fact
from runlane_contracts.lifecycle import RunLifecycle
from support.recorded import recorded_runs
from support.runs import Story, a_short_run, a_waiting_run, runs

RUNS = [
    pytest.param(a_short_run().facts, id="a_short_run"),
    pytest.param(a_waiting_run().facts, id="a_waiting_run"),
    *(pytest.param(facts, id=name) for name, facts in recorded_runs().items()),
]


def replay(facts: list[Fact]) -> list[str]:
    """The checksum after each fact of a full replay."""
    state = reducer.initial_state(facts[0].tenant_id, facts[0].run_id)
    sums = []
    for fact in facts:
        reducer.reduce(state, fact)
        sums.append(reducer.checksum(state))
    return sums


def assert_snapshot_and_tail_equal_replay(facts: list[Fact]) -> None:
    sums = replay(facts)
    state = reducer.initial_state(facts[0].tenant_id, facts[0].run_id)
    for at in range(len(facts)):
        snapshot = decode_json(encode(state))  # what a store or a wire makes of it
        for fact, expected in zip(facts[at:], sums[at:], strict=True):
            reducer.reduce(snapshot, decode_fact(encode(fact)))
            assert reducer.checksum(snapshot) == expected, f"snapshot at {at}, tail through {fact.sequence}"
        reducer.reduce(state, facts[at])


@pytest.mark.parametrize("facts", RUNS)
def test_snapshot_and_tail_equal_a_full_replay_at_every_sequence(facts: list[Fact]) -> None:
    assert_snapshot_and_tail_equal_replay(facts)


def test_real_recordings_are_among_them() -> None:
    assert len(recorded_runs()) >= 5


@settings(max_examples=40, deadline=None)  # each example replays from every sequence
@given(runs())
def test_p6_holds_for_any_run(story: Story) -> None:
    assert_snapshot_and_tail_equal_replay(story.facts)


@settings(deadline=None)
@given(runs())
def test_what_was_applied_may_come_again_at_any_time(story: Story) -> None:
    state = reducer.initial_state("acme", "run_1")
    for index, fact in enumerate(story.facts):
        reducer.reduce(state, fact)
        before = deepcopy(state)
        for old in story.facts[: index + 1]:
            assert reducer.reduce(state, old) is None
        assert state == before


@settings(deadline=None)
@given(runs())
def test_only_the_item_that_reduce_names_has_changed(story: Story) -> None:
    state = reducer.initial_state("acme", "run_1")
    for fact in story.facts:
        before = deepcopy(state["items"])
        changed = reducer.reduce(state, fact)
        assert {key for key, item in state["items"].items() if before.get(key) != item} <= {changed}


@settings(deadline=None)
@given(runs(odd=False))
def test_readers_and_writers_see_the_same_status(story: Story) -> None:
    state = reducer.initial_state("acme", "run_1")
    writer = RunLifecycle(tenant_id="acme", run_id="run_1")
    for fact in story.facts:
        reducer.reduce(state, fact)
        writer.evolve([fact])
        assert state["run"]["status"] == writer.status
