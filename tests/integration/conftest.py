"""Databases for the suites that keep states."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from runlane.read_store import ReadStore
from support.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database; the test runs once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/read.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return await server.new_database()


@pytest_asyncio.fixture
async def store(database_url: str) -> AsyncIterator[ReadStore]:
    async with ReadStore.open(database_url) as store:
        await store.create()
        yield store
