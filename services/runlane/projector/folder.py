"""Folds one VIEW stream into one generation: messages in, one transaction out."""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from runlane.hosting.telemetry import about_run
from runlane.projector import fold as folding
from runlane.projector.cache import FoldCache
from runlane.projector.fold import RunFold, ViewMessage
from runlane.projector.view import View
from runlane.read_store import Loaded, Progress, ReadStore, RunChange, StreamPosition
from runlane_contracts import reducer
from runlane_contracts.events import LogCompacted
from runlane_contracts.reducer import Poison, SequenceGap, State
from runlane_contracts.subjects import RunAddress

_log = logging.getLogger("runlane.projector")

MAX_HOLES = 1000


class Bases(Protocol):
    """States of runs whose beginning is not in the view any more. The archives, in production."""

    async def state(self, run: RunAddress, compaction: LogCompacted) -> State | None:
        """The state after what was taken out; None: the archive is not there, or not what it was. Raises Retryable."""
        ...


class _NoArchives:
    """Nothing was ever archived."""

    async def state(self, run: RunAddress, compaction: LogCompacted) -> State | None:  # noqa: ARG002
        return None


NO_ARCHIVES = _NoArchives()


class Folder:
    """Where one stream stands in one generation, and the states that are worth keeping at hand.

    `fold` is the only way on: what it stored, it stored with the position it stands for. When it raises, nothing was
    stored, and the same messages may be given again.
    """

    def __init__(
        self, *, view: View, store: ReadStore, progress: Progress, epoch: str, cache: FoldCache, bases: Bases
    ) -> None:
        self.view = view
        self._bases = bases
        self._store = store
        self._cache = cache
        self._epoch = epoch
        self.progress = progress
        self.holes: dict[RunAddress, int] = {}
        """Runs whose record lacks a sequence, and which. They stay where they were."""
        self.quarantined = 0

    @property
    def epoch(self) -> str:
        """The incarnation of the stream that is being folded."""
        return self._epoch

    @property
    def stream_seq(self) -> int:
        """Everything up to here is stored."""
        return self.progress.position.stream_seq

    async def fold(self, messages: Sequence[ViewMessage]) -> int:
        """Store what these messages make of their runs; returns how many facts were new.

        What is stored already is passed over, and what is missing before the first message is read from the stream.

        Raises:
            Conflict: another writer was here, or the generation was replaced.
            Retryable: the store or the stream does not answer.
        """
        new = [one for one in messages if one.stream_seq > self.stream_seq]
        if not new:
            return 0
        facts = await self.catch_up(new[0].stream_seq - 1)
        return facts + await self._store_folded(new)

    async def catch_up(self, through: int) -> int:
        """Read and fold what the stream holds up to a sequence; returns how many facts were new. Raises as `fold`."""
        facts = 0
        if through > self.stream_seq:
            async for missed in self.view.read(after=self.stream_seq, through=through):
                facts += await self._store_folded(missed)
        return facts

    async def reach(self, stream_seq: int) -> None:
        """Note that the stream holds nothing more up to here, so that an empty stream counts as folded too."""
        if stream_seq > self.stream_seq or self.progress.position.epoch == "":
            position = StreamPosition(self._epoch, max(stream_seq, self.stream_seq))
            self.progress = await self._store.write((), before=self.progress, position=position)

    async def _store_folded(self, messages: Sequence[ViewMessage]) -> int:
        by_run: dict[RunAddress, list[ViewMessage]] = {}
        for one in messages:
            if not one.is_empty:
                by_run.setdefault(one.run, []).append(one)
        kept = await self._kept_folds(by_run)
        before = sum(_through(one) for one in kept.values())
        folded = [await self._fold_run(kept[run], theirs) for run, theirs in by_run.items()]
        position = StreamPosition(self._epoch, messages[-1].stream_seq)
        # States that could not be stored were taken out of the cache, so that a retry starts from what is stored.
        self.progress = await self._store.write(_changes(folded), before=self.progress, position=position)
        self._keep(folded)
        return sum(_through(one) for one in folded) - before

    async def _kept_folds(self, by_run: dict[RunAddress, list[ViewMessage]]) -> dict[RunAddress, RunFold]:
        """Where each run stands: from the cache, else from the store, else at its beginning."""
        folds: dict[RunAddress, RunFold] = {}
        unknown: list[RunAddress] = []
        for run, messages in by_run.items():
            known = self._cache.take(run)
            if known is not None:
                folds[run] = known
            elif messages[0].first != 1:  # nothing of a run is stored before its first commit is
                unknown.append(run)
        stored = await self._store.load_many(unknown, generation=self.progress.generation) if unknown else {}
        for run, one in stored.items():
            folds[run] = _of_stored(one)
        return {run: folds.get(run) or folding.begin(run) for run in by_run}

    async def _fold_run(self, fold: RunFold, messages: Sequence[ViewMessage]) -> RunFold:
        if fold.quarantined is not None and (erased := await self._erased(fold.run, messages)) is not None:
            return erased
        if fold.quarantined is not None or self.holes.get(fold.run) == _through(fold) + 1:
            return fold
        for done, one in enumerate(messages):
            try:
                folding.apply(fold, one, epoch=self._epoch)
            except Poison as exc:
                fold = await self._as_stored(fold.run)
                for before in messages[:done]:
                    folding.apply(fold, before, epoch=self._epoch)
                return self._quarantined(fold, exc)
            except SequenceGap as gap:
                return await self._read_again(fold.run, messages[-1].stream_seq, gap)
        return fold

    def _quarantined(self, fold: RunFold, exc: Poison) -> RunFold:
        """The run stands still before the commit; nobody else does."""
        extra = about_run(fold.run, fold.state["run"].get("trace_id"))
        _log.error("quarantined the view of %s: %s", "/".join(fold.run), exc, exc_info=exc, extra=extra)
        self.quarantined += 1
        fold.quarantined = exc.quarantine
        return fold

    async def _as_stored(self, run: RunAddress) -> RunFold:
        stored = await self._store.load(run, generation=self.progress.generation)
        if stored is None:
            return folding.begin(run)
        return _of_stored(stored)

    async def _read_again(self, run: RunAddress, through: int, gap: SequenceGap) -> RunFold:
        """A run from its first message on, because something between is missing. Stops before a hole in the record."""
        _log.warning("%s: %s, reading the run again", "/".join(run), gap, extra=about_run(run))
        fold, poison = await self._reread(run, through, ())
        if poison is not None:
            fold, _ = await self._reread(run, through, (poison[0],))
            self._quarantined(fold, poison[1])
        fold.changed = set(fold.state["items"])
        return fold

    async def _reread(
        self, run: RunAddress, through: int, until: tuple[int, ...]
    ) -> tuple[RunFold, tuple[int, Poison] | None]:
        """A run folded from its beginning to before the message `until`; and the message that it fails on, if any."""
        fold = folding.begin(run)
        async for messages in self.view.read_run(run, through=through):
            for one in messages:
                if one.stream_seq in until:
                    return fold, None
                if _through(fold) == 0 and one.first > 1:
                    fold = await self._after_archive(fold, one)
                try:
                    folding.apply(fold, one, epoch=self._epoch)
                except Poison as exc:
                    return fold, (one.stream_seq, exc)
                except SequenceGap as still:
                    extra = about_run(run, fold.state["run"].get("trace_id"))
                    _log.error("the record of %s has a hole at %s", "/".join(run), still.expected, extra=extra)
                    if len(self.holes) < MAX_HOLES:
                        self.holes[run] = still.expected
                    return fold, None
        return fold, None

    async def _after_archive(self, fold: RunFold, message: ViewMessage) -> RunFold:
        """The state that the archive holds, where the message says that what is before it lies there."""
        compaction = folding.compaction_before(message)
        state = None if compaction is None else await self._bases.state(fold.run, compaction)
        return fold if state is None else folding.begin_after(fold.run, state, message, epoch=self._epoch)

    async def _erased(self, run: RunAddress, messages: Sequence[ViewMessage]) -> RunFold | None:
        """A run that stands still goes on after an erasure: what is stored of it must not stay."""
        for one in reversed(messages):
            compaction = folding.compaction_before(one)
            if compaction is not None and compaction.erased:
                fold = await self._after_archive(folding.begin(run), one)
                folding.apply(fold, one, epoch=self._epoch)
                return fold
        return None

    def _keep(self, folded: Iterable[RunFold]) -> None:
        for one in folded:
            one.changed.clear()
            one.replaced = False
            if not reducer.is_terminal(one.state):  # nothing follows
                self._cache.put(one)


def _of_stored(stored: Loaded) -> RunFold:
    return RunFold(
        stored.run, stored.state, stored.position, stored.text_length, quarantined=stored.quarantined
    )  # fmt: skip


def _through(fold: RunFold) -> int:
    return int(fold.state["through_sequence"])


def _changes(folded: Iterable[RunFold]) -> list[RunChange]:
    return [
        RunChange(one.run, one.state, one.position, frozenset(one.changed), one.quarantined, one.replaced)
        for one in folded
        if _through(one) > 0 or one.quarantined is not None
    ]
