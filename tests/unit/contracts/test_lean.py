"""What is decoded fast folds to the same, and is written again as it was."""

import pytest
from hypothesis import given, settings

from runlane_contracts import reducer
from runlane_contracts.codec import decode_commit, encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.lean import decode_lean_commit, decode_lean_fact
from runlane_contracts.timeline import timeline_of
from support.recorded import recorded_runs
from support.runs import Story, a_short_run, a_waiting_run, commits_of, runs

RUNS = [
    pytest.param(a_short_run().facts, id="a_short_run"),
    pytest.param(a_waiting_run().facts, id="a_waiting_run"),
    pytest.param(a_short_run().erased(1, 5, 7, 9).facts, id="erased"),
    *(pytest.param(facts, id=name) for name, facts in recorded_runs().items()),
]


def folded(commits: list[Commit]) -> tuple[str, object]:
    facts = [fact for commit in commits for fact in commit.facts]
    state = reducer.initial_state("acme", "run_1")
    for fact in facts:
        reducer.reduce(state, fact)
    return reducer.checksum(state), timeline_of(facts)


def assert_alike(facts: list[Fact]) -> None:
    bodies = [encode(commit) for commit in commits_of(facts, 5)]
    assert folded([decode_lean_commit(one) for one in bodies]) == folded([decode_commit(one) for one in bodies])
    assert [encode(decode_lean_commit(one)) for one in bodies] == bodies
    assert all(encode(decode_lean_fact(encode(fact))) == encode(fact) for fact in facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("facts", RUNS)
def test_a_recording_folds_to_the_same(facts: list[Fact]) -> None:
    assert_alike(facts)


@settings(deadline=None)
@given(runs())
def test_any_run_folds_to_the_same(story: Story) -> None:
    assert_alike(story.facts)
