"""One question for many who ask at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedAsk(Generic[T]):
    """Asks at most once at a time.

    Whoever comes while an ask is under way shares the next one, never that one: an answer is always to a question
    that was put after the caller came.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._turn = asyncio.Lock()
        self._begun = 0
        self._answered = 0
        self._answer: T

    async def __call__(self) -> T:
        """The answer. Raises what the ask raises."""
        wanted = self._begun + 1
        async with self._turn:
            if self._answered < wanted:
                self._begun += 1
                number = self._begun
                self._answer = await self._ask()
                self._answered = number
            return self._answer
