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
MAX_NAMED = 100


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
    """What was live before; kept for a while, if it was switched."""
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
    back: bool = False
    """Whether it went back to what was live before."""
    holes: tuple[RunAddress, ...] = ()
    missing_runs: int = 0
    behind_runs: int = 0
    other_endings: int = 0
    quarantined: int = 0
    """Runs whose view stands still, in the new one; and in the one before."""
    live_quarantined: int = 0
    newly_quarantined: int = 0
    reason: str | None = None
    """Why it was not switched to; or, if it was all the same, why it would not have been."""


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

    async def run(self, *, force: bool, back: bool = False) -> RebuildReport:
        """Fold, compare, switch. `back`: what was live before is folded on, and switched to however it compares.

        Raises:
            Conflict: another rebuild began, or there is nothing to go back to.
            Retryable: the store or a stream does not answer.
        """
        began = asyncio.get_running_loop().time()
        replaced = await self._generations.live()
        generation = await (self._generations.reopen() if back else self._generations.begin())
        try:
            folders = [await self._open(view, generation) for view in self._views.values()]
            while await self._catch_up(folders) > _CLOSE_ENOUGH:
                pass
            found = await self._judged(generation, replaced)
            found = await self._switch(folders, found, force=force or back)
        except BaseException:
            await asyncio.shield(self._generations.give_up(generation, keep=back))
            raise
        reason = found.reason
        switched = reason is None or force or back
        if not switched:
            await self._generations.give_up(generation)
        return self._report(found, switched, back, reason, folders, asyncio.get_running_loop().time() - began)

    def _report(
        self,
        found: "_Found",
        switched: bool,  # noqa: FBT001 - one place calls it
        back: bool,  # noqa: FBT001
        reason: str | None,
        folders: Sequence[Folder],
        duration_s: float,
    ) -> RebuildReport:
        numbers = found.numbers
        return RebuildReport(
            switched=switched,
            back=back,
            generation=found.generation,
            replaced=found.live,
            reducer_version=REDUCER_VERSION,
            facts=self._facts,
            messages=self._messages,
            duration_s=round(duration_s, 3),
            runs=numbers.runs,
            live_runs=numbers.live_runs,
            items=numbers.items,
            live_items=numbers.live_items,
            statuses=numbers.statuses,
            live_statuses=numbers.live_statuses,
            compared=numbers.comparable,
            differences=found.differences,
            holes=tuple(run for folder in folders for run in folder.holes),
            missing_runs=numbers.missing,
            behind_runs=numbers.behind,
            other_endings=numbers.other_endings,
            quarantined=numbers.quarantined,
            live_quarantined=numbers.live_quarantined,
            newly_quarantined=numbers.newly_quarantined,
            reason=reason,
        )

    async def _open(self, view: View, generation: int) -> Folder:
        state = await view.state()
        progress = await self._store.progress(self._projection, view.stream, generation=generation)
        if progress.position.epoch not in {"", state.epoch}:
            raise Conflict(f"{view.stream} was made anew since")
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

    async def _judged(self, generation: int, live: int) -> "_Found":
        """How the new one compares, while both are filled on."""
        unsettled = await self._generations.unsettled(generation)
        differences: list[Difference] = []
        after: RunAddress | None = None
        while len(differences) < MAX_NAMED:
            page = await self._generations.unequal(generation, limit=MAX_NAMED, after=after)
            if not page:
                break
            differences += await self._different(page, generation, live)
            after = page[-1]
        numbers = await self._generations.compare(generation)
        return _Found(generation, live, numbers, tuple(differences[:MAX_NAMED]), unsettled)

    async def _settled(self, found: "_Found") -> "_Found":
        """The same once nothing moves any more: what could not be compared then is compared now."""
        late = await self._different(found.unsettled, found.generation, found.live)
        numbers = await self._generations.compare(found.generation)
        return _Found(found.generation, found.live, numbers, (*found.differences, *late)[:MAX_NAMED], found.unsettled)

    async def _switch(self, folders: Sequence[Folder], found: "_Found", *, force: bool) -> "_Found":
        """Switch, unless the comparison speaks against it and nobody forces it."""
        for attempt in range(_ATTEMPTS):
            async with AsyncExitStack() as stack:
                for lock in self._locks:
                    await stack.enter_async_context(lock)
                await self._catch_up(folders)
                settled = await self._settled(found)
                if settled.reason is not None and not force:
                    if attempt < _ATTEMPTS - 1 and not settled.differences:
                        continue  # perhaps of a run that another process has just folded
                    return settled
                try:
                    await self._generations.switch(found.generation, projection=self._projection)
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    continue
                return settled
        raise Conflict(f"generation {found.generation} does not catch up")

    async def _different(self, runs: Sequence[RunAddress], generation: int, live: int) -> list[Difference]:
        """Of some runs, those that are folded as far in both, and whose state differs."""
        different = []
        news = await self._store.load_many(runs, generation=generation)
        olds = await self._store.load_many(runs, generation=live)
        for run in runs:
            new, old = news.get(run), olds.get(run)
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
        return different


class _Found(Struct, frozen=True):
    """What comparing two generations gave."""

    generation: int
    live: int
    numbers: Comparison
    differences: tuple[Difference, ...]
    unsettled: tuple[RunAddress, ...]

    @property
    def reason(self) -> str | None:
        """Why a person should look before it is switched to."""
        numbers = self.numbers
        against = (
            (numbers.missing, "are missing"),
            (numbers.behind, "are folded less far"),
            (numbers.newly_quarantined, "cannot be folded any more"),
            (numbers.other_endings, "end otherwise"),
            (len(self.differences), "have another state"),
        )
        said = [f"{count} {'or more ' if count >= MAX_NAMED else ''}runs {what}" for count, what in against if count]
        return f"it differs from what is live: {', '.join(said)}" if said else None
