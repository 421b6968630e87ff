"""Keeping a lease, and failing closed: what cannot be confirmed in time counts as lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from runlane.client.backoff import Chance
from runlane.client.errors import LeaseLost, RequestRefused, Unreachable

MARGIN_SHARE = 0.15
MAX_MARGIN_S = 2.0
FIRST_RETRY_SHARE = 1 / 30

Confirm = Callable[[], Awaitable[object]]


class LeaseKeeper:
    """One lease. `ok` is true only while the newest confirmation, counted from when it was *asked for*, holds.

    The time is the machine's monotonic clock, so a process that was stopped and continued finds its lease
    gone before it does anything, and a wrong wall clock does not matter. Once lost, it stays lost.
    """

    def __init__(self, *, ttl_s: float, clock: Callable[[], float], chance: Chance = random.random) -> None:
        self.lost = asyncio.Event()
        self.reason = ""
        self._ttl_s = ttl_s
        self._margin_s = min(MAX_MARGIN_S, ttl_s * MARGIN_SHARE)
        self._clock = clock
        self._chance = chance
        self._safe_until_s = float("-inf")

    @property
    def ok(self) -> bool:
        """Whether side effects are allowed now."""
        if self.lost.is_set():
            return False
        if self._clock() >= self._safe_until_s:
            self.lose("the lease could not be confirmed in time")
            return False
        return True

    def require(self) -> None:
        """Raises LeaseLost unless `ok`."""
        if not self.ok:
            raise LeaseLost(self.reason)

    def confirmed(self, asked_at_s: float) -> None:
        """The server confirmed a request that left at `asked_at_s`."""
        self._safe_until_s = max(self._safe_until_s, asked_at_s + self._ttl_s - self._margin_s)

    def lose(self, reason: str) -> None:
        """It is gone; all who wait for `lost` wake up."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()

    async def keep(self, confirm: Confirm) -> None:
        """Confirm every third of the ttl, more often after a failure, until the lease is lost."""
        first_retry_s = self._ttl_s * FIRST_RETRY_SHARE
        retry_s = first_retry_s
        wait_s = self._interval_s()
        while not self.lost.is_set():
            await self._sleep(wait_s)
            if not self.ok:
                return
            asked_at_s = self._clock()
            try:
                async with asyncio.timeout(max(0.01, self._safe_until_s - asked_at_s)):
                    await confirm()
            except RequestRefused as refused:
                if not refused.retryable:
                    self.lose(str(refused))
                    return
                wait_s, retry_s = retry_s, min(retry_s * 2, self._ttl_s / 6)
            except (Unreachable, TimeoutError):
                wait_s, retry_s = retry_s, min(retry_s * 2, self._ttl_s / 6)
            else:
                self.confirmed(asked_at_s)
                wait_s, retry_s = self._interval_s(), first_retry_s

    def _interval_s(self) -> float:
        return self._ttl_s / 3 * (0.9 + 0.2 * self._chance())

    async def _sleep(self, wait_s: float) -> None:
        """Until it is time, the lease runs out, or it is lost: whichever is first."""
        left_s = max(0.0, self._safe_until_s - self._clock())
        try:
            async with asyncio.timeout(min(wait_s, left_s)):
                await self.lost.wait()
        except TimeoutError:
            return
