"""Tasks with a parent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A `TaskGroup` that raises a lone failure as it is, so that who catches `Retryable` meets it.

    Whatever passes through a service's `serve(…)` would otherwise arrive wrapped once for each service around it.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise _alone(group) from group.__cause__


def _alone(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup) and len(group.exceptions) == 1:
        group = group.exceptions[0]
    return group
