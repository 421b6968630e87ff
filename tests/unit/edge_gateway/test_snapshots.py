"""Snapshots at a sequence: folded once for all who ask, kept for a moment, bounded, never of another moment."""

import asyncio

import pytest

from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.run_state import NothingFolded, RunStates, ViewQuarantined
from runlane.edge_gateway.snapshots import Snapshots
from runlane.kernel.errors import Retryable
from runlane_contracts import reducer
from runlane_contracts.codec import decode_json
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.runs import Story, a_short_run

RUN = RunAddress("acme", "run_1")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def stored(story: Story) -> tuple[MemoryView, Position]:
    view, head = MemoryView(), Position("", 0, 0)
    for commit in story.commits(2):
        head = view.store(RUN, commit.facts).position
    return view, head


def checksum_of(story: Story, through: int) -> str:
    state = reducer.initial_state(*RUN)
    for fact in story.facts[:through]:
        reducer.reduce(state, fact)
    return reducer.checksum(state)


async def test_each_is_the_state_of_exactly_its_sequence() -> None:
    story = a_short_run()
    view, head = stored(story)
    snapshots = Snapshots(RunStates(view, NothingFolded()), monotonic=Clock())
    for sequence in (*range(1, 13), *range(12, 0, -1)):
        body = decode_json((await snapshots.at(RUN, sequence, head)).with_cursor("c"))
        assert (body["through_sequence"], body["checksum"]) == (sequence, checksum_of(story, sequence))
        assert body["checksum"] == reducer.checksum(body["state"])


async def test_many_who_ask_at_once_cost_one_fold_and_who_leaves_takes_nothing() -> None:
    """To see it fail: fold for each."""
    view, head = stored(a_short_run())
    snapshots = Snapshots(RunStates(view, NothingFolded()), monotonic=Clock())
    asking = [asyncio.create_task(snapshots.at(RUN, 9, head)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[7].cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(answers.pop(7), asyncio.CancelledError)
    assert len({id(one) for one in answers}) == 1
    assert view.pages_read == 1


async def test_it_is_kept_for_a_moment_and_not_when_the_run_went_on() -> None:
    """To see it fail: leave the head out of the key, or let nothing expire."""
    view, head = stored(a_short_run())
    clock = Clock()
    snapshots = Snapshots(RunStates(view, NothingFolded()), monotonic=clock, kept_s=30)
    first = await snapshots.at(RUN, 9, head)
    assert await snapshots.at(RUN, 9, head) is first
    assert await snapshots.at(RUN, 9, Position("e1", head.stream_seq + 1, 13)) is not first
    clock.now_s = 30.0
    assert await snapshots.at(RUN, 9, head) is not first


async def test_what_is_kept_is_bounded() -> None:
    view, head = stored(a_short_run())
    snapshots = Snapshots(RunStates(view, NothingFolded()), monotonic=Clock(), kept_bytes=3000)
    for sequence in range(1, 13):
        await snapshots.at(RUN, sequence, head)
        assert snapshots._bytes == sum(one.size for _, one in snapshots._kept.values()) <= 3000


async def test_a_replica_that_is_behind_gives_no_half_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """To see it fail: let `_fold` answer with what it has when a page is empty."""
    monkeypatch.setattr("runlane.edge_gateway.history._BEHIND_POLL_S", 0.001)
    view, head = stored(a_short_run())
    view.lag = 3
    with pytest.raises(Retryable):
        await Snapshots(RunStates(view, NothingFolded()), monotonic=Clock()).at(RUN, 12, head)
    asking = asyncio.create_task(Snapshots(RunStates(view, NothingFolded()), monotonic=Clock()).at(RUN, 12, head))
    await asyncio.sleep(0.005)
    view.lag = 0
    assert (await asking).position.sequence == 12


async def test_what_cannot_be_folded_is_refused_to_each_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    view, head = stored(a_short_run())
    snapshots = Snapshots(RunStates(view, NothingFolded()), monotonic=Clock())
    with monkeypatch.context() as broken:
        broken.setattr(reducer, "reduce", lambda _state, _fact: 1 / 0)
        for _ in range(2):
            with pytest.raises(ViewQuarantined):
                await snapshots.at(RUN, 9, head)
    assert (await snapshots.at(RUN, 9, head)).position.sequence == 9
