"""What a handler decided about a delivery. Handlers judge; one loop acknowledges."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """Its effect is durable; never give it again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Give it again later. Without `after_s` the wait grows with each attempt."""

    reason: str
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """It can never succeed: record why, and go on. `reason` is for people and holds no payload."""

    reason: str


Verdict: TypeAlias = Done | Retry | DeadLetter

DONE = Done()
