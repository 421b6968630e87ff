"""When to try again: exponential, jittered, within a budget, forgotten only after health."""

import random
from collections.abc import Callable
from dataclasses import dataclass

Chance = Callable[[], float]
"""A number in [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """`budget_s` bounds the time since things were last well; None tries for ever."""

    initial_s: float = 0.2
    max_s: float = 10.0
    factor: float = 2.0
    budget_s: float | None = None


class Backoff:
    """The delays of one chain of failures."""

    def __init__(self, policy: BackoffPolicy, *, chance: Chance = random.random) -> None:
        self._policy = policy
        self._chance = chance
        self._failures = 0
        self._failing_since_s: float | None = None

    @property
    def failures(self) -> int:
        """Failures since things were last well."""
        return self._failures

    def healthy(self) -> None:
        """It works again: the next failure starts a new chain."""
        self._failures = 0
        self._failing_since_s = None

    def next_delay_s(self, *, now_s: float, at_least_s: float | None = None) -> float | None:
        """How long to wait after one more failure at `now_s`; None when the budget is used up."""
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        policy = self._policy
        full = min(policy.max_s, policy.initial_s * policy.factor ** min(self._failures, 32))
        self._failures += 1
        delay = full * (0.5 + self._chance() / 2)
        if at_least_s is not None:
            delay = max(delay, at_least_s)
        if policy.budget_s is not None and now_s + delay - self._failing_since_s > policy.budget_s:
            return None
        return delay
