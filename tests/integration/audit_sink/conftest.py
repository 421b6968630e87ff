from collections.abc import AsyncIterator

import pytest_asyncio

from support.write_side import WriteSide, write_side


@pytest_asyncio.fixture
async def side() -> AsyncIterator[WriteSide]:
    async with write_side() as running:
        yield running
