"""One finished run out of the log and into the archive, step by step; whoever dies in between, the next one goes on.

1. archive: everything up to the last sequence, of LOG and of VIEW, and the state there; read back and compared
2. fact: `log.compacted`, by compare-and-set: from here on the archive is the record of what was before
3. purge: once the view has the fact and every durable has read it, LOG first, then VIEW
4. what the archive replaced is deleted

Before 2 nothing was taken away; after it the fact says where to go on. Two that do it at once write the same bytes,
one of them states the fact, and taking out twice takes out nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Raw, Struct

from runlane.hosting.telemetry import about_run
from runlane.kernel.errors import Compacted, Conflict, Gap, KernelError, Retryable
from runlane.kernel.event_log import StoredRawCommit, compaction_in
from runlane.kernel.faults import trace_of
from runlane.kernel.run_log import RunLog, RunLogs
from runlane.object_store.archives import ArchiveBroken, Archives, opened
from runlane.object_store.content import Contents
from runlane.retention.erasing import EVERYTHING, Proofs, Selection, Selector, content_refs, erased_line
from runlane.retention.record import Commands, Record
from runlane_contracts.archives import ArchiveLine, ArchiveManifest, Family, snapshot_ref
from runlane_contracts.codec import decode_commit
from runlane_contracts.envelope import Actor
from runlane_contracts.events import ERASED_ALL, LogCompacted
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft
from runlane_contracts.problems import Code
from runlane_contracts.reducer import State, initial_state, reduce
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

ACTOR: Final = Actor(kind="service", id="retention")
_LOOK_S: Final = (0.01, 0.25)
_ATTEMPTS: Final = 3
_DONE: Final = {"retention": "compacted", "erasure": "erased"}


class Behind(Retryable):
    """Somebody has not read yet what would be taken out. Nothing was; it goes on the next time."""


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done with one run. `outcome`: `compacted`, `erased`, `already` (nothing was left to do), `failed`."""

    tenant_id: str
    run_id: str
    outcome: str
    from_sequence: int | None = None
    to_sequence: int | None = None
    commits_purged: int = 0
    snapshot_ref: str | None = None
    sha256: str | None = None
    erased: tuple[str, ...] = ()
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Everything that is kept of a run, but for what is folded from it."""

    run_logs: RunLogs
    log: Record
    view: Record
    commands: Commands
    archives: Archives
    contents: Contents


@dataclass(frozen=True, slots=True)
class _Order:
    """Why, and the items that are to be erased on the way."""

    policy: str
    erase: tuple[str, ...] = ()
    actor: Actor = ACTOR


class Compactor:
    """Archives and erases runs, one call a run."""

    def __init__(self, stores: Stores, *, wait_s: float, overwrite: bool = True) -> None:
        self._stores = stores
        self._overwrite = overwrite
        self._wait_s = wait_s

    async def compact(self, run: RunAddress, policy: str) -> Report:
        """Archive a finished run and take it out of the log. Again: finishes what was begun, or does nothing.

        Raises:
            Refused: `run_not_found`, `run_not_terminal`.
            Gap, ArchiveBroken: the record or its archive is not whole; nothing was taken out.
            Behind, Retryable: not now; nothing is lost.
        """
        return await self._compact(run, _Order(policy))

    async def erase(self, run: RunAddress, items: Sequence[str], reason: str, actor: Actor) -> Report:
        """Remove the content of a finished run, or of some of its items, for good. Again: does nothing.

        Raises:
            Refused: `run_not_found`, `run_not_terminal`, `not_found` (no such item).
            the rest as `compact` does.
        """
        return await self._compact(run, _Order(reason, tuple(items) or EVERYTHING, actor))

    async def resume(self, run: RunAddress) -> Report | None:
        """Go on where somebody died: take out what the fact covers, or forget an archive that no fact speaks of.

        None: nothing had been taken away, or is to be. Raises as `compact` does.
        """
        try:
            await self._finished(run)
        except Refused:
            return None
        if (stated := await self._stated(run)) is not None:
            return await self._finish(run, *stated, verified=False, outcome="already")
        base = await self._base(run)
        for to_sequence in await self._stores.archives.known(run):
            if base is None or to_sequence != base.to_sequence:
                await self._stores.archives.delete(run, to_sequence)
        return None

    # --- is it over, and where is it ------------------------------------------------------------------------

    async def _finished(self, run: RunAddress) -> RunLog:
        run_log = self._stores.run_logs.of(run)
        known = await run_log.load()
        if not known.exists:
            self._stores.run_logs.forget(run)
            raise Refused(Code.RUN_NOT_FOUND, "no such run")
        if not known.is_terminal:
            raise Refused(Code.RUN_NOT_TERMINAL, f"the run is {known.status}; only a finished run can be taken out")
        return run_log

    async def _head(self, run: RunAddress) -> StoredRawCommit:
        head = await self._stores.log.head(run)
        if head is None:
            raise Retryable("a replica is behind", retry_after_s=0.2)
        return head

    # --- archive, fact --------------------------------------------------------------------------------------

    async def _compact(self, run: RunAddress, order: _Order) -> Report:
        reason: Literal["retention", "erasure"] = "erasure" if order.erase else "retention"
        for _ in range(_ATTEMPTS):
            known = await (await self._finished(run)).load()
            stated = await self._stated(run)
            if stated is not None and _covers(stated[1], order.erase):
                return await self._finish(run, *stated, verified=False, outcome="already")
            try:
                manifest, sha256 = await self._archive(run, known, await self._select(run, order.erase))
            except Compacted:
                continue  # another one was faster
            fact = LogCompacted(
                from_sequence=1, to_sequence=known.sequence, snapshot_ref=snapshot_ref(run, known.sequence),
                sha256=sha256, policy=order.policy, status=known.status, reason=reason,
                erased=manifest.erased if order.erase else (),
            )  # fmt: skip
            if await self._state(run, known.sequence, fact, order.actor):
                return await self._finish(run, await self._head(run), fact, verified=True, outcome=_DONE[reason])
        raise Retryable(f"{run.run_id} is written to by others")

    async def _stated(self, run: RunAddress) -> tuple[StoredRawCommit, LogCompacted] | None:
        """The run's last commit, if it says that all before it was archived: taking it out is what is left to do."""
        head = await self._head(run)
        fact = compaction_in(head.commit)
        return None if fact is None or len(head.commit.facts) > 1 else (head, fact)

    async def _state(self, run: RunAddress, sequence: int, fact: LogCompacted, actor: Actor) -> bool:
        """Write the fact right after what was archived; False: something else was written first."""

        def decide(known: RunLifecycle) -> Sequence[FactDraft]:
            return [draft(fact, actor=actor)] if known.sequence == sequence else []

        written = await self._stores.run_logs.of(run).transact(decide, lease_epoch=0, actor=actor)
        return bool(written.facts)

    async def _archive(
        self, run: RunAddress, known: RunLifecycle, selection: Selection | None
    ) -> tuple[ArchiveManifest, str]:
        await self._until(lambda: self._view_lags(run, known.sequence))
        archives, proofs = self._stores.archives, Proofs()
        writer = archives.writer(run, known.sequence)
        state = initial_state(run.tenant_id, run.run_id)
        content: set[str] = set()
        families: tuple[Family, ...] = ("log", "view")  # the proofs are of what the log holds
        for family in families:
            async for line in self._lines(run, family):
                kept = line
                if selection is not None:
                    content.update(content_refs(decode_commit(line.commit), selection))
                    kept = erased_line(line, selection, proofs)
                await writer.add(family, kept)
                if family == "view":
                    _fold(state, kept)
        erased = await self._erased_so_far(run, selection)
        sha256 = await writer.finish(state, known.status, erased=erased, erased_content=tuple(sorted(content)))
        manifest = await opened(archives, run, known.sequence, sha256=sha256)
        await archives.verify(manifest)
        return manifest, sha256

    async def _erased_so_far(self, run: RunAddress, selection: Selection | None) -> tuple[str, ...]:
        before = await self._base(run)
        keys = {*(() if before is None else before.erased), *(() if selection is None else selection.keys)}
        return EVERYTHING if ERASED_ALL in keys else tuple(sorted(keys))

    async def _lines(self, run: RunAddress, family: Family) -> AsyncIterator[ArchiveLine]:
        """All commits of a run from 1 on: those of its archive, if its beginning is there, then what the stream has."""
        record = self._stores.log if family == "log" else self._stores.view
        sequence = 0
        async for stored in record.read(run):
            commit = stored.commit
            if sequence == 0 and commit.first_sequence > 1:
                base = compaction_in(commit)
                if base is None:
                    raise Gap(f"{'/'.join(run)}: the {family} begins at {commit.first_sequence}")
                manifest = await opened(self._stores.archives, run, base.to_sequence, sha256=base.sha256)
                async for line in self._stores.archives.all_lines(manifest, family):
                    yield line
            sequence = stored.position.sequence
            if commit.facts:
                yield ArchiveLine(recorded_at=stored.recorded_at, commit=Raw(stored.data))

    async def _base(self, run: RunAddress) -> ArchiveManifest | None:
        async with aclosing(self._stores.log.read(run)) as commits:
            async for stored in commits:
                base = compaction_in(stored.commit) if stored.commit.first_sequence > 1 else None
                if base is None:
                    break
                return await opened(self._stores.archives, run, base.to_sequence, sha256=base.sha256)
        return None

    async def _select(self, run: RunAddress, items: tuple[str, ...]) -> Selection | None:
        if not items or items == EVERYTHING:
            return Selection(EVERYTHING) if items else None
        await self._until(lambda: self._view_lags(run, 1))
        selector = Selector(items)
        async for line in self._lines(run, "view"):
            for fact in decode_commit(line.commit).facts:
                selector.look(fact)
        if selector.missing:
            raise Refused(Code.NOT_FOUND, f"no item {selector.missing[0]!r} in this run")
        return selector.selection()

    # --- purge ----------------------------------------------------------------------------------------------

    async def _finish(
        self, run: RunAddress, head: StoredRawCommit, fact: LogCompacted, *, verified: bool, outcome: str
    ) -> Report:
        """Take out what the archive holds; nothing, where that was done."""
        stores = self._stores
        manifest = await opened(stores.archives, run, fact.to_sequence, sha256=fact.sha256)
        if not verified:
            await stores.archives.verify(manifest)
        await self._until(lambda: self._view_lags(run, head.position.sequence))
        view = await stores.view.head(run)
        if view is None or compaction_in(view.commit) is None:
            raise Retryable("the view does not end with what the log ends with")
        await self._until(lambda: stores.log.waiting(run, head.position))
        await self._until(lambda: stores.view.waiting(run, view.position))
        if fact.erased:
            await self._erase_beside(run, manifest)
        overwrite = self._overwrite or bool(fact.erased)
        purged = await stores.log.take_out(run, before=head.position, overwrite=overwrite)
        purged += await stores.view.take_out(run, before=view.position, overwrite=overwrite)
        for to_sequence in await stores.archives.known(run):
            if to_sequence != fact.to_sequence:
                await stores.archives.delete(run, to_sequence)
        return Report(
            tenant_id=run.tenant_id, run_id=run.run_id,
            outcome=_DONE[fact.reason] if outcome == "already" and purged else outcome,
            from_sequence=fact.from_sequence, to_sequence=fact.to_sequence, commits_purged=purged,
            snapshot_ref=fact.snapshot_ref, sha256=fact.sha256, erased=fact.erased,
        )  # fmt: skip

    async def _erase_beside(self, run: RunAddress, manifest: ArchiveManifest) -> None:
        """What the run left elsewhere: commands, and content that its facts pointed to."""
        await self._until(lambda: self._stores.commands.erase(run))
        if ERASED_ALL in manifest.erased:
            await self._stores.contents.delete_of_run(run)
        for uri in manifest.erased_content:
            await self._stores.contents.delete(run.tenant_id, uri)

    # --- waiting --------------------------------------------------------------------------------------------

    async def _view_lags(self, run: RunAddress, sequence: int) -> str:
        head = await self._stores.view.head(run)
        return "" if head is not None and head.position.sequence >= sequence else "the redaction filter"

    async def _until(self, lags: Callable[[], Awaitable[str]]) -> None:
        """Wait until nobody lags any more. Raises Behind with who does."""
        loop = asyncio.get_running_loop()
        deadline, (pause_s, longest_s) = loop.time() + self._wait_s, _LOOK_S
        while who := await lags():
            if loop.time() + pause_s > deadline:
                raise Behind(f"{who} has not read everything yet", retry_after_s=5.0)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)


def _covers(fact: LogCompacted, items: Sequence[str]) -> bool:
    return ERASED_ALL in fact.erased or set(items) <= set(fact.erased)


def _fold(state: State, line: ArchiveLine) -> None:
    for fact in decode_commit(line.commit).facts:
        reduce(state, fact)


def failed(run: RunAddress, exc: Exception) -> Report:
    """What became of a run that could not be taken out; it is as it was, or is finished the next time."""
    match exc:
        case Refused():
            code, detail = exc.code.value, exc.detail
        case Behind():
            code, detail = "behind", str(exc)
        case Gap():
            code, detail = "hole", str(exc)
        case ArchiveBroken():
            code, detail = "archive_broken", str(exc)
        case Retryable() | Conflict():
            code, detail = Code.OVERLOADED.value, str(exc)
        case KernelError():
            code, detail = Code.INTERNAL.value, str(exc)
        case _:
            extra = about_run(run, event=LogEvent.SERVICE_FAILED)
            log.error("a run could not be archived: %s", trace_of(exc), extra=extra)
            code, detail = Code.INTERNAL.value, type(exc).__name__
    return Report(tenant_id=run.tenant_id, run_id=run.run_id, outcome="failed", code=code, detail=detail)
