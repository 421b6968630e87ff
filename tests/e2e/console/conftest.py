"""One browser and page for each file of tests; a gateway for each test, at an address the page knows nothing of."""

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


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opened_console(browser: Browser) -> AsyncIterator[Console]:
    async with a_console(browser, FakeGateway()) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def console(opened_console: Console, gateway: FakeGateway) -> AsyncIterator[Console]:
    opened_console.gateway = gateway
    yield opened_console
    await opened_console.forget()


@pytest_asyncio.fixture(loop_scope="module")
async def fresh_console(browser: Browser, gateway: FakeGateway) -> AsyncIterator[Console]:
    """A page of its own, for who does to it what cannot be taken back."""
    async with a_console(browser, gateway) as one:
        yield one
