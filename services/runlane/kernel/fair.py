"""Fair turns: who goes next when several tenants want the same thing, each with a weight.

Start-time fair queueing. Every turn costs a tenant one part of its weight; who has paid least goes next. Who was away
saved nothing up, so it neither goes first for long nor waits behind what others have queued: one run of one tenant
waits for about one turn of each other tenant, however many they have.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager


def _no_head_start() -> float:
    return 0.0


class Turns:
    """Whose turn it is. Pure but for what it remembers.

    `phase`: how far behind the others a newcomer of weight 1 starts. Many schedulers that know nothing of each other
    give all their first turns to the same tenant without one; `random.expovariate(1)` makes their sum fair too.
    """

    def __init__(self, *, phase: Callable[[], float] = _no_head_start) -> None:
        self._phase = phase
        self._paid: dict[str, float] = {}
        self._now = 0.0  # what was paid by who had the last turn, before it

    def order(self, wanting: Iterable[tuple[str, float]]) -> list[str]:
        """Those who want a turn (name, weight), who is next first. Who does not want one has no turn saved up."""
        names = dict(wanting)
        for name in [name for name in self._paid if name not in names and self._paid[name] <= self._now]:
            del self._paid[name]
        for name, weight in names.items():
            if name not in self._paid:
                self._paid[name] = self._now + self._phase() / weight
        return sorted(names, key=lambda name: (self._paid[name], name))

    def went(self, name: str, weight: float) -> None:
        """It had a turn. Who was away, or at its bound, is level with the others after one."""
        paid = max(self._paid.get(name, self._now), self._now)
        self._now = paid
        self._paid[name] = paid + 1.0 / weight

    def gave_back(self, name: str, weight: float) -> None:
        """The turn it just had was of no use to it."""
        if name in self._paid:
            self._paid[name] -= 1.0 / weight


class Slot:
    """One of a bounded number, held."""

    def __init__(self) -> None:
        self.was_used = True

    def unused(self) -> None:
        """There was nothing to do: it counts as no turn."""
        self.was_used = False


class FairSlots:
    """So many at a time; who waits for a slot gets it in fair turns, and in its order within a name."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._turns = Turns()
        self._waiting: dict[str, deque[tuple[float, asyncio.Future[None]]]] = {}

    @property
    def waiting_count(self) -> int:
        """How many wait for a slot."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def of(self, name: str, weight: float = 1.0) -> AsyncIterator[Slot]:
        """Wait for a turn, and hold a slot."""
        await self._enter(name, weight)
        slot = Slot()
        try:
            yield slot
        finally:
            if not slot.was_used:
                self._turns.gave_back(name, weight)
            self._free += 1
            self._hand_out()

    async def _enter(self, name: str, weight: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append((weight, turn))
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given just now
                self._turns.gave_back(name, weight)
                self._free += 1
                self._hand_out()
            raise

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            name = self._turns.order((one, queue[0][0]) for one, queue in self._waiting.items())[0]
            queue = self._waiting[name]
            weight, turn = queue.popleft()
            if not queue:
                del self._waiting[name]
            if turn.cancelled():
                continue
            self._turns.went(name, weight)
            self._free -= 1
            turn.set_result(None)
