"""Overload refuses new runs before it harms running ones: by name, with a time to come back."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runlane.command_gateway.quota import Quota
from runlane.hosting.http import ProblemError
from runlane.kernel.clock import Now
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import KernelError
from runlane_contracts.problems import Code


class Admission:
    """Lets a start in while there is room for it in the tenant's quota, in this process, and in the streams."""

    def __init__(self, *, quota: Quota, max_starting: int, now: Now) -> None:
        self._quota, self._max_starting, self._now = quota, max_starting, now
        self._starting = 0
        self.refused: Counter[str] = Counter()
        self.streams_full = False
        """Set by whoever watches the streams: so little room is left that what runs needs it."""

    @property
    def starting_count(self) -> int:
        """Starts that are under way."""
        return self._starting

    @contextmanager
    def starting(self, tenant_id: str) -> Iterator[None]:
        """One start under way.

        Raises:
            ProblemError: `overloaded` or `quota_exceeded`; nothing was recorded.
        """
        refusal = self._refusal(tenant_id)
        if refusal is not None:
            self.refused[refusal.code.value] += 1
            raise refusal
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def _refusal(self, tenant_id: str) -> ProblemError | None:
        if self.streams_full:
            return ProblemError(Code.OVERLOADED, "the log is nearly full: no new runs", retry_after_s=10)
        if self._starting >= self._max_starting:
            return ProblemError(Code.OVERLOADED, "too many runs are being started", retry_after_s=1)
        again_in_s = self._quota.take(tenant_id, 1, now=self._now())
        if again_in_s > 0:
            return ProblemError(Code.QUOTA_EXCEEDED, "runs started per second", retry_after_s=again_in_s)
        return None


async def watch_fullness(
    admission: Admission,
    direct: DirectReader,
    bounds: Sequence[tuple[str, int]],
    *,
    full_at: float,
    every_s: float,
) -> None:
    """Keep `streams_full` true to what the streams hold, for ever. What cannot be asked stays as it was known."""
    while True:
        try:
            states = await asyncio.gather(*(direct.stream_state(name) for name, _ in bounds))
        except KernelError:
            states = []
        if states:
            limits = (max_bytes for _, max_bytes in bounds)
            admission.streams_full = any(
                state.bytes >= full_at * limit for state, limit in zip(states, limits, strict=True)
            )
        await asyncio.sleep(every_s)
