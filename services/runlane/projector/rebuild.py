"""Shadow rebuild: fold the whole record again into a generation of its own, compare, switch."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from msgspec import Struct

from runlane.kernel.errors import Conflict, Retryable
from runlane.projector.cache import FoldCache
from runlane.projector.folder import Bases, Folder
from runlane.projector.view import View
from runlane.read_store import ReadStore
from runlane.read_store.generations import Comparison, Generations
from runlane_contracts import reducer
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.subjects import RunAddress

_CLOSE_ENOUGH = 1000
_ATTEMPTS = 5
_MAX_NAMED = 100


class Difference(Struct, frozen=True, kw_only=True):
    """A run whose new state is not the live one's, though both are folded as far."""

    tenant_id: str
    run_id: str
    through_sequence: int
    checksum: str
    live_checksum: str


class RebuildReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rebuild did and found. `differences` names at most 100 runs."""

    switched: bool
    generation: int
    replaced: int
    reducer_version: int
    facts: int
    messages: int
    duration_s: float
    runs: int
    live_runs: int
    items: int
    live_items: int
    statuses: dict[str, int]
    live_statuses: dict[str, int]
    compared: int
    differences: tuple[Difference, ...]
    holes: tuple[RunAddress, ...] = ()
    missing_runs: int = 0
    reason: str | None = None
    """Why it was not switched to."""


class Rebuild:
    """One rebuild. `locks` hold back the live folds while the last messages are read and the switch is made."""

    def __init__(
        self,
        *,
        store: ReadStore,
        generations: Generations,
        views: Mapping[str, View],
        projection: str,
        new_cache: Callable[[], FoldCache],
        locks: Sequence[asyncio.Lock],
        bases: Bases,
        page_pause_s: float,
    ) -> None:
        self._store = store
        self._generations = generations
        self._views = views
        self._projection = projection
        self._new_cache = new_cache
        self._locks = locks
        self._bases = bases
        self._page_pause_s = page_pause_s
        self._facts = 0
        self._messages = 0

    async def run(self, *, force: bool) -> RebuildReport:
        """Fold, compare, switch. Raises Conflict when another rebuild began, Retryable."""
        began = asyncio.get_running_loop().time()
        replaced = await self._generations.live()
        generation = await self._generations.begin()
        try:
            folders = [await self._open(view, generation) for view in self._views.values()]
            while await self._catch_up(folders) > _CLOSE_ENOUGH:
                pass
            found = await self._generations.compare(generation, limit=_MAX_NAMED)
            differences = await self._differences(found, generation, replaced)
            missing = await self._switch(folders, generation, force=force)
        except BaseException:
            await asyncio.shield(self._generations.give_up(generation))
            raise
        switched = force or not missing
        if not switched:
            await self._generations.give_up(generation)
        return RebuildReport(
            switched=switched,
            generation=generation,
            replaced=replaced,
            reducer_version=REDUCER_VERSION,
            facts=self._facts,
            messages=self._messages,
            duration_s=round(asyncio.get_running_loop().time() - began, 3),
            runs=found.runs,
            live_runs=found.live_runs,
            items=found.items,
            live_items=found.live_items,
            statuses=found.statuses,
            live_statuses=found.live_statuses,
            compared=found.comparable,
            differences=differences,
            holes=tuple(run for folder in folders for run in folder.holes),
            missing_runs=missing,
            reason=None if switched else "it lacks runs that the live generation has",
        )

    async def _open(self, view: View, generation: int) -> Folder:
        state = await view.state()
        progress = await self._store.progress(self._projection, view.stream, generation=generation)
        return Folder(
            view=view, store=self._store, progress=progress, epoch=state.epoch, cache=self._new_cache(),
            bases=self._bases,
        )  # fmt: skip

    async def _catch_up(self, folders: Sequence[Folder]) -> int:
        """Fold what the streams hold now; returns how many messages that were."""
        before = self._messages
        for folder in folders:
            state = await folder.view.state()
            if state.epoch != folder.epoch:
                raise Retryable(f"{folder.view.stream} was made anew meanwhile")
            async for messages in folder.view.read(after=folder.stream_seq, through=state.last_seq):
                self._facts += await folder.fold(messages)
                self._messages += len(messages)
                await asyncio.sleep(self._page_pause_s)
            await folder.reach(state.last_seq)
        return self._messages - before

    async def _switch(self, folders: Sequence[Folder], generation: int, *, force: bool) -> int:
        """Returns how many runs of the live generation are missing; not switched if there are any and no force."""
        for attempt in range(_ATTEMPTS):
            async with AsyncExitStack() as stack:
                for lock in self._locks:
                    await stack.enter_async_context(lock)
                await self._catch_up(folders)
                missing = await self._generations.missing(generation)
                if missing and not force:
                    if attempt < _ATTEMPTS - 1:
                        continue  # perhaps a run that another process has just folded
                    return missing
                try:
                    await self._generations.switch(generation, projection=self._projection)
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    continue
                return missing
        raise Conflict(f"generation {generation} does not catch up")

    async def _differences(self, found: Comparison, generation: int, live: int) -> tuple[Difference, ...]:
        """Of the runs whose stored text differs, those whose state does."""
        different = []
        for run in found.unequal:
            new = await self._store.load(run, generation=generation)
            old = await self._store.load(run, generation=live)
            if new is None or old is None or new.position.sequence != old.position.sequence:
                continue
            checksum, live_checksum = reducer.checksum(new.state), reducer.checksum(old.state)
            if checksum != live_checksum:
                different.append(
                    Difference(
                        tenant_id=run.tenant_id,
                        run_id=run.run_id,
                        through_sequence=new.position.sequence,
                        checksum=checksum,
                        live_checksum=live_checksum,
                    )
                )
        return tuple(different)
