"""A broker with streams, and a filter that runs on it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from support.lanes import Lanes, lanes


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Lanes]:
    async with lanes() as one:
        yield one
