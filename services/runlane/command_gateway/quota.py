"""How much a tenant may do per second: a token bucket each, pure but for what it remembers."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

MAX_TENANTS: Final = 10_000
"""Buckets that are remembered. One that is forgotten is full again, which it nearly is after that long."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: datetime


class Quota:
    """`rate_per_s` tokens a second for each tenant, up to `burst` saved up."""

    def __init__(self, *, rate_per_s: float, burst: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, tenant_id: str, tokens: float, *, now: datetime) -> float:
        """Take that many; 0.0 when it was done, else after how many seconds it may be tried again."""
        bucket = self._buckets.get(tenant_id)
        if bucket is None:
            bucket = self._buckets[tenant_id] = _Bucket(self._burst, now)
            if len(self._buckets) > MAX_TENANTS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(tenant_id)
        passed_s = max(0.0, (now - bucket.at).total_seconds())
        bucket.tokens, bucket.at = min(self._burst, bucket.tokens + passed_s * self._rate_per_s), now
        # More than fits is let through when the bucket is full, and paid off afterwards.
        if bucket.tokens >= min(tokens, self._burst):
            bucket.tokens -= tokens
            return 0.0
        return (min(tokens, self._burst) - bucket.tokens) / self._rate_per_s
