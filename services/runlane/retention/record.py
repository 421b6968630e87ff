"""One family of a run's commits, LOG or VIEW: read it, know who has yet to read it, take its beginning out."""

from collections.abc import AsyncGenerator
from typing import Protocol

from runlane.kernel.commit_reader import CommitReader
from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.event_log import StoredRawCommit
from runlane.kernel.purge import erase, purge, read_by_all
from runlane_contracts.cursor import Position
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress


class Record(Protocol):
    """Every method raises `Retryable`; `read` also `Gap` and `Compacted`."""

    async def head(self, run: RunAddress) -> StoredRawCommit | None:
        """The run's last commit."""
        ...

    def read(self, run: RunAddress) -> AsyncGenerator[StoredRawCommit, None]:
        """Every commit that is there, in order, without a gap but for what `log.compacted` says."""
        ...

    async def waiting(self, run: RunAddress, position: Position) -> str:
        """The durable that has not read everything up to a position yet; empty: all have."""
        ...

    async def take_out(self, run: RunAddress, *, before: Position, overwrite: bool) -> int:
        """Take out every commit of the run before the one at a position; how many there were."""
        ...


class Commands(Protocol):
    """What the COMMAND stream holds of a run."""

    async def erase(self, run: RunAddress) -> str:
        """Overwrite and take out every command; or the durable that has not read them all yet. Raises Retryable."""
        ...


class StreamRecord:
    """A `Record` in the streams of a layout."""

    def __init__(self, connection: Connection, direct: DirectReader, reader: CommitReader) -> None:
        self._connection, self._direct, self._reader = connection, direct, reader

    async def head(self, run: RunAddress) -> StoredRawCommit | None:
        """See `Record.head`."""
        return await self._reader.head_raw(run)

    def read(self, run: RunAddress) -> AsyncGenerator[StoredRawCommit, None]:
        """See `Record.read`."""
        return self._reader.read_raw(run)

    async def waiting(self, run: RunAddress, position: Position) -> str:
        """See `Record.waiting`."""
        reached, slowest = await read_by_all(self._connection, self._reader.stream(run))
        return slowest if reached < position.stream_seq else ""

    async def take_out(self, run: RunAddress, *, before: Position, overwrite: bool) -> int:
        """See `Record.take_out`."""
        stream, subject = self._reader.stream(run), self._reader.subject(run)
        if not overwrite:
            return await purge(self._connection, stream, subject, before_seq=before.stream_seq)
        return await erase(self._connection, self._direct, stream, subject, before_seq=before.stream_seq)


class StreamCommands:
    """The `Commands` of a layout."""

    def __init__(self, connection: Connection, direct: DirectReader, layout: Layout) -> None:
        self._connection, self._direct, self._layout = connection, direct, layout

    async def erase(self, run: RunAddress) -> str:
        """See `Commands.erase`."""
        stream, subject = self._layout.command_stream, self._layout.subjects.command(*run)
        last = await self._direct.last(stream, subject)
        if last is None:
            return ""
        reached, slowest = await read_by_all(self._connection, stream)
        if reached < last.seq:
            return slowest
        await erase(self._connection, self._direct, stream, subject, before_seq=last.seq + 1)
        return ""
