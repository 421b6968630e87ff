"""Wait for a condition, not for a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def eventually(
    condition: Callable[[], object | Awaitable[object]], *, within_s: float = 10.0, every_s: float = 0.01
) -> object:
    """The first true result of `condition`, sync or async. Fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while True:
        outcome = condition()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return outcome
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(every_s)
