from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from runlane.read_store import ReadStore


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[ReadStore]:
    async with ReadStore.open(f"sqlite:///{tmp_path}/read.sqlite") as store:
        await store.create()
        yield store
