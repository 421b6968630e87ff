"""States of runs whose beginning lies in an archive."""

import logging

from runlane.hosting.telemetry import about_run
from runlane.object_store.archives import ArchiveBroken, Archives, opened
from runlane_contracts.codec import decode_commit
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.events import LogCompacted
from runlane_contracts.reducer import State, initial_state, reduce
from runlane_contracts.subjects import RunAddress

_log = logging.getLogger("runlane.projector")


class ArchivedBases:
    """See `Bases`. A state that another reducer folded is folded again from the archived commits."""

    def __init__(self, archives: Archives) -> None:
        self._archives = archives

    async def state(self, run: RunAddress, compaction: LogCompacted) -> State | None:
        """See `Bases.state`."""
        try:
            manifest = await opened(self._archives, run, compaction.to_sequence, sha256=compaction.sha256)
            if manifest.snapshot.reducer_version == REDUCER_VERSION:
                return (await self._archives.state(manifest)).state
            state = initial_state(*run)
            async for line in self._archives.all_lines(manifest, "view"):
                for fact in decode_commit(line.commit).facts:
                    reduce(state, fact)
            return state
        except ArchiveBroken as exc:
            _log.error("%s", exc, extra=about_run(run))
            return None
