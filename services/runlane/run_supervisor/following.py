"""Following a bucket for as long as the service runs, whatever becomes of the bucket."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from runlane.kernel.errors import KernelError
from runlane.kernel.kv import Changes

log = logging.getLogger(__name__)

PAUSE_S = 1.0


async def follow(watch: Callable[[], AsyncGenerator[Changes, None]]) -> AsyncGenerator[Changes, None]:
    """All entries, then every change; begins again when the watch ends."""
    while True:
        try:
            async with aclosing(watch()) as changes:
                async for some in changes:
                    yield some
        except KernelError as exc:
            log.warning("a bucket can no longer be followed, beginning again: %s", exc)
        await asyncio.sleep(PAUSE_S)
