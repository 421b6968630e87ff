"""One running product per module, and HTTP as its first tenant."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.product import Product, Wire, product


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("up") / "state") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(up: Product) -> AsyncIterator[Wire]:
    async with up.client() as wire:
        yield wire
