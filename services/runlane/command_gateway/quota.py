"""How fast one tenant may send: a token bucket per tenant."""

from collections import OrderedDict
from collections.abc import Callable

MAX_TENANTS = 100_000


class TokenBuckets:
    """`take` answers how long to wait; 0 means: go ahead."""

    def __init__(self, *, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tenant → (tokens, at)

    def take(self, tenant_id: str, count: int) -> float:
        """Seconds until `count` tokens would be there; takes them when that is 0."""
        now = self._clock()
        tokens, at = self._levels.get(tenant_id, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_s)
        wait_s = max(0.0, (min(count, self._burst) - tokens) / self._per_s)
        self._levels[tenant_id] = (tokens if wait_s else tokens - count, now)
        self._levels.move_to_end(tenant_id)
        if len(self._levels) > MAX_TENANTS:
            self._levels.popitem(last=False)
        return wait_s
