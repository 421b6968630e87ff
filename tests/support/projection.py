"""What tests of the projector ask again and again."""

from runlane.projector.projector import Projector
from runlane.read_store import Loaded, ReadStore
from runlane_contracts import reducer
from runlane_contracts.envelope import Fact
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView

RUN = RunAddress("acme", "run_1")


def projector_of(store: ReadStore, view: MemoryView, *, cache_bytes: int = 1 << 20) -> Projector:
    return Projector(store=store, views={view.stream: view}, cache_bytes=cache_bytes, cache_runs=100)


def replayed(facts: list[Fact], run_id: str) -> str:
    state = reducer.initial_state("acme", run_id)
    for fact in facts:
        reducer.reduce(state, fact)
    return reducer.checksum(state)


async def loaded(store: ReadStore, run: RunAddress = RUN) -> Loaded:
    found = await store.load(run)
    assert found is not None
    return found
