"""A list waits for what was written before it was asked for, and says so when it cannot."""

import asyncio
from collections.abc import Mapping

from runlane.edge_gateway.lists import Freshness
from runlane.edge_gateway.memory_view import MemoryView
from runlane.kernel.errors import Retryable
from runlane.read_store import StreamPosition
from runlane_contracts.subjects import RunAddress
from support.runs import a_short_run


class Folded:
    """A read store that somebody else folds into."""

    def __init__(self) -> None:
        self.positions: dict[str, StreamPosition] = {}
        self.gone = False
        self.asks = 0

    async def folded(self, _projection: str) -> Mapping[str, StreamPosition]:
        self.asks += 1
        await asyncio.sleep(0)
        if self.gone:
            raise Retryable("no store")
        return dict(self.positions)

    async def list_runs(self, *_: object, **__: object) -> tuple[list[object], None]:
        return [], None

    list_approvals = list_runs


RUN = RunAddress("acme", "run_1")


def written() -> MemoryView:
    view = MemoryView()
    view.store(RUN, a_short_run().facts[:3])
    return view


async def test_an_empty_record_is_shown_at_once() -> None:
    assert await Freshness(MemoryView(), Folded(), within_s=5).reached()  # type: ignore[arg-type]


async def test_it_waits_for_the_filter_and_then_for_the_projector() -> None:
    view, store = written(), Folded()
    view.fall_behind()
    asking = [asyncio.create_task(Freshness(view, store, within_s=5).reached())]  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    view.catch_up()
    await asyncio.sleep(0.05)
    assert not asking[0].done()
    store.positions["memory"] = StreamPosition("e1", 1)
    assert await asking[0]


async def test_positions_of_another_incarnation_do_not_count() -> None:
    view, store = written(), Folded()
    store.positions["memory"] = StreamPosition("e0", 99)
    assert not await Freshness(view, store, within_s=0.05).reached()  # type: ignore[arg-type]


async def test_many_who_ask_at_a_time_share_the_questions() -> None:
    view, store = written(), Folded()
    store.positions["memory"] = StreamPosition("e1", 1)
    fresh = Freshness(view, store, within_s=5)  # type: ignore[arg-type]
    assert all(await asyncio.gather(*(fresh.reached() for _ in range(100))))
    assert store.asks < 50


async def test_who_stands_still_or_is_gone_is_waited_for_so_long_only() -> None:
    view, store = written(), Folded()
    assert not await Freshness(view, store, within_s=0.05).reached()  # type: ignore[arg-type]
    store.gone = True
    assert not await Freshness(view, store, within_s=5).reached()  # type: ignore[arg-type]
