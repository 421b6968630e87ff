"""The view, and before it the archive: a run whose beginning was taken out is read from 1 on all the same.

Only who begins at the beginning, or goes on inside the archive, is given the archive. A cursor into what was taken
out of the stream is not continued: it is from before, and what it stands for may have been erased since.

Positions in an archive have the epoch ``archive-<to_sequence>`` and the number of the commit in it.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from runlane.edge_gateway.view import BEGINNING, RELOCATED, Page, StreamStart, View, ViewCommit
from runlane.hosting.telemetry import about_run
from runlane.object_store.archives import ArchiveBroken, Archives, opened
from runlane_contracts.archives import ARCHIVE_EPOCH, ArchiveManifest
from runlane_contracts.codec import decode_raw_commit
from runlane_contracts.cursor import Position
from runlane_contracts.events import LogCompacted
from runlane_contracts.subjects import RunAddress

_log = logging.getLogger("runlane.edge_gateway.archived_view")

_PREFIX = f"{ARCHIVE_EPOCH}-"
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Of parts of archives that were read last."""


class ArchivedView:
    """A `View` that knows archives."""

    def __init__(self, view: View, archives: Archives, *, kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._view, self._archives = view, archives
        self._kept_bytes = kept_bytes
        self._parts: OrderedDict[tuple[str, str], list[ViewCommit]] = OrderedDict()
        self._bytes = 0

    async def head(self, run: RunAddress) -> ViewCommit | None:
        """See `View.head`."""
        return await self._view.head(run)

    async def page(self, run: RunAddress, *, start: StreamStart, max_bytes: int) -> Page:
        """See `View.page`."""
        inside = start.epoch.startswith(_PREFIX)
        if start != BEGINNING and not inside:
            return await self._view.page(run, start=start, max_bytes=max_bytes)
        stored = await self._view.page(run, start=RELOCATED, max_bytes=max_bytes)
        compaction = _compaction_before(stored.commits)
        if compaction is None or (inside and start.epoch != _epoch_of(compaction)):
            return stored
        try:
            commits = await self._archived(run, compaction, start.stream_seq, max_bytes)
        except ArchiveBroken as exc:
            _log.error("%s", exc, extra=about_run(run))
            return stored
        return Page(commits, exhausted=False) if commits else stored

    async def newer(self, known: Mapping[RunAddress, Position]) -> Mapping[RunAddress, int]:
        """See `View.newer`."""
        return await self._view.newer(known)

    async def settle(self, run: RunAddress, *, within_s: float) -> bool:
        """See `View.settle`."""
        return await self._view.settle(run, within_s=within_s)

    async def ends(self) -> Mapping[str, StreamStart]:
        """See `View.ends`."""
        return await self._view.ends()

    # --- the archive ----------------------------------------------------------------------------------------

    async def _archived(
        self, run: RunAddress, compaction: LogCompacted, number: int, max_bytes: int
    ) -> list[ViewCommit]:
        """Archived commits from a number on, some at a time; none after the last one."""
        manifest = await opened(self._archives, run, compaction.to_sequence, sha256=compaction.sha256)
        first = 1
        for part in manifest.of("view"):
            if number < first + part.commits:
                commits = await self._part(manifest, part.name, first, _epoch_of(compaction))
                return _some(commits[max(0, number - first) :], max_bytes)
            first += part.commits
        return []

    async def _part(self, manifest: ArchiveManifest, name: str, first: int, epoch: str) -> list[ViewCommit]:
        part = next(one for one in manifest.parts if one.name == name)
        key = (part.sha256, f"{manifest.tenant_id}/{manifest.run_id}")
        known = self._parts.get(key)
        if known is None:
            lines = await self._archives.lines(manifest, part)
            known = [_commit(epoch, first + offset, bytes(line.commit)) for offset, line in enumerate(lines)]
            self._keep(key, known)
        else:
            self._parts.move_to_end(key)
        return known

    def _keep(self, key: tuple[str, str], commits: list[ViewCommit]) -> None:
        self._parts[key] = commits
        self._bytes += _size(commits)
        while self._bytes > self._kept_bytes and self._parts:
            self._bytes -= _size(self._parts.popitem(last=False)[1])


def _compaction_before(commits: Sequence[ViewCommit]) -> LogCompacted | None:
    """What says that the run began before the first of these."""
    return commits[0].compaction() if commits and commits[0].first_sequence > 1 else None


def _epoch_of(compaction: LogCompacted) -> str:
    # An erasure leaves another archive of the same run, up to another sequence.
    return f"{_PREFIX}{compaction.to_sequence}"


def _commit(epoch: str, number: int, body: bytes) -> ViewCommit:
    commit = decode_raw_commit(body)
    return ViewCommit(epoch, number, commit.first_sequence, commit.last_sequence, body)


def _size(commits: Sequence[ViewCommit]) -> int:
    return sum(len(commit.body) for commit in commits)


def _some(commits: Sequence[ViewCommit], max_bytes: int) -> list[ViewCommit]:
    taken: list[ViewCommit] = []
    size = 0
    for commit in commits:
        if taken and size + len(commit.body) > max_bytes:
            break
        taken.append(commit)
        size += len(commit.body)
    return taken
