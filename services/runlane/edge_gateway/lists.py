"""Lists over a tenant's runs, held back until they show what was written before the question came."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from runlane.edge_gateway.shared_ask import SharedAsk
from runlane.edge_gateway.view import StreamStart, View
from runlane.kernel.errors import Retryable
from runlane.read_store import PROJECTION, ApprovalRow, RunRow, StreamPosition

_POLL_S = (0.005, 0.1)


class Lists(Protocol):
    """Lists over the runs of a tenant, and how far they are folded. The read store, in production."""

    async def list_runs(
        self, tenant_id: str, *, status: str | None, agent: str | None, session_id: str | None, limit: int,
        page_token: str | None,
    ) -> tuple[Sequence[RunRow], str | None]:  # fmt: skip
        """Newest first. Raises PageTokenInvalid, Retryable."""
        ...

    async def list_approvals(
        self, tenant_id: str, *, status: str | None, limit: int, page_token: str | None
    ) -> tuple[Sequence[ApprovalRow], str | None]:
        """The longest asked first. Raises PageTokenInvalid, Retryable."""
        ...

    async def folded(self, projection: str) -> Mapping[str, StreamPosition]:
        """How far each stream is folded. Raises Retryable."""
        ...


class Freshness:
    """Whether the lists hold what the log held when the question came.

    An approval that was decided is not offered again, and one that was asked is not missed: a list waits until the
    view and the read store have followed, everybody who asks at a time by the same few questions. When one of them
    stands still, it waits `within_s` and the list then says that it is behind.
    """

    def __init__(self, view: View, lists: Lists, *, within_s: float) -> None:
        self._lists = lists
        self._within_s = within_s
        self._ends_of = SharedAsk(view.ends)
        self._folded_of = SharedAsk(lambda: lists.folded(PROJECTION))

    async def reached(self) -> bool:
        """True: what was written before is shown; False: it took too long. Raises Retryable if the store is gone."""
        try:
            async with asyncio.timeout(self._within_s):
                ends = await self._ends_of()
                delay_s, longest_s = _POLL_S
                while not _holds(await self._folded_of(), ends):
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 1.5, longest_s)
        except (TimeoutError, Retryable):
            return False  # without the broker there is no telling; the store still has its lists
        return True


def _holds(folded: Mapping[str, StreamPosition], ends: Mapping[str, StreamStart]) -> bool:
    return all(end.stream_seq == 0 or _is_through(folded.get(stream), end) for stream, end in ends.items())


def _is_through(at: StreamPosition | None, end: StreamStart) -> bool:
    return at is not None and at.epoch == end.epoch and at.stream_seq >= end.stream_seq
