"""A lone failure stays what it is, however many groups it passes."""

# ruff: noqa: PT012  a group is the statement

import asyncio

import pytest

from runlane.hosting.tasks import task_group
from runlane.kernel.errors import Permanent, Retryable


async def fail(exc: Exception) -> None:
    raise exc


async def test_a_task_that_fails_ends_the_body_and_is_raised_as_it_is() -> None:
    with pytest.raises(Retryable, match="away"):
        async with task_group() as outer, task_group() as inner:
            outer.create_task(asyncio.sleep(60))
            inner.create_task(fail(Retryable("away")))
            await asyncio.sleep(60)


async def test_a_body_that_fails_ends_the_tasks_and_is_raised_as_it_is() -> None:
    with pytest.raises(Retryable, match="away"):
        async with task_group() as outer, task_group():
            task = outer.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            raise Retryable("away")
    assert task.cancelled()


async def test_several_failures_are_raised_together() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with task_group() as tasks:
            tasks.create_task(fail(Retryable("a")))
            tasks.create_task(fail(Permanent("b")))
    assert len(caught.value.exceptions) == 2


async def test_cancellation_passes() -> None:
    async def work() -> None:
        async with task_group() as tasks:
            tasks.create_task(asyncio.sleep(60))
            await asyncio.sleep(60)

    task = asyncio.get_running_loop().create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
