"""The fold of one run, message by message."""

import pytest

from runlane.projector import fold as folding
from runlane.projector.cache import FoldCache
from runlane.projector.fold import RunFold, ViewMessage
from runlane_contracts import reducer
from runlane_contracts.cursor import Position
from runlane_contracts.reducer import SequenceGap
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView
from support.runs import a_short_run

RUN = RunAddress("acme", "run_1")


def messages(size: int = 3) -> list[ViewMessage]:
    return MemoryView().put(*a_short_run().commits(size))


def folded(those: list[ViewMessage]) -> RunFold:
    fold = folding.begin(RUN)
    for one in those:
        folding.apply(fold, one, epoch="e1")
    return fold


def test_a_fold_is_the_reducer_over_every_fact() -> None:
    fold = folded(messages())
    expected = reducer.initial_state("acme", "run_1")
    for fact in a_short_run().facts:
        reducer.reduce(expected, fact)
    assert fold.state == expected
    assert fold.position == Position("e1", 4, 12)
    assert fold.changed == set(expected["items"])


def test_a_message_that_came_before_changes_nothing() -> None:
    those = messages()
    assert folded([*those, those[-1]]).state == folded(those).state


def test_a_missing_message_is_noticed() -> None:
    those = messages()
    with pytest.raises(SequenceGap):
        folded([those[0], those[2]])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"commit_id": "x"}', b"[" * 20_000])
def test_a_message_that_is_no_commit_leaves_a_mark_for_each_fact_it_should_have_held(data: bytes) -> None:
    those = messages()
    those[1] = ViewMessage(RUN, 2, 4, 6, data)
    fold = folded(those)
    assert [mark["sequence"] for mark in fold.state["marks"]] == [4, 5, 6]
    assert fold.state["run"]["status"] == "completed"
    assert fold.state["through_sequence"] == 12


def test_facts_of_another_run_than_the_subject_names_are_not_believed() -> None:
    those = messages()
    other = MemoryView().put(*a_short_run("run_9").commits(3))
    those[1] = ViewMessage(RUN, 2, 4, 6, other[1].data)
    fold = folded(those)
    assert [mark["sequence"] for mark in fold.state["marks"]] == [4, 5, 6]
    assert "message:m1" not in fold.state["items"]


def test_an_unreadable_message_after_a_hole_is_a_hole() -> None:
    with pytest.raises(SequenceGap):
        folded([messages()[0], ViewMessage(RUN, 9, 7, 9, b"")])


def test_a_fact_that_the_reducer_fails_on_is_named_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reducer.reduce

    def fails_on_five(state: reducer.State, fact: object) -> str | None:
        if fact.sequence == 5:  # type: ignore[attr-defined]
            raise ZeroDivisionError
        return whole(state, fact)  # type: ignore[arg-type]

    monkeypatch.setattr(reducer, "reduce", fails_on_five)
    with pytest.raises(reducer.Poison) as caught:
        folded(messages())
    found = caught.value.quarantine
    assert (found.sequence, found.event_id, found.type) == (5, "evt_run_1_5", "message.completed")
    assert found.reducer_version == reducer.REDUCER_VERSION


def test_a_cache_gives_up_what_was_used_longest_ago() -> None:
    cache = FoldCache(max_bytes=100, max_runs=10)
    folds = [folding.begin(RunAddress("acme", f"run_{n}")) for n in range(4)]
    for fold in folds:
        fold.size = 30
    for fold in folds[:3]:
        cache.put(fold)
    first = cache.take(folds[0].run)
    assert first is folds[0]
    cache.put(first)
    cache.put(folds[3])
    assert cache.take(folds[1].run) is None
    assert cache.size == 90
    assert len(cache) == 3


def test_a_cache_is_bounded_by_number_and_by_size() -> None:
    cache = FoldCache(max_bytes=100, max_runs=2)
    for n in range(5):
        cache.put(folding.begin(RunAddress("acme", f"run_{n}")))
    assert len(cache) == 2
    huge = folding.begin(RUN)
    huge.size = 1000
    cache.put(huge)
    assert cache.take(RUN) is None
    assert cache.size == 0
