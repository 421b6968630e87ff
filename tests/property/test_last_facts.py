"""The last facts of a run begin where an item begins: as late as that allows, and never inside a half-told one."""

from hypothesis import given, settings, strategies as st

from runlane.edge_gateway.last import WHOLE, before_last, boundary
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.run_state import NothingFolded, RunStates
from runlane_contracts import events, reducer
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.runs import Story, runs

RUN = RunAddress("acme", "run_1")


def state_of(story: Story) -> reducer.State:
    state = reducer.initial_state(*RUN)
    for fact in story.facts:
        reducer.reduce(state, fact)
    return state


def half_told(state: reducer.State, start: int) -> list[str]:
    """Items told partly before a sequence, and partly from it on, or still to be told."""
    return [
        key
        for key, item in state["items"].items()
        if item["kind"] in WHOLE
        and item["first_sequence"] < start
        and (item["last_sequence"] >= start or item["status"] in reducer.OPEN_ITEM_STATUS)
    ]


@settings(deadline=None)
@given(runs(), st.integers(1, 40))
def test_it_begins_as_late_as_it_may_and_inside_nothing(story: Story, count: int) -> None:
    state = state_of(story)
    wanted = max(1, len(story.facts) - count + 1)
    start = boundary(state, wanted)
    assert half_told(state, start) == []
    assert all(half_told(state, later) for later in range(start + 1, wanted + 1))


async def read_last(story: Story, count: int, size: int) -> tuple[list[int], int]:
    """The sequences that are read, and how many pages that took."""
    view = MemoryView()
    head = Position("", 0, 0)
    for commit in story.commits(size):
        head = view.store(RUN, commit.facts).position
    read = view.pages_read
    after = await before_last(RunStates(view, Kept(story)), view, RUN, head, count)
    return list(range(after.sequence + 1, head.sequence + 1)), view.pages_read - read


class Kept(NothingFolded):
    """A read store that is up to date."""

    def __init__(self, story: Story) -> None:
        self._story = story

    async def load(self, run: RunAddress) -> object:  # type: ignore[override]
        from runlane.edge_gateway.run_state import StateAt  # noqa: PLC0415

        return StateAt(state_of(self._story), Position("e1", 10**6, len(self._story.facts)))


def a_long_run(count: int) -> Story:
    story = Story().then(events.RunCreated(agent="a", input=None))
    for number in range(count):
        story.then(
            events.MessageStarted(message_id=f"m{number}", role="assistant"),
            events.MessageCompleted(message_id=f"m{number}", role="assistant", content="x"),
        )
    return story


async def test_a_message_that_would_be_cut_is_told_whole() -> None:
    sequences, _ = await read_last(a_long_run(400), 3, 3)
    assert sequences == [798, 799, 800, 801]
    sequences, _ = await read_last(a_long_run(400), 4, 3)
    assert sequences == [798, 799, 800, 801]


async def test_what_is_still_open_is_told_from_its_beginning() -> None:
    story = a_long_run(150)
    story.then(events.ToolRequested(tool_call_id="c1", name="build", arguments={}))
    for number in range(10):
        story.then(events.TaskCreated(task_id=f"t{number}"))
    sequences, _ = await read_last(story, 2, 3)
    assert sequences[0] == 302


async def test_all_that_was_before_is_not_read() -> None:
    """To see it fail: let `_place` answer with stream sequence 0."""
    _, pages = await read_last(a_long_run(1000), 5, 1)
    assert pages <= 2
