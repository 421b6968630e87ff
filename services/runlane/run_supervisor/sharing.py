"""Supervisors that run at the same time share the partitions of the commands.

Each says now and then how many it decides for. Who has at least two more than another lets go of one, and somebody
who stands by takes it. Nothing rests on this: a partition has one active supervisor because the broker pins it, and
two that decide for one run all the same are told apart by the log. A supervisor that dies is heard no more; its
partitions are taken by whoever asks for the pins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

SAY_EVERY_S: Final = 0.5
GONE_AFTER_S: Final = 2.0
STAND_BACK_S: Final = 3.0
"""Longer than it takes another to ask for the pin."""


class Partition(Protocol):
    """One partition, as this supervisor sees it."""

    @property
    def is_active(self) -> bool: ...
    def give_way(self, for_s: float) -> None: ...


class Share(Struct, frozen=True, kw_only=True):
    """What one supervisor says of itself."""

    instance: str
    held: int


_decode = msgspec.json.Decoder(Share).decode


class Sharing:
    """Keeps the number of partitions here within one of everybody else's."""

    def __init__(self, instance: str, partitions: Sequence[Partition], say: Callable[[bytes], Awaitable[None]]) -> None:
        self._instance, self._partitions, self._say = instance, partitions, say
        self._others: dict[str, tuple[int, float]] = {}
        self._clock = asyncio.get_running_loop().time

    async def hear(self, data: bytes) -> None:
        """Another one (or this one) said what it holds."""
        try:
            said = _decode(data)
        except msgspec.MsgspecError:
            return
        if said.instance != self._instance:
            self._others[said.instance] = (said.held, self._clock())

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._say(msgspec.json.encode(Share(instance=self._instance, held=len(self._held()))))
            self._let_go_of_one()
            await asyncio.sleep(SAY_EVERY_S)

    def _held(self) -> list[Partition]:
        return [one for one in self._partitions if one.is_active]

    def _let_go_of_one(self) -> None:
        heard_since = self._clock() - GONE_AFTER_S
        self._others = {name: (held, at) for name, (held, at) in self._others.items() if at >= heard_since}
        mine = self._held()
        if self._others and len(mine) >= min(held for held, _ in self._others.values()) + 2:
            mine[-1].give_way(STAND_BACK_S)
