"""One browser for each file of tests; a fresh page and a fresh gateway for each test."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from support.browser import chromium
from support.console import Console, a_console
from support.fake_gateway import FakeGateway


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def gateway() -> AsyncIterator[FakeGateway]:
    one = FakeGateway()
    await one.start()
    yield one
    await one.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def console(browser: Browser, gateway: FakeGateway) -> AsyncIterator[Console]:
    async with a_console(browser, gateway) as one:
        yield one
