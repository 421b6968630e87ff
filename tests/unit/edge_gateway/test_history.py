"""Pages of a run's history, wherever reading begins."""

import pytest

from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.run_state import NothingFolded, RunStates, StateAt
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.reducer import initial_state, reduce
from runlane_contracts.subjects import RunAddress
from support.runs import Story, a_short_run

RUN = RunAddress("acme", "run_1")
OTHER = RunAddress("acme", "run_2")


def a_view(length: int = 20) -> MemoryView:
    view = MemoryView()
    story, other = Story(), Story("acme", "run_2")
    for index in range(length):
        for one in (story, other):
            one.then(events.TaskCreated(task_id=f"t{index}"))
    for mine, theirs in zip(story.commits(3), other.commits(3), strict=True):
        view.store(OTHER, theirs.facts)
        view.store(RUN, mine.facts)
    return view


async def read(history: History, max_bytes: int = 1) -> list[int]:
    found = []
    while commits := await history.next(max_bytes):
        found += [sequence for one in commits for sequence in range(one.first_sequence, one.last_sequence + 1)]
    return found


@pytest.mark.parametrize("page_bytes", [1, 1000, 1_000_000])
@pytest.mark.parametrize("epoch", ["e1", "e0", ""])
@pytest.mark.parametrize("stream_seq", [0, 1, 2, 5, 9, 14, 999])
@pytest.mark.parametrize("sequence", [0, 1, 3, 7, 19, 20])
async def test_reading_begins_right_wherever_the_position_says_it_is(
    page_bytes: int, epoch: str, stream_seq: int, sequence: int
) -> None:
    history = History(a_view(), RUN, Position(epoch, stream_seq, sequence))
    found = await read(history, page_bytes)
    assert [one for one in found if one > sequence] == list(range(sequence + 1, 21))
    assert history.sequence == 20


async def test_a_rebuild_in_the_middle_of_reading_is_not_noticed() -> None:
    view = a_view()
    history = History(view, RUN, Position("", 0, 0))
    first = await history.next(1)
    view.rebuild("e2")
    assert [one.last_sequence for one in first] == [3]
    assert await read(history) == list(range(4, 21))


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_reader_at_the_end_does_not_read_everything_again(trusted: bool) -> None:
    view = a_view()
    head = await view.head(RUN)
    assert head is not None
    view.pages_read = 0
    assert await History(view, RUN, head.position, trusted=trusted).next(1) == []
    assert view.pages_read == 1


async def test_what_is_whole_is_handed_out_before_the_hole_is_told() -> None:
    view = a_view()
    view.cut(RUN, first_sequence=10)
    history = History(view, RUN, Position("", 0, 0))
    assert [one.last_sequence for one in await history.next(1_000_000)] == [3, 6, 9]
    with pytest.raises(Hole) as hole:
        await history.next(1_000_000)
    assert (hole.value.expected, hole.value.got) == (10, 13)


@pytest.mark.parametrize("kept", [None, 3, 7, 12])
@pytest.mark.parametrize("sequence", [1, 3, 4, 7, 11, 12])
async def test_a_state_is_the_fold_up_to_there_whatever_was_kept(kept: int | None, sequence: int) -> None:
    story = a_short_run()
    view = MemoryView()
    for commit in story.commits(3):
        view.store(RUN, commit.facts)

    def fold(through: int) -> StateAt:
        state = initial_state(*RUN)
        for fact in story.facts[:through]:
            reduce(state, fact)
        return StateAt(state, Position("e1", -(-through // 3), through))

    class Kept(NothingFolded):
        async def load(self, run: RunAddress) -> StateAt | None:
            return None if kept is None else fold(kept)

        async def load_run(self, run: RunAddress) -> StateAt | None:
            return await self.load(run)

    states = RunStates(view, Kept())
    exact = await states.at(RUN, sequence)
    assert exact.state == fold(sequence).state
    assert exact.position.sequence == sequence
    least = await states.at_least(RUN, sequence)
    assert least.state == fold(sequence).state  # so short a run is not asked for elsewhere
    assert (await states.status(RUN, 12)).status == "completed"
