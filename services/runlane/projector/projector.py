"""All VIEW streams into the live generation, and the whole record into a new one when that is needed."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from runlane.kernel.errors import Conflict, Retryable
from runlane.projector.cache import FoldCache
from runlane.projector.fold import ViewMessage
from runlane.projector.folder import NO_ARCHIVES, Bases, Folder
from runlane.projector.rebuild import Rebuild, RebuildReport
from runlane.projector.view import View
from runlane.read_store import PROJECTION, Progress, ReadStore
from runlane.read_store.generations import Generations
from runlane_contracts.cursor import REDUCER_VERSION

_log = logging.getLogger("runlane.projector")

_ATTEMPTS = 4


class Outdated(Exception):
    """The live generation cannot be continued: another reducer folded it, or another stream."""


class Projector:
    """`handle` is called by one consumer per stream, `rebuild` by an operator or by `handle` itself."""

    def __init__(
        self,
        *,
        store: ReadStore,
        views: Mapping[str, View],
        cache_bytes: int,
        cache_runs: int,
        bases: Bases = NO_ARCHIVES,
        page_pause_s: float = 0.0,
        takeover_after_s: float = 30.0,
        keep_replaced_s: float = 86_400.0,
    ) -> None:
        self._store = store
        self._views = dict(views)
        self._bases = bases
        self._cache_bytes = cache_bytes
        self._cache_runs = cache_runs
        self._page_pause_s = page_pause_s
        self._takeover_after_s = takeover_after_s
        self._keep_replaced_s = keep_replaced_s
        self._folders: dict[str, Folder] = {}
        self._quarantined_before = 0
        self._locks = {stream: asyncio.Lock() for stream in views}
        self._rebuilding = asyncio.Lock()
        self.facts = 0
        self.rebuilds = 0
        self.last_rebuild: RebuildReport | None = None

    @property
    def folders(self) -> Mapping[str, Folder]:
        """Where each stream stands, for those that a message came from."""
        return self._folders

    @property
    def is_rebuilding(self) -> bool:
        """Whether a new generation is being built here."""
        return self._rebuilding.locked()

    async def position(self, stream: str) -> int:
        """Up to where a stream is folded, after a rebuild if what is stored cannot be continued. Raises Retryable."""
        state = await self._views[stream].state()
        for _ in range(_ATTEMPTS):
            try:
                async with self._locks[stream]:
                    self._forget(stream)
                    folder = self._folders[stream] = await self._open(stream)
                    # A stream that lost its tail gets the same messages again; until then there is nothing after it.
                    return min(folder.stream_seq, state.last_seq)
            except Outdated as exc:
                _log.warning("%s: %s, folding everything again", stream, exc)
                await self._rebuild_if_outdated(stream)
        raise Retryable(f"{stream} is made anew again and again", retry_after_s=1.0)

    async def refill(self, stream: str, acknowledged: int) -> None:
        """Fold what was acknowledged but is not stored, because the store was lost: nobody delivers it again.

        Raises:
            Retryable: the store or the broker does not answer, or another process is at it.
        """
        if await self.position(stream) >= acknowledged:
            return
        _log.warning("%s: reading again what was acknowledged and is not stored", stream)
        try:
            async with self._locks[stream]:
                self._forget(stream)
                folder = self._folders[stream] = await self._open(stream)
                self.facts += await folder.catch_up(acknowledged)
        except (Conflict, Outdated) as exc:
            self._forget(stream)
            raise Retryable(str(exc)) from exc

    async def handle(self, stream: str, messages: Sequence[ViewMessage]) -> None:
        """Everything through the last of these messages is stored when this returns, however often it was given.

        Raises:
            Retryable: the store or the broker does not answer.
        """
        for _ in range(_ATTEMPTS):
            try:
                async with self._locks[stream]:
                    return await self._fold(stream, messages)
            except Outdated as exc:
                _log.warning("%s: %s, folding everything again", stream, exc)
                await self._rebuild_if_outdated(stream)
            except Conflict as exc:
                _log.info("%s: %s, going on from what is stored", stream, exc)
                self._forget(stream)
        raise Retryable(f"{stream}: other writers are folding it", retry_after_s=1.0)

    async def _fold(self, stream: str, messages: Sequence[ViewMessage]) -> None:
        folder = self._folders.get(stream)
        if folder is None:
            folder = self._folders[stream] = await self._open(stream)
        elif messages[0].stream_seq <= folder.stream_seq:
            # Given again; or the stream was made anew and counts from 1.
            await self._check_epoch(stream, folder)
        self.facts += await folder.fold(messages)

    async def _check_epoch(self, stream: str, folder: Folder) -> None:
        state = await self._views[stream].state()
        if state.epoch != folder.epoch:
            self._forget(stream)
            raise Outdated("the stream was made anew")

    async def _open(self, stream: str) -> Folder:
        view = self._views[stream]
        state = await view.state()
        progress = await self._store.progress(PROJECTION, stream)
        _check(progress, state.epoch)
        return Folder(
            view=view, store=self._store, progress=progress, epoch=state.epoch, cache=self._new_cache(),
            bases=self._bases,
        )  # fmt: skip

    @property
    def quarantined(self) -> int:
        """How many runs were found that cannot be folded on, since the start."""
        return self._quarantined_before + sum(one.quarantined for one in self._folders.values())

    def _forget(self, stream: str) -> None:
        """Let a stream be opened anew."""
        folder = self._folders.pop(stream, None)
        if folder is not None:
            self._quarantined_before += folder.quarantined

    def _new_cache(self) -> FoldCache:
        share = len(self._views)
        return FoldCache(max_bytes=self._cache_bytes // share, max_runs=max(1, self._cache_runs // share))

    # --- rebuild ------------------------------------------------------------------------------------------

    async def rebuild(self, *, force: bool = False, back: bool = False) -> RebuildReport:
        """Fold everything again from the first message, beside what is live; compare; then make that the live one.

        Without `force` it is not made live if it differs from what is. `back`: what was live before is folded on and
        made live again instead.

        Raises:
            Conflict: another rebuild began and took over, or there is nothing to go back to.
            Retryable: the store or the broker does not answer.
        """
        async with self._rebuilding:
            return await self._rebuild(force=force, back=back)

    async def _rebuild_if_outdated(self, stream: str) -> None:
        async with self._rebuilding:
            try:
                await self._open(stream)
            except Outdated:
                await self._wait_for_others()
                if await self._went_back():
                    return
                try:
                    await self._rebuild(force=True)
                except Conflict as exc:
                    raise Retryable("another process folds everything again", retry_after_s=2.0) from exc

    async def _went_back(self) -> bool:
        """Whether what was live before is of this reducer, as after a release was taken back, and is live again."""
        kept = await Generations(self._store).kept()
        if kept is None or kept.reducer_version != REDUCER_VERSION:
            return False
        try:
            await self._rebuild(force=True, back=True)
        except Conflict as exc:
            _log.info("not going back: %s", exc)
            return False
        return True

    async def _wait_for_others(self) -> None:
        """Several processes notice at once; one of them is enough. One that does not get on is taken over from."""
        generations = Generations(self._store)
        seen = await generations.building()
        if seen is None:
            return
        await asyncio.sleep(self._takeover_after_s)
        if await generations.building() != seen:
            raise Retryable("another process folds everything again", retry_after_s=2.0)

    async def _rebuild(self, *, force: bool, back: bool = False) -> RebuildReport:
        rebuild = Rebuild(
            store=self._store,
            generations=Generations(self._store),
            views=self._views,
            projection=PROJECTION,
            new_cache=self._new_cache,
            locks=tuple(self._locks.values()),
            bases=self._bases,
            page_pause_s=self._page_pause_s,
        )
        report = await rebuild.run(force=force, back=back)
        self.rebuilds += 1
        self.last_rebuild = report
        if report.reason is not None:
            _log.error("generation %s, %s: %s", report.generation, _became(report), report.reason)
        return report

    # --- looking after ------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Delete what replaced generations left behind."""
        generations = Generations(self._store)
        await generations.forget_kept(after_s=self._keep_replaced_s)
        swept = 1
        while swept:
            swept = await generations.sweep()
            await asyncio.sleep(0.01)  # between two pieces whoever folds may write

    async def detail(self) -> dict[str, Any]:
        """Where it stands: generation, position and lag by stream, what was quarantined, where the record has holes."""
        streams: dict[str, Any] = {}
        for stream, view in self._views.items():
            progress = await self._store.progress(PROJECTION, stream)
            state = await view.state()
            folder = self._folders.get(stream)
            streams[stream] = {
                "generation": progress.generation,
                "stream_seq": progress.position.stream_seq,
                "lag": max(0, state.last_seq - progress.position.stream_seq),
                "holes": 0 if folder is None else len(folder.holes),
                "quarantined": 0 if folder is None else folder.quarantined,
            }
        generations = Generations(self._store)
        detail: dict[str, Any] = {
            "streams": streams,
            "facts": self.facts,
            "rebuilding": self.is_rebuilding,
            "quarantined_runs": await generations.quarantined(),
            "kept": msgspec.to_builtins(await generations.kept()),
        }
        if self.last_rebuild is not None:
            detail["last_rebuild"] = {
                "switched": self.last_rebuild.switched, "reason": self.last_rebuild.reason,
                "generation": self.last_rebuild.generation,
            }  # fmt: skip
        return detail


def _became(report: RebuildReport) -> str:
    return "live all the same" if report.switched else "not switched to"


def _check(progress: Progress, epoch: str) -> None:
    if progress.reducer_version != REDUCER_VERSION:
        raise Outdated(f"reducer version {progress.reducer_version} folded it, this is {REDUCER_VERSION}")
    if progress.position.epoch not in {"", epoch}:
        raise Outdated("the stream was made anew")
