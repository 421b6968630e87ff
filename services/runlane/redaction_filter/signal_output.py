"""The one SIGNAL stream, written by the filters of all LOG streams of a process through one chain."""

import asyncio
from collections.abc import Sequence

from runlane.kernel.chain import ChainMessage, ChainPublisher
from runlane.kernel.connection import Connection
from runlane.redaction_filter.progress import End, Outputs
from runlane_contracts.streams import Layout


class SignalOutput:
    """Opened by each filter when it becomes active; a chain that broke is opened anew, one that is whole is shared."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection = connection
        self._stream = layout.signal_stream
        self._subjects = layout.subjects.all_of("signal")
        self._is_shared = layout.log_streams > 1
        self.max_age_s = next(spec.max_age_s for spec in layout.streams() if spec.name == self._stream)
        self._chain: ChainPublisher | None = None
        self._lock = asyncio.Lock()

    async def open(self, outputs: Outputs) -> End:
        """Where the stream ends for one log. Raises LogReplaced, Retryable."""
        async with self._lock:
            whole = self._is_shared and self._chain is not None and self._chain.failure is None
            if not whole and self._chain is not None:
                await self._chain.close()
                self._chain = None
            end = await outputs.signal_end(self._stream, self._subjects, is_shared=self._is_shared)
            if self._chain is None:
                self._chain = ChainPublisher(self._connection, last_seq=end.last_seq)
            return end

    async def submit(self, batch: Sequence[ChainMessage]) -> "asyncio.Future[int]":
        """Send signals after all that were sent before. Raises as `ChainPublisher.submit`."""
        assert self._chain is not None  # noqa: S101 - whoever submits has opened it
        return await self._chain.submit(batch)

    async def close(self) -> None:
        """Stop writing."""
        if self._chain is not None:
            await self._chain.close()
            self._chain = None
