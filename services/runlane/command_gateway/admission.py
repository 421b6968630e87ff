"""Overload refuses new runs before it harms running ones: by name, with a time to come back."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from runlane.command_gateway.quota import Quota
from runlane.hosting.http import ProblemError
from runlane.kernel.clock import Now
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import KernelError
from runlane_contracts.problems import Code

COUNT_EVERY_S: Final = 1.0


class Admission:
    """Lets a start in while there is room for it: in the tenant's quota, among those that wait, in the streams."""

    def __init__(
        self,
        *,
        quota: Quota,
        max_starting: int,
        now: Now,
        max_starting_of_tenant: int | None = None,
        max_waiting_of_tenant: int | None = None,
    ) -> None:
        self._quota, self._max_starting, self._now = quota, max_starting, now
        self._max_starting_of_tenant = max_starting_of_tenant or max_starting
        self._max_waiting_of_tenant = max_waiting_of_tenant
        self._starting = 0
        self._starting_of: Counter[str] = Counter()
        self._waiting_of: dict[str, int] = {}
        self.refused: Counter[str] = Counter()
        self.streams_full = False
        """Set by whoever watches the streams: so little room is left that what runs needs it."""

    @property
    def starting_count(self) -> int:
        """Starts that are under way."""
        return self._starting

    @property
    def tenants(self) -> tuple[str, ...]:
        """Whose waiting runs are to be counted: those that started some for a pool since they had none."""
        return tuple(self._waiting_of)

    def learn_waiting(self, tenant_id: str, count: int) -> None:
        """So many runs of a tenant wait for a worker; those under way may not have been among them."""
        if count or self._starting_of[tenant_id]:
            self._waiting_of[tenant_id] = count + self._starting_of[tenant_id]
        else:
            self._waiting_of.pop(tenant_id, None)

    @contextmanager
    def starting(self, tenant_id: str, *, for_a_pool: bool = False, max_waiting: int | None = None) -> Iterator[None]:
        """One start under way. `for_a_pool`: it waits for a worker, one of at most `max_waiting` if that is less.

        Raises:
            ProblemError: `overloaded` or `quota_exceeded`; nothing was recorded.
        """
        refusal = self._refusal(tenant_id, for_a_pool=for_a_pool, max_waiting=max_waiting)
        if refusal is not None:
            self.refused[refusal.code.value] += 1
            raise refusal
        self._starting += 1
        self._starting_of[tenant_id] += 1
        if for_a_pool:  # until it is counted
            self._waiting_of[tenant_id] = self._waiting_of.get(tenant_id, 0) + 1
        try:
            yield
        finally:
            self._starting -= 1
            self._starting_of[tenant_id] -= 1
            if not self._starting_of[tenant_id]:
                del self._starting_of[tenant_id]

    def _refusal(self, tenant_id: str, *, for_a_pool: bool, max_waiting: int | None) -> ProblemError | None:
        if self.streams_full:
            return ProblemError(Code.OVERLOADED, "the log is nearly full: no new runs", retry_after_s=10)
        if self._starting >= self._max_starting:
            return ProblemError(Code.OVERLOADED, "too many runs are being started", retry_after_s=1)
        if self._starting_of[tenant_id] >= self._max_starting_of_tenant:
            return ProblemError(Code.QUOTA_EXCEEDED, "runs of the tenant that are being started", retry_after_s=1)
        bounds = [bound for bound in (self._max_waiting_of_tenant, max_waiting) if bound is not None]
        most = min(bounds, default=None)
        if for_a_pool and most is not None and self._waiting_of.get(tenant_id, 0) >= most:
            return ProblemError(Code.QUOTA_EXCEEDED, "runs of the tenant that wait for a worker", retry_after_s=5)
        again_in_s = self._quota.take(tenant_id, 1, now=self._now())
        if again_in_s > 0:
            return ProblemError(Code.QUOTA_EXCEEDED, "runs started per second", retry_after_s=again_in_s)
        return None


async def watch_waiting(
    admission: Admission, count: Callable[[str], Awaitable[int]], *, every_s: float = COUNT_EVERY_S
) -> None:
    """Count what waits of the tenants that start runs, for ever. What cannot be asked stays as it was known."""
    while True:
        for tenant_id in admission.tenants:
            try:
                admission.learn_waiting(tenant_id, await count(tenant_id))
            except KernelError:
                break
        await asyncio.sleep(every_s)


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
